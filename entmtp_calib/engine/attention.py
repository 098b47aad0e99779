"""Attention whose result for a row does not depend on how many rows run beside it.

In 16-bit floats, the fused CPU kernel rounds a row differently when it is one of one, of five or of sixty-four, so a tree and
plain decoding would part wherever two logits are nearly equal. Two matrix products over grouped heads do not: those of oneDNN
give the same bits for any number of rows but one (`Target` never runs one row alone there). Knows tensors only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NAME = "entmtp_grouped"
_FUSED_FROM = 256  # rows; prompts and whole texts, never a tree: there the fused kernel saves time and the memory for all scores


def adopt(model: Any) -> bool:
    """Let a model use this attention if it then computes what it computed before; else leave it as it was.

    Models with more in their attention than a mask and a scale (soft caps, sinks, biases) fail the comparison.

    Returns:
        Whether the model uses it now.
    """
    register()
    before = model.config._attn_implementation
    # Spread over the vocabulary: special tokens, which lead it, excite 16-bit models so much that any two kernels differ.
    ids = (torch.arange(1, 25, device=model.device) * 7919 % model.get_input_embeddings().weight.shape[0])[None]
    with torch.inference_mode():
        wanted = model(input_ids=ids, use_cache=False).logits.float()
        try:
            model.set_attn_implementation(NAME)
            got = model(input_ids=ids, use_cache=False).logits.float()
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
            got = torch.full_like(wanted, float("inf"))
    bound = 0.1 if model.dtype in (torch.bfloat16, torch.float16) else 1e-3
    if bool((got - wanted).norm() <= bound * wanted.norm()):
        return True
    model.set_attn_implementation(before)
    return False


def register() -> None:
    """Make the function known to transformers under `NAME`; calling it again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None,
    softcap: float | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Softmax attention with the query heads of one key head folded into its rows.

    Args:
        query: `[batch, heads, rows, width]`; key, value: `[batch, kv_heads, columns, width]`.
        attention_mask: bool `[batch or 1, 1, rows, columns]`, true where a row may look; None for causal.

    Returns:
        `[batch, rows, heads, width]` and no weights.

    Raises:
        ValueError: a cap on scores, which older releases of transformers drop in silence where they compute with SDPA.
    """
    if softcap is not None:
        raise ValueError("scores are not capped here")
    batch, heads, rows, width = query.shape
    kv_heads, columns = key.shape[1], key.shape[2]
    if rows > _FUSED_FROM:
        whole = attention_mask is None and rows == columns
        seen = None if whole else _mask(attention_mask, query, columns)
        fused = F.scaled_dot_product_attention(
            query, key, value, seen, scale=scaling, is_causal=whole, enable_gqa=heads != kv_heads
        )
        return fused.transpose(1, 2).contiguous(), None
    group = heads // kv_heads
    folded = query.reshape(batch, kv_heads, group * rows, width)
    scores = torch.matmul(folded, key.transpose(2, 3)).mul_(width**-0.5 if scaling is None else scaling)
    seen = _mask(attention_mask, query, columns)[:, :, None]
    scores = scores.view(batch, kv_heads, group, rows, columns).masked_fill_(~seen, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    out = torch.matmul(weights.view(batch, kv_heads, group * rows, columns), value)
    return out.reshape(batch, heads, rows, width).transpose(1, 2).contiguous(), None


def _mask(mask: Tensor | None, query: Tensor, columns: int) -> Tensor:
    """The mask that is meant, bool `[batch or 1, 1, rows, columns]`."""
    if mask is not None:
        return mask[..., :columns]
    rows = query.shape[2]
    return torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(columns - rows)[None, None]
