"""Heads in the published layouts, so that the original decoders of Hydra and Medusa can run them.

The originals own a whole LM head per head, repeat one block where a head has several, and build their modules from the base's
sizes; what does not fit that is refused or said. Makes tensors and a configuration; writes no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.published import EMBEDDING, PREFIX_EMBEDDING, Tensors, hydra_name, medusa_name
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError, UsageError

FORMATS = {"hydra": ("hydra", "hydra++"), "medusa": ("medusa",)}
_NEVER = -1e4  # bias of tokens that a head must not guess; float16 ends at 65504


@dataclass(frozen=True, slots=True)
class Export:
    """A published head file in memory.

    file: name of the weight file; config: content of `config.json`; notes: what differs from the heads that were given.
    """

    file: str
    tensors: Tensors
    config: dict[str, Any]
    notes: tuple[str, ...]


def check_format(layout: str, architecture: str) -> None:
    """Refuse a layout that cannot hold such heads.

    Raises:
        UsageError: an unknown layout, or one of another architecture.
    """
    if layout not in FORMATS:
        raise UsageError(f"unknown format {layout!r}.", f"Known: {', '.join(FORMATS)}.")
    if architecture not in FORMATS[layout]:
        fitting = [f"Use --format {name}." for name, kinds in FORMATS.items() if architecture in kinds]
        raise UsageError(
            f"{architecture} heads cannot be written in the layout of {layout}.", *fitting or ["No layout holds them."]
        )


def export(heads: DraftHeads, target: Target, layout: str) -> Export:
    """Turn heads into a published file.

    Args:
        heads: bound to the target.
        target: whose embedding and LM head the file is to hold; in float32 for the closest copy.
        layout: "hydra" or "medusa".

    Raises:
        UsageError: the layout does not fit the architecture.
        ArtefactError: something that the originals have no place for.
    """
    check_format(layout, heads.shape.architecture)
    _refuse_different_blocks(heads, layout)
    made = _hydra(heads, target) if layout == "hydra" else _medusa(heads, target)
    for name, value in made.tensors.items():
        if not torch.isfinite(value).all():
            raise ArtefactError(f"tensor {name} holds values that 16 bits cannot hold.", "Scale or train the heads again.")
    return made


def _hydra(heads: DraftHeads, target: Target) -> Export:
    shape, prefix = heads.shape, heads.shape.prefix
    shifted = prefix is not None
    embedding = _half(target.embedding.weight)
    tensors: Tensors = {EMBEDDING: embedding}
    config: dict[str, Any] = {
        "hydra_num_heads": shape.heads, "hydra_num_layers": shape.layers, "hydra_head_arch": "prefix-mlp" if prefix else "mlp",
        "base_model_name_or_path": target.name, "grounded_heads": True, "hidden_state_offset": 0,
    }  # fmt: skip
    if prefix:
        tensors[PREFIX_EMBEDDING] = embedding
        config |= {"head_dim": prefix.head_dim, "rope_theta": prefix.rope_theta, "rms_norm_eps": prefix.eps}
        config |= {"max_position_embeddings": prefix.max_positions} if prefix.max_positions else {}
    tensors |= {hydra_name(key, shifted): _half(value) for key, value in _body(heads)}
    for head, (weight, bias) in enumerate(_whole_lm_heads(heads, target)):
        tensors[hydra_name(f"lm_heads.{head}.weight", shifted)] = weight
        tensors[hydra_name(f"lm_heads.{head}.bias", shifted)] = bias
    notes = _odd_prefix(heads, target)
    if shape.lm_heads == "target":
        notes.append(f"every head holds a copy of the LM head of {target.name}, stored once")
    if shape.reduced:
        out = target.vocab_size - shape.vocabulary
        notes.append(f"{out} tokens outside the draft vocabulary have a bias of {_NEVER:.0f}, so that they are never guessed")
    return Export("hydra_lm_head.pt", tensors, config, tuple(notes))


def _medusa(heads: DraftHeads, target: Target) -> Export:
    shape = heads.shape
    if shape.lm_heads != "target" and shape.reduced:
        raise ArtefactError(
            f"these heads have LM heads of their own over {shape.vocabulary} of {target.vocab_size} tokens; the Medusa layout "
            "has no bias to keep the others from being guessed.", "Export heads that borrow the target's LM head.")  # fmt: skip
    tensors = {medusa_name(key, shape.layers): _half(value) for key, value in _body(heads)}
    whole = _half(target.lm_head.weight)
    for head in range(shape.heads):
        layer = _lm_head(heads, target, head)
        if layer.bias is not None and bool(layer.bias.any()):
            raise ArtefactError("these heads have an LM head with a bias, for which the Medusa layout has no place.")
        tensors[medusa_name(f"lm_heads.{head}.weight", shape.layers)] = (
            whole if shape.lm_heads == "target" else _half(layer.weight)
        )
    config = {"medusa_num_heads": shape.heads, "medusa_num_layers": shape.layers, "base_model_name_or_path": target.name}
    notes = []
    if shape.lm_heads == "target":
        notes.append(f"every head holds a copy of the LM head of {target.name}, stored once")
    if shape.reduced:
        notes.append(
            f"the layout knows no draft vocabulary: the heads will guess among all {target.vocab_size} tokens, "
            f"not among the {shape.vocabulary} that they were made for"
        )
    return Export("medusa_lm_head.pt", tensors, config, tuple(notes))


def _odd_prefix(heads: DraftHeads, target: Target) -> list[str]:
    prefix = heads.shape.prefix
    if prefix is None:
        return []
    has, wanted = (prefix.head_dim, prefix.kv_width, prefix.inner), (target.layer_shape[0], *target.layer_widths)
    if has == wanted:
        return []
    return [
        f"the prefix layer has head, key and MLP widths {has} and a layer of {target.name} has {wanted}: the original decoder "
        "builds it like a layer of the base and will not load it"
    ]


def _body(heads: DraftHeads) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the heads and of the prefix layer, without LM heads and maps."""
    for key, value in heads.state_dict().items():
        if key.startswith(("heads.", "prefix.")):
            yield key, value


