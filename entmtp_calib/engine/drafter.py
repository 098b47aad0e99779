"""Drafting: filling a tree with guesses, level by level, and the confidence along the greedy chain.

Works with any object that has the drafter's few methods; `DraftHeads` is one, the tests' scripted drafters are others. Knows
nothing of the target.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.noise import Perturbation


class Drafter(Protocol):
    """What drafting needs of a set of heads; see `DraftHeads` for the shapes."""

    @property
    def depth(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def sequential(self) -> bool: ...
    @property
    def max_positions(self) -> int: ...
    def new_memory(self, capacity: int) -> KVCache | None: ...
    def read(self, hidden: Tensor, start: int | Tensor = 0, memory: KVCache | None = None) -> Tensor: ...
    def start(self, hidden: Tensor, root: Tensor) -> Tensor: ...
    def extend(self, context: Tensor, tokens: Tensor) -> Tensor: ...
    def logits(self, level: int, context: Tensor) -> Tensor: ...
    def to_target_ids(self, guesses: Tensor) -> Tensor: ...


class Draft(NamedTuple):
    """A filled tree.

    tokens: int64 `[rows]`, the root first; chain_logp: float32 `[levels]`, log of the heads' probability of the first guess at
    each level of the chain of first guesses; path_logp: float32 `[rows]`, log of the product of the heads' probabilities from the
    root to each node, 0 at the root, where it was asked for; order: which rows of the drafted tree these are, int64 `[rows]`;
    None for all as they come.
    """

    tokens: Tensor
    chain_logp: Tensor
    path_logp: Tensor | None = None
    order: Tensor | None = None


def draft_tree(
    drafter: Drafter,
    layout: TreeLayout,
    hidden: Tensor,
    root: Tensor,
    confidence: bool = True,
    ranking: Perturbation | None = None,
    position: Tensor | None = None,
    paths: bool = False,
) -> Draft:
    """Fill every node of a layout: per level one forward, one top-k and one gather, whatever the number of nodes.

    Args:
        hidden: what the drafter read from the state that chose the root, `[1, hidden]`.
        root: the root's token id, int64 `[1]`.
        confidence: whether `chain_logp` is wanted; it is empty otherwise.
        ranking: how guesses are ranked, if not by the heads alone; it needs `position`, that of the root, int64 `[1]`.
        paths: whether `path_logp` is wanted; it is of what guesses are ranked by, so it falls along a path and with the rank.
    """
    context = drafter.start(hidden, root)
    ids = drafter.to_target_ids(torch.arange(drafter.vocabulary, device=root.device)) if ranking else root
    tokens, chain_logp = [root], []
    path_logp = [hidden.new_zeros(1, dtype=torch.float32)]
    for depth, level in enumerate(layout.levels):
        if drafter.sequential:
            context = context.index_select(0, level.expand)
        logits = drafter.logits(depth, context)
        ranked = logits if ranking is None or position is None else ranking(logits, position + depth + 1, ids)
        guesses = top_guesses(ranked, level.width)
        if confidence:
            chain_logp.append(logp_of(logits[:1], guesses[:1, 0])[0])
        slots = level.slots if drafter.sequential else torch.zeros_like(level.slots)
        if paths:
            own = torch.log_softmax(ranked, -1, dtype=torch.float32)[slots, guesses[slots, level.ranks]]
            path_logp.append(own + path_logp[-1].index_select(0, level.expand[level.slots]))
        here = drafter.to_target_ids(guesses[slots, level.ranks])
        tokens.append(here)
        if drafter.sequential and depth + 1 < len(layout.levels):
            context = drafter.extend(context.index_select(0, level.slots), here)
    empty = hidden.new_zeros(0, dtype=torch.float32)
    return Draft(torch.cat(tokens), torch.stack(chain_logp) if chain_logp else empty, torch.cat(path_logp) if paths else None)


def top_guesses(logits: Tensor, width: int) -> Tensor:
    """Indices of the `width` largest logits of each row, best first, int64 `[rows, width]`."""
    if width == 1:  # a maximum is five times cheaper than a top-1
        return logits.max(-1, keepdim=True).indices
    return logits.topk(width, -1).indices


def top_logp(logits: Tensor) -> Tensor:
    """Log of the largest probability, float32 `[...]`, from logits `[..., vocabulary]`."""
    wide = logits.float()
    return wide.amax(-1) - wide.logsumexp(-1)


def entropy_of(logits: Tensor) -> Tensor:
    """Entropy in nats, float32 `[...]`, from logits `[..., vocabulary]`."""
    wide = logits.float()
    logp = wide - wide.logsumexp(-1, keepdim=True)
    return -(logp.exp() * logp).sum(-1)


def logp_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log probability of one token of each row, float32 `[rows]`, from logits `[rows, vocabulary]`."""
    wide = logits.float()
    return wide.gather(-1, tokens[:, None])[:, 0] - wide.logsumexp(-1)
