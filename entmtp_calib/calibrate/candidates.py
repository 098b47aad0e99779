"""Which trees of the frontier go on to recalibration and timing.

Numpy only; knows sizes and mean accept, not seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from entmtp_calib.calibrate.search import Frontier
from entmtp_calib.errors import UsageError
from entmtp_calib.evidence import Trace, mean_accept
from entmtp_calib.topology import Topology, published_default

DEFAULT_LABEL = "default-63"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tree with a name.

    searched: mean accept that growth counted for it, NaN if it was not grown; replayed: mean accept of its own walk over the
    search prompts, NaN if nothing can be replayed.
    """

    label: str
    topology: Topology
    searched: float
    replayed: float


def choose_candidates(
    frontier: Frontier,
    traces: Sequence[Trace] | None,
    count: int,
    heads: int,
    added: Mapping[str, Topology] | None = None,
) -> list[Candidate]:
    """Trees of sizes evenly spaced in their logarithm, at each size the growth with the best mean accept, and the default.

    Ties go to the smaller maximum depth. The published 63-node tree comes last if the heads can fill it.

    Args:
        traces: of the search prompts; None where acceptance cannot be replayed, so that the search's own scores must do.
        heads: how deep a tree can be.
        added: further trees by label, behind the others.

    Raises:
        UsageError: a count below 1, or a label that is taken.
    """
    if count < 1:
        raise UsageError(f"--trees is {count}.", "Ask for at least 1 tree.")
    largest = max(growth.order.size for growth in frontier.growths)
    sizes = sorted({round(size) for size in np.geomspace(1, largest, count).tolist()})
    chosen = [best_of_size(frontier, traces, size) for size in sizes]
    default = published_default()
    if default.depth <= heads:
        chosen.append(Candidate(DEFAULT_LABEL, default, float("nan"), _replayed(default, traces)))
    for label, tree in sorted((added or {}).items()):
        if label in {candidate.label for candidate in chosen}:
            raise UsageError(f"the run has a tree called {label!r} itself.", "Import yours with another --label.")
        chosen.append(Candidate(label, tree.sorted(), float("nan"), _replayed(tree, traces)))
    return chosen


def best_of_size(frontier: Frontier, traces: Sequence[Trace] | None, size: int) -> Candidate:
    """Of all growths that have a tree of this size, the one with the best mean accept; ties go to the shallower tree."""
    found = []
    for growth in frontier.growths:
        if growth.order.size >= size:
            tree, score = growth.order.prefix(size), growth.scores[size - 1]
            replayed = _replayed(tree, traces)
            found.append((-(score if traces is None else replayed), tree.depth, score, replayed, tree))
    _key, depth, score, replayed, tree = min(found, key=lambda item: item[:2])
    return Candidate(f"n{size}-d{depth}", tree.sorted(), score, replayed)


def _replayed(tree: Topology, traces: Sequence[Trace] | None) -> float:
    return float("nan") if traces is None else mean_accept(tree, traces)
