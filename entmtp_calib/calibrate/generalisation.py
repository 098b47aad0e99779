"""How the frontier holds on prompts that search did not see, beside the trees of other methods at the same sizes.

By replay of traces, numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from entmtp_calib.calibrate.baseline_trees import marginal_tree, sequoia_tree
from entmtp_calib.calibrate.candidates import best_of_size
from entmtp_calib.calibrate.search import Frontier
from entmtp_calib.evidence import Trace, mean_accept


@dataclass(frozen=True, slots=True)
class Generalisation:
    """Mean accept of the best grown tree of one size, and of others of that size.

    fitted: on the search prompts; held_out, marginal, sequoia: on other prompts, each tree at the steps of its own walk.
    """

    size: int
    depth: int
    fitted: float
    held_out: float
    marginal: float
    sequoia: float

    @property
    def gap(self) -> float:
        """Fitted over held-out mean accept, minus 1; NaN where nothing is accepted."""
        return self.fitted / self.held_out - 1 if self.held_out else float("nan")


def generalisation(frontier: Frontier, seen: Sequence[Trace], unseen: Sequence[Trace]) -> list[Generalisation]:
    """One row for every size that is a power of two, and for the largest.

    Args:
        seen: traces that the frontier was grown on; unseen: traces of other prompts.
    """
    largest = max(growth.order.size for growth in frontier.growths)
    deepest = max(growth.max_depth for growth in frontier.growths)
    rows = []
    for size in sorted({2**k for k in range(12) if 2**k < largest} | {largest}):
        tree = best_of_size(frontier, seen, size).topology
        others = (marginal_tree(seen, size, deepest), sequoia_tree(seen, size, deepest))
        held_out = [mean_accept(kind, unseen) for kind in (tree, *others)]
        rows.append(Generalisation(size, tree.depth, mean_accept(tree, seen), *held_out))
    return rows