def _whole_lm_heads(heads: DraftHeads, target: Target) -> Iterator[tuple[Tensor, Tensor]]:
    """Weight `[vocabulary, hidden]` and bias `[vocabulary]` of each head over the target's vocabulary, in float16.

    Heads that share an LM head get the same objects, which a pickled file stores once.
    """
    made: dict[int, tuple[Tensor, Tensor]] = {}
    for head in range(heads.depth):
        layer = _lm_head(heads, target, head)
        if id(layer) not in made:
            weight, bias = layer.weight, torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias
            if heads.draft_ids is not None:
                ids = heads.draft_ids
                rows = slice(None) if heads.shape.lm_heads != "target" else ids
                weight = torch.zeros_like(target.lm_head.weight).index_copy_(0, ids, weight[rows])
                bias = torch.full((target.vocab_size,), _NEVER).index_copy_(0, ids, bias[rows].float())
            made[id(layer)] = _half(weight), _half(bias)
        yield made[id(layer)]


def _lm_head(heads: DraftHeads, target: Target, head: int) -> Any:
    """The linear layer behind a head: its own, the shared one, or the target's."""
    if heads.shape.lm_heads == "target":
        return target.lm_head
    return heads.lm_heads[head if heads.shape.lm_heads == "own" else 0]


def _refuse_different_blocks(heads: DraftHeads, layout: str) -> None:
    """The originals repeat one block; of several different ones they would load all and keep the last, without a word."""
    first = 0 if layout == "medusa" else 1
    for index, head in enumerate(heads.heads):
        repeated = [block.state_dict() for block in list(head.children())[first:]]
        for block in repeated[1:]:
            if not all(torch.equal(block[key], repeated[0][key]) for key in block):
                raise ArtefactError(
                    f"head {index + 1} has {len(repeated)} different blocks where the original decoder repeats one.",
                    f"Train with --layers {first + 1} for this export.",
                )


def _half(value: Tensor) -> Tensor:
    return value.detach().cpu().to(torch.float16).contiguous()
