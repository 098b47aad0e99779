"""The target: a causal language model behind one method, `forward`.

The only module that calls a transformers model. It uses the public forward with a 4-D boolean mask, explicit positions and
our own cache, so a new release of transformers can break this page and no other. It knows nothing of trees, files or text.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.errors import ArtefactError, UsageError

PREFILL_CHUNK = 512
_RECURRENT = ("linear_attention", "mamba", "recurrent", "conv", "ssm", "rwkv")


class Output(NamedTuple):
    """What one forward gives.

    logits: `[batch, kept, vocabulary]`; hidden: states after the final norm, `[batch, rows, hidden]`.
    """

    logits: Tensor
    hidden: Tensor


class Target:
    """A causal language model, frozen, in inference mode.

    Args:
        model: any `AutoModelForCausalLM` with softmax attention in every layer.
        end_ids: token ids that end a text.
        name: what the user called it, for messages and files.
        identity: hash of what defines it (weights' source and configuration).

    Raises:
        ArtefactError: the model keeps state that cannot be rolled back, or an attention that takes no 4-D mask.
    """

    def __init__(self, model: Any, end_ids: frozenset[int], name: str, identity: str) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        self.end_ids = end_ids
        self.name = name
        self.identity = identity
        config = _text_config(model.config)
        _refuse_unsupported(config, name)
        self.layers = int(config.num_hidden_layers)
        self.hidden_size = int(config.hidden_size)
        self.max_positions = _position_limit(config)
        parameters = inspect.signature(model.forward).parameters
        # transformers 5.24 renamed `past_key_values`; 5.40 drops the old word.
        self._cache_word = "cache" if "cache" in parameters else "past_key_values"
        self._additive = getattr(config, "_attn_implementation", "") == "eager"
        self.lm_head: nn.Linear = model.get_output_embeddings()
        self.embedding: nn.Embedding = model.get_input_embeddings()
        self.vocab_size = int(self.lm_head.weight.shape[0])
        self._pairs = self.device.type == "cpu" and self.dtype in (torch.bfloat16, torch.float16)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are."""
        return self.embedding.weight.dtype

    @property
    def layer_shape(self) -> tuple[int, float, float]:
        """Columns of an attention head, base of the rotary embedding and epsilon of the norms: what a head file may leave out.

        The base is 0 where the model scales its rotary embedding, so that no single number says it.
        """
        config = _text_config(self.model.config)
        rope = getattr(config, "rope_parameters", None) or {}
        plain = rope.get("rope_type", "default") == "default"
        theta = (rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10_000.0) if plain else 0.0
        columns = getattr(config, "head_dim", None) or self.hidden_size // int(config.num_attention_heads)
        return int(columns), float(theta), float(getattr(config, "rms_norm_eps", None) or 1e-6)

    @property
    def layer_widths(self) -> tuple[int, int]:
        """Columns of the keys of a layer, all heads together, and width of its MLP."""
        config = _text_config(self.model.config)
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return int(kv_heads) * self.layer_shape[0], int(getattr(config, "intermediate_size", None) or 4 * self.hidden_size)

    def check(self, ids: Sequence[int]) -> None:
        """Refuse token ids that the model does not have: a tokenizer may know more.

        Raises:
            UsageError: there is one.
        """
        if ids and max(ids) >= self.vocab_size:
            raise UsageError(
                f"the text has token {max(ids)} and {self.name} has {self.vocab_size} tokens.",
                "Leave it out of the text, or use the model's own tokenizer.",
            )

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache of `capacity` slots for this model, and one of scratch."""
        return KVCache(self.layers, capacity + 1)

    def forward(
        self, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: KVCache | None = None, keep: int | Tensor = 0
    ) -> Output:
        """Run the model once.

        Args:
            ids: int64 `[batch, rows]`.
            mask: bool `[batch or 1, 1, rows, columns]`, true where a row may look; None without a cache for whole texts, where
                every row looks at itself and those before it.
            positions: int64 `[batch or 1, rows]`.
            cache: where keys and values go (after `cache.place`), or None for a forward that keeps nothing.
            keep: rows for which logits are wanted: 0 for all, n for the last n, or their indices.

        Returns:
            Logits of the kept rows and the final hidden states of all rows.
        """
        if self._pairs and ids.numel() == 1 and mask is not None:
            return self._twice(ids, mask, positions, cache)
        if self._additive and mask is not None:
            # Eager attention adds its mask; masks are combined as booleans and filled once, here.
            mask = torch.zeros(mask.shape, dtype=self.dtype, device=mask.device).masked_fill(~mask, torch.finfo(self.dtype).min)
        if isinstance(keep, int) and keep:
            # An index tensor makes a compact copy; a slice would make the LM head expand its weights once per batch member.
            keep = torch.arange(ids.shape[1] - keep, ids.shape[1], device=ids.device)
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=cache is not None,
            output_hidden_states=True,
            logits_to_keep=keep,
            **{self._cache_word: cache},
        )
        return Output(out.logits, out.hidden_states[-1])

    def _twice(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: KVCache | None) -> Output:
        """A forward of one row, run with a copy of itself as company and cut back to one.

        Matrix products of a single row add up in another order than those of two or more; with 16-bit floats on the CPU the text
        would depend on it. Two rows cost what one costs.
        """
        rows = mask.expand(-1, -1, 2, -1)
        if cache is not None:
            cache.widen()
            rows = torch.cat((rows, rows.new_zeros(1, 1, 2, 1)), -1)
        else:
            rows = torch.eye(2, dtype=torch.bool, device=ids.device)[None, None]
        out = self.forward(ids.expand(1, 2), rows, positions.expand(1, 2), cache)
        return Output(out.logits[:, :1], out.hidden[:, :1])

    def prefill(self, ids: Tensor, cache: KVCache, held: int = 0) -> Output:
        """Write a prompt into a cache, in pieces that bound the size of the mask.

        Args:
            ids: int64 `[1, length]`, at least one token.
            held: how many tokens before them the cache holds.

        Returns:
            Logits of the last token only `[1, 1, vocabulary]`, hidden states of all `[1, length, hidden]`.

        Raises:
            UsageError: see `check`.
        """
        self.check(ids[0].tolist())
        length = held + ids.shape[1]
        columns = torch.arange(length, device=ids.device)
        pieces = []
        for start in range(held, length, PREFILL_CHUNK):
            rows = columns[start : start + PREFILL_CHUNK]
            end = start + rows.shape[0]
            cache.place(rows, end)
            mask = columns[:end] <= rows[:, None]
            out = self.forward(ids[:, start - held : end - held], mask[None, None], rows[None], cache, keep=1)
            pieces.append(out.hidden)
        return Output(out.logits, torch.cat(pieces, 1))


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _position_limit(config: Any) -> int:
    """Longest text for which every layer sees everything: inside its window or chunk a local layer equals a full one."""
    limits = [int(getattr(config, "max_position_embeddings", None) or 2**31)]
    kinds = [str(kind) for kind in getattr(config, "layer_types", None) or []]
    window, chunk = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    slides = any("sliding" in kind for kind in kinds) if kinds else getattr(config, "use_sliding_window", True)
    if window and slides:
        limits.append(int(window))
    if chunk and (not kinds or any("chunk" in kind for kind in kinds)):
        limits.append(int(chunk))
    return min(limits)


def _refuse_unsupported(config: Any, name: str) -> None:
    kinds = {str(kind) for kind in (getattr(config, "layer_types", None) or [])}
    kinds |= {str(getattr(config, "model_type", ""))}
    bad = sorted(kind for kind in kinds if any(word in kind for word in _RECURRENT))
    if bad:
        raise ArtefactError(
            f"{name} has {bad[0]} layers, whose state cannot be rolled back after rejected drafts.",
            "Use a model with softmax attention in every layer.",
        )
    if "flash" in str(getattr(config, "_attn_implementation", "")):
        raise ArtefactError(
            f"{name} was loaded with {config._attn_implementation}, which takes no tree mask.",
            "Load it with attn_implementation='sdpa' or 'eager'.",
        )
