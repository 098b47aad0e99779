"""A tree that is made at every step: the n nodes with the greatest path values of what was drafted (after EAGLE-2).

Needs the heads once more: a trace tells where the true text lies in the guesses, not which other guesses looked better. The
drafted tree is filled at every position of a written text, and for the nodes along the true text it is kept how many other nodes
have a greater value. From that the acceptance of the dynamic tree of any size is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from entmtp_calib.calibrate.thresholds import Costs, Gain, best_static, evaluate, fit_ladder, gain
from entmtp_calib.engine.drafter import Drafter, draft_tree
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.noise import Perturbation
from entmtp_calib.engine.target import Target
from entmtp_calib.evidence import NodeTable, Trace
from entmtp_calib.policy import Static
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import Signal
from entmtp_calib.topology import Topology

Placed = tuple[Sequence[Trace], Sequence[NDArray[np.int64]]]
_LAST = 2**30  # place of what is not in the drafted tree


@torch.inference_mode()
def places(
    target: Target, drafter: Drafter, drafted: Topology, prompt: Sequence[int], trace: Trace, ranking: Perturbation | None = None
) -> NDArray[np.int64]:
    """How many drafted nodes go before each node along the true text, int64 `[n, depth]`; a huge number where it was not drafted.

    Nodes are ordered by path value, of equals the shallower first, then the smaller ranks. Values fall along a path and with the
    rank, so the first n are a tree without gaps, whatever n.
    """
    layout = TreeLayout(drafted, target.device)
    table = NodeTable(layout.topology)
    ids = torch.tensor([[*prompt, *trace.tokens.tolist()]], device=target.device)
    columns = torch.arange(ids.shape[1], device=target.device)
    out = target.forward(ids, None, columns[None], keep=columns[:1])
    states = drafter.read(out.hidden[0])[len(prompt) - 1 : -1]
    tokens = ids[0, len(prompt) :]
    found = np.full((len(trace), drafted.depth), _LAST, np.int64)
    for here in range(len(trace)):
        root, position = tokens[here : here + 1], columns[len(prompt) + here : len(prompt) + here + 1]
        values = draft_tree(drafter, layout, states[here : here + 1], root, False, ranking, position, paths=True).path_logp
        assert values is not None
        order = np.empty(drafted.size, np.int64)
        order[np.argsort(-values[1:].cpu().numpy(), kind="stable")] = np.arange(drafted.size)
        for depth in range(1, min(drafted.depth, trace.heads) + 1):
            reached, row = table.follow(trace.ranks[here : here + 1, :depth])
            if reached[0] < depth:
                break
            found[here, depth - 1] = order[row[0] - 1]
    return found


def dynamic_depths(found: NDArray[np.int64], size: int) -> NDArray[np.int32]:
    """Drafts that the dynamic tree of a size accepts at every position, from what `places` gives, int32 `[n]`."""
    return (found < size).cumprod(1).sum(1).astype(np.int32)


@dataclass(frozen=True, slots=True)
class SameSize:
    """A static tree and the dynamic one of its size on the test prompts.

    accepted: mean accepted drafts per step; tokens_per_s: modelled; gain: of the dynamic tree over the static one.
    """

    size: int
    static_accepted: float
    dynamic_accepted: float
    static_tokens_per_s: float
    dynamic_tokens_per_s: float
    gain: Gain


@dataclass(frozen=True, slots=True)
class Dynamic:
    """How dynamic trees do.

    drafted: nodes that are drafted to choose from; rows: by size; best: the best size on the fit prompts over the best static
    tree; ladder: a ladder over sizes, over the same; prompts: fitted to and judged on.
    """

    drafted: int
    rows: tuple[SameSize, ...]
    best: Gain
    ladder: Gain
    prompts: tuple[int, int]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def compare_dynamic(
    trees: Sequence[Topology], costs: Costs, drafted: int, draft: float, signal: Signal, bins: int, seed: int, fit: Placed,
    test: Placed,
) -> Dynamic:  # fmt: skip
    """Dynamic trees beside static ones of the same sizes, by replay.

    Choosing the nodes and building their mask is taken to cost nothing, which flatters the dynamic trees.

    Args:
        trees: static trees, ascending, the first empty; costs: of their steps.
        drafted: nodes that the dynamic trees are chosen from; draft: seconds to draft them.
        fit, test: traces, and `places` for each.
    """
    sizes = [tree.size for tree in trees]
    static = [Replayer(trees, traces, signal) for traces, _ in (fit, test)]
    dynamic = [
        Replayer(trees, traces, signal, [np.stack([dynamic_depths(place, size) for size in sizes], 1) for place in found])
        for traces, found in (fit, test)
    ]
    verify = np.asarray(costs.alone) - costs.draft
    prices = Costs(tuple(verify + draft), (draft,) * len(sizes), (draft,) * len(sizes))
    rows = []
    for index, size in enumerate(sizes):
        one, other = (evaluate(Static(index), part[1], price) for part, price in ((static, costs), (dynamic, prices)))
        speeds = one.tokens_per_s, other.tokens_per_s
        rows.append(SameSize(size, one.mean_accept, other.mean_accept, *speeds, gain(other, one, seed)))
    base = evaluate(best_static(static[0], costs).policy, static[1], costs)
    single, ladder = best_static(dynamic[0], prices), fit_ladder(dynamic[0], prices, bins)
    best, stepped = (gain(evaluate(found.policy, dynamic[1], prices), base, seed) for found in (single, ladder))
    return Dynamic(drafted, tuple(rows), best, stepped, (len(fit[0]), len(test[0])))


def many_places(
    target: Target, drafter: Drafter, drafted: Topology, prompts: Sequence[tuple[str, Sequence[int]]], traces: Sequence[Trace],
    ranking: Perturbation | None = None, on_prompt: Callable[[int], None] | None = None,
) -> list[NDArray[np.int64]]:  # fmt: skip
    """`places` for several texts."""
    found = []
    for (_name, ids), trace in zip(prompts, traces, strict=True):
        found.append(places(target, drafter, drafted, ids, trace, ranking))
        if on_prompt:
            on_prompt(len(found))
    return found
