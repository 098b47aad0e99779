"""Trees of other methods from the same evidence: Medusa's closed form and Sequoia's dynamic programme.

Both see hit rates only, and not which ranks follow which: how far growth from traces is ahead of them is what that is worth.
Numpy only.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.evidence import Trace
from entmtp_calib.topology import Node, Topology

_RANKS = 64  # larger ranks are never worth a node


def marginal_tree(traces: Sequence[Trace], size: int, max_depth: int) -> Topology:
    """The `size` nodes with the largest products of per-head hit rates (Medusa, arXiv 2401.10774, section 2.3.2).

    Rates are divided by the counted positions of their own head. Fewer nodes where no other has a product above 0.
    """
    rates = np.minimum.accumulate(hit_rates(traces)[:max_depth], 1)  # a sibling stands behind the likelier one
    found: list[Node] = []
    waiting: list[tuple[float, Node]] = [(-rates[0, 0], (0,))]
    while waiting and len(found) < size:
        value, node = heapq.heappop(waiting)
        if value == 0:
            break
        found.append(node)
        depth, rank = len(node), node[-1]
        if rank + 1 < rates.shape[1]:
            heapq.heappush(waiting, (value / rates[depth - 1, rank] * rates[depth - 1, rank + 1], (*node[:-1], rank + 1)))
        if depth < len(rates):
            heapq.heappush(waiting, (value * rates[depth, 0], (*node, 0)))
    return Topology(tuple(found)).sorted()


def sequoia_tree(traces: Sequence[Trace], size: int, max_depth: int) -> Topology:
    """The best tree of `size` nodes if acceptance depends on the rank alone (Sequoia, arXiv 2402.12374, section 4.1).

    `T[l, m]` is the expected number of tokens of a tree of m nodes, its root included, that is at most l deep. The first children
    are given their shares of the nodes one after the other.
    """
    best, splits = _tables(hit_rates(traces).mean(0), size + 1, max_depth)
    nodes = int(np.isfinite(best[max_depth]).nonzero()[0].max())  # fewer than asked for where a level holds no more
    return Topology(tuple(sorted(_grown(splits, (), nodes, max_depth), key=lambda node: (len(node), node))))


def hit_rates(traces: Sequence[Trace]) -> NDArray[np.float64]:
    """Share of positions whose true token has rank r under head d, `[heads, ranks]`, over the positions that have one."""
    ranks = np.concatenate([trace.ranks for trace in traces])
    return np.stack(
        [np.bincount(own[(own >= 0) & (own < _RANKS)], minlength=_RANKS) / max(1, (own >= 0).sum()) for own in ranks.T]
    )


def _tables(chance: NDArray[np.float64], nodes: int, depth: int) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
    """`T` for every depth and size, and for every depth how many nodes the last of b children gets, `[ranks + 1, sizes]`."""
    best = np.full((depth + 1, nodes + 1), -np.inf)
    best[0, 1] = 1
    splits: list[NDArray[np.int64]] = [np.zeros((0, 0), np.int64)]
    for level in range(1, depth + 1):
        ranks = min(len(chance), nodes - 1)
        gain = np.full((ranks + 1, nodes + 1), -np.inf)  # of b children with m nodes together
        share = np.zeros((ranks + 1, nodes + 1), np.int64)
        gain[0, 0] = 0
        for child in range(1, ranks + 1):
            below = np.where(np.isfinite(best[level - 1]), chance[child - 1], 1) * best[level - 1]  # 0 times no tree is no tree
            for together in range(child, nodes):
                options = gain[child - 1, together - 1 :: -1][:together] + below[1 : together + 1]
                share[child, together] = 1 + int(options.argmax())
                gain[child, together] = options.max()
        best[level, 1:] = 1 + gain[:, :nodes].max(0)
        splits.append(np.vstack((gain[:, :nodes].argmax(0), share[:, :nodes])))
    return best, splits


def _grown(splits: list[NDArray[np.int64]], node: Node, nodes: int, depth: int) -> list[Node]:
    """Nodes below `node`, which is the root of a subtree of `nodes` nodes."""
    below = nodes - 1
    if not below or not depth:
        return []
    table = splits[depth]
    found: list[Node] = []
    for child in range(int(table[0, below]), 0, -1):
        share = int(table[1 + child, below])
        mine = (*node, child - 1)
        found += [mine, *_grown(splits, mine, share, depth - 1)]
        below -= share
    return found
