"""Checks at load: that tree attention is right for this model, and that these heads fit it.

Silent failure is the rule in this field: a mask off by one or heads that never loaded look like low acceptance. Both checks run
on a few tokens and raise instead. Knows no text; the caller gives token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.engine.writer import write
from entmtp_calib.errors import ArtefactError, EntmtpError
from entmtp_calib.topology import Topology

_TREE = Topology(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0)))
_KEPT = (0, 1, 4, 6)  # root, (0,), (0, 1), (0, 1, 0): rows that do not follow one another
_BOUND = {torch.float32: 1e-3, torch.float64: 1e-6}
_SANITY_TOP = 10
_SPREAD = 1e-4  # nats; equal logits give equal confidence up to the order of additions


@torch.inference_mode()
def check_tree_attention(target: Target, ids: Sequence[int]) -> float:
    """Compare a branching tree with separate plain forwards, and the cache after a commit with a straight one.

    Args:
        ids: at least 11 token ids.

    Returns:
        The largest relative error of logits and states seen.

    Raises:
        ArtefactError: the model does not follow the mask, the positions or the cache.
    """
    try:
        worst = _tree_error(target, ids)
    except EntmtpError:
        raise
    except Exception as error:  # a model without explicit masks or positions fails in its own way
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ArtefactError(
            f"{target.name} cannot run a tree: {reason}.", "Use a model that takes masks and positions."
        ) from error
    if not worst <= error_bound(target):
        raise ArtefactError(
            f"{target.name} does not honour tree masks: logits of a tree are off by {worst:.2g} from plain forwards.",
            "Load it with attn_implementation='sdpa' or 'eager', or use another model.",
        )
    return worst


def _tree_error(target: Target, ids: Sequence[int]) -> float:
    """Largest relative error of a branching tree and of a cache after a commit."""
    layout = TreeLayout(_TREE, target.device)
    prefix, tree = list(ids[:4]), torch.tensor(list(ids[4 : 4 + layout.rows]), device=target.device)
    cache = target.new_cache(len(prefix) + layout.rows + 1)
    target.prefill(torch.tensor([prefix], device=target.device), cache)
    if len(cache.seen) != target.layers:
        raise ArtefactError(
            f"{target.name} keeps keys and values for {len(cache.seen)} of {target.layers} layers; the others have a state "
            "that cannot be rolled back.", "Use a model with softmax attention in every layer.")  # fmt: skip
    length = len(prefix)
    slots = torch.arange(length, length + layout.rows, device=target.device)
    cache.place(slots, length + layout.rows)
    mask = torch.cat((layout.mask.new_ones(layout.rows, length), layout.mask), 1)
    out = target.forward(tree[None], mask[None, None], (layout.depths + length)[None], cache)
    worst = 0.0
    for row in range(layout.rows):
        path = layout.paths[row][: int(layout.depths[row]) + 1]
        straight = torch.cat((torch.tensor(prefix, device=target.device), tree[path]))[None]
        worst = max(worst, _error(out.logits[0, row], _plain(target, straight)))
    kept = torch.tensor(_KEPT, device=target.device)
    cache.commit(length, kept)
    return max(worst, _commit_error(target, cache, prefix, tree, kept))


def error_bound(target: Target) -> float:
    """Relative error of logits, states, keys and values that rounding explains; what is wrong is off by much more."""
    return _BOUND.get(target.dtype, 0.1)


@dataclass(frozen=True, slots=True)
class HeadSanity:
    """Share of positions at which each head had the true token among its first ten guesses, and what chance gives."""

    top10: tuple[float, ...]
    chance: float
    positions: int


@torch.inference_mode()
def check_heads(target: Target, drafter: Drafter, prompts: Sequence[Sequence[int]], tokens: int = 24) -> HeadSanity:
    """Let the target write a little and see whether the heads know anything about it.

    Args:
        prompts: a few different prompts as token ids.
        tokens: how many tokens the target writes for each.

    Raises:
        ArtefactError: a head is no better than chance, or its guesses do not depend on its input.
    """
    counts = torch.zeros(drafter.depth)
    seen = torch.zeros(drafter.depth)
    firsts: set[int] = set()
    roots: set[int] = set()
    confidence: list[torch.Tensor] = []
    for index, text in write(target, prompts, StopRule(target.end_ids, tokens), len(prompts)):
        trace = trace_text(target, drafter, "", prompts[index], text)
        known = trace.ranks >= 0
        counts += torch.from_numpy(((trace.ranks < _SANITY_TOP) & known).sum(0))
        seen += torch.from_numpy(known.sum(0))
        firsts.update(trace.first_guesses.tolist())
        roots.update(text)
        confidence.append(torch.from_numpy(trace.chain_logp))
    chance = min(1.0, _SANITY_TOP / drafter.vocabulary)
    sanity = HeadSanity(tuple((counts / seen.clamp(min=1)).tolist()), chance, int(seen[0]))
    if len(roots) > 2:
        _refuse_constant(sanity, firsts, torch.cat(confidence))
    _judge(sanity)
    return sanity


def _refuse_constant(sanity: HeadSanity, firsts: set[int], confidence: torch.Tensor) -> None:
    """A head that does not look at its input is equally sure everywhere; frequent tokens can still lift it above chance."""
    spread = (confidence.amax(0) - confidence.amin(0)).tolist()
    for head, (width, rate) in enumerate(zip(spread, sanity.top10, strict=True), 1):
        if (width < _SPREAD and rate < 0.9) or (head == 1 and len(firsts) == 1):
            raise ArtefactError(
                f"head {head} guesses the same token whatever it sees.", "Its weights are damaged or were not loaded."
            )


def _judge(sanity: HeadSanity) -> None:
    noise = 3 * (sanity.chance * (1 - sanity.chance) / max(1, sanity.positions)) ** 0.5
    for head, rate in enumerate(sanity.top10, 1):
        if rate <= min(sanity.chance + noise, 0.5) and sanity.positions >= 20:
            raise ArtefactError(
                f"head {head} has the next token among its first {_SANITY_TOP} guesses in {rate:.1%} of {sanity.positions} "
                f"positions; chance gives {sanity.chance:.1%}.",
                "The heads were made for another model, or their file is damaged.",
            )


def _plain(target: Target, ids: torch.Tensor) -> torch.Tensor:
    """Logits after the last of `ids`, from a forward of its own."""
    cache = target.new_cache(ids.shape[1])
    return target.prefill(ids, cache).logits[0, -1]


def _commit_error(target: Target, cache: KVCache, prefix: list[int], tree: torch.Tensor, kept: torch.Tensor) -> float:
    """Largest relative error of the committed cache against the cache of a straight forward."""
    straight = torch.cat((torch.tensor(prefix, device=target.device), tree[kept]))[None]
    other = target.new_cache(straight.shape[1])
    target.prefill(straight, other)
    assert cache.store is not None
    assert other.store is not None
    end = straight.shape[1]
    return _error(cache.store[..., :end, :], other.store[..., :end, :])


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative error in the 2-norm; NaN counts as infinite."""
    error = float((got.float() - wanted.float()).norm() / wanted.float().norm().clamp(min=1e-12))
    return error if error == error else float("inf")
