"""Greedy growth: from the evidence of one rollout to an ordering of nodes per maximum depth, whose prefixes are the trees.

EntMTP's Algorithm 1 with ties to the shallower node, then the smaller rank sum. Numpy only; knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.evidence import NodeTable, Trace, walk
from entmtp_calib.topology import Node, Topology, from_lists, tie_break

FORMAT, VERSION = "entmtp-frontier", 1


@dataclass(frozen=True, slots=True)
class Growth:
    """One ordering of nodes: the tree of size n is `order.prefix(n)`.

    max_depth: the bound it grew under; scores: for size n at `n - 1`, mean accept counted at the step boundaries of the tree
    one node smaller (the search's own, biased figure); stopped: why it ended; forwards: of the target, where the search ran it.
    """

    max_depth: int
    order: Topology
    scores: tuple[float, ...]
    stopped: str
    forwards: int = 0


@dataclass(frozen=True, slots=True)
class Frontier:
    """The growths of all maximum depths, over the same evidence."""

    growths: tuple[Growth, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for `frontier.json`."""
        rows = [
            {"max_depth": g.max_depth, "nodes": g.order.to_lists(), "scores": list(g.scores), "stopped": g.stopped}
            | ({"forwards": g.forwards} if g.forwards else {})
            for g in self.growths
        ]
        return {"format": FORMAT, "version": VERSION, "growths": rows}


def frontier_from_json(value: Any) -> Frontier:
    """Read `frontier.json`.

    Raises:
        ArtefactError: another format or version, or a tree that is none.
    """
    try:
        if value["format"] != FORMAT or value["version"] != VERSION:
            raise ArtefactError(f"the frontier has format {value['format']} {value['version']}.", "Run search again.")
        growths = []
        for row in value["growths"]:
            from_lists(row["nodes"], "a tree of the frontier")
            order = Topology(tuple(tuple(node) for node in row["nodes"]))
            growth = Growth(row["max_depth"], order, tuple(row["scores"]), row["stopped"], row.get("forwards", 0))
            if not _sound(growth):
                raise ArtefactError("the frontier's scores and bounds do not fit its trees.", "Run search again with --fresh.")
            growths.append(growth)
    except (KeyError, TypeError):
        raise ArtefactError("the frontier file lacks a field.", "Run search again with --fresh.") from None
    return Frontier(tuple(growths))


def _sound(growth: Growth) -> bool:
    return (
        len(growth.scores) == growth.order.size > 0
        and all(type(score) in (int, float) for score in growth.scores)
        and type(growth.max_depth) is int
        and growth.max_depth >= growth.order.depth
        and isinstance(growth.stopped, str)
        and type(growth.forwards) is int
    )


def search(traces: Sequence[Trace], max_nodes: int, max_depth: int) -> Frontier:
    """Grow one ordering per maximum depth 1 … `max_depth`.

    Args:
        traces: evidence, not empty.
        max_nodes: size at which growth ends, at least 1.
        max_depth: at most the number of heads.

    Raises:
        UsageError: a bound below 1 or a depth that the heads do not have.
    """
    if max_nodes < 1:
        raise UsageError(f"--max-nodes is {max_nodes}.", "Ask for at least 1 node.")
    heads = traces[0].heads
    if not 1 <= max_depth <= heads:
        raise UsageError(f"--max-depth is {max_depth} and there are {heads} heads.", f"Ask for 1 to {heads}.")
    return Frontier(tuple(grow(traces, max_nodes, depth) for depth in range(1, max_depth + 1)))


def grow(traces: Sequence[Trace], max_nodes: int, max_depth: int) -> Growth:
    """Start from the first guess of the first head and add the node that gains most, until nothing gains.

    A candidate's gain is the number of steps of the current tree at which it would be accepted: there the path leaves the tree
    at the candidate's parent and goes on with its rank. Counts are divided by the counted steps, never by a constant.
    """
    order = Topology(((0,),))
    scores = [_first_gain(traces)]
    stopped = f"reached {max_nodes} nodes"
    while order.size < max_nodes:
        accepted, steps, gains = _count(order, traces)
        best = min(order.candidates(max_depth), key=lambda node: (-gains.get(node, 0), *tie_break(node)))
        if not gains.get(best, 0):
            stopped = "no node gains anything"
            break
        order = Topology((*order.nodes, best))
        scores.append((accepted + gains[best]) / steps)
    return Growth(max_depth, order, tuple(scores), stopped)


def _first_gain(traces: Sequence[Trace]) -> float:
    hits = sum(int((trace.ranks[:, 0] == 0).sum()) for trace in traces)
    return hits / sum(map(len, traces))


def _count(topology: Topology, traces: Sequence[Trace]) -> tuple[int, int, dict[Node, int]]:
    """Accepted drafts and steps of a rollout of the tree, and at how many steps each next node would be accepted."""
    table = NodeTable(topology)
    accepted = steps = 0
    gains: dict[Node, int] = {}
    for trace in traces:
        depths, rows = table.follow(trace.ranks)
        at = walk(depths)
        accepted += int(depths[at].sum())
        steps += len(at)
        open_ = at[depths[at] < trace.heads]
        ranks = trace.ranks[open_, depths[open_]]
        pairs, counts = np.unique(np.stack((rows[open_], ranks))[:, ranks >= 0], axis=1, return_counts=True)
        for row, rank, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            node = (*table.nodes[row], rank)
            gains[node] = gains.get(node, 0) + count
    return accepted, steps, gains
