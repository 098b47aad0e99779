"""The data of figures about what is accepted: frontier, hit rates, and the nodes of the bank's trees.

Everything but the rollouts' own counts is replayed over traces. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from entmtp_calib.calibrate.search import Growth
from entmtp_calib.evidence import NodeTable, Trace, accepted_depths, walk
from entmtp_calib.report.figure import Figure, Missing, ratio_interval, span
from entmtp_calib.report.material import Material
from entmtp_calib.topology import Node, Topology

RANKS = 10
_SIZES = 14  # sizes of each growth that are replayed, evenly spaced in their logarithm
FRONTIER, HITS, TREES = "frontier", "hit-rates", "trees"
TITLES = {
    FRONTIER: "Accepted drafts by size and depth of the tree",
    HITS: "How often the heads are right",
    TREES: "The trees of the bank, and how often each node is accepted",
}
NO_REPLAY = "with typical acceptance the text depends on the tree, so nothing can be replayed"
SEARCHED, REPLAYED, HELD_OUT, ROLLOUT = "search", "replay", "held-out replay", "rollout"


def frontier(material: Material) -> Figure | Missing:
    """Mean accept of every growth: as the search counted it, at the trees' own steps, and on prompts that it did not see."""
    name = FRONTIER
    if material.frontier is None:
        return Missing(name, TITLES[name], "the search has not ended", "entmtp search")
    rows = [row for growth in material.frontier.growths for row in _growth_points(growth, material)] + _rollout_points(material)
    columns = ("max_depth", "nodes", "kind", "mean_accept", "low", "high", "prompts")
    rests_on = ("search", "fit", "recalibrate")
    return Figure(name, TITLES[name], _frontier_sentence(rows), columns, rows, rests_on, notes=(
        "Accepted drafts per step, root excluded, pooled over prompts. "
        "The search counts a node at the steps of the tree one node smaller, which biases it; "
        "the other lines take each tree at its own steps. Intervals: 95 %, bootstrap over prompts.",
    ))  # fmt: skip


def hit_rates(material: Material) -> Figure | Missing:
    """Share of positions whose true token is among a head's first guesses, given the true tokens before it."""
    part = material.unseen
    if not part:
        return Missing(HITS, TITLES[HITS], "there is no whole set of traces", "entmtp search")
    traces = material.traces[part]
    rows = []
    for head in range(traces[0].heads):
        ranks = [trace.ranks[:, head][trace.ranks[:, head] >= 0] for trace in traces]
        known = [len(own) for own in ranks]
        for rank in range(RANKS):
            share = ratio_interval([int((own == rank).sum()) for own in ranks], known)
            within = ratio_interval([int((own <= rank).sum()) for own in ranks], known)
            rows.append({"depth": head + 1, "rank": rank, "share": share[0], "within": within[0], "low": within[1],
                         "high": within[2], "positions": sum(known)})  # fmt: skip
    columns = ("depth", "rank", "share", "within", "low", "high", "positions")
    first, tenth = ([row for row in rows if row["rank"] == rank] for rank in (0, RANKS - 1))
    sentence = (
        f"The first guess of head 1 is right at {first[0]['within']:.0%} of the positions and that of head {len(first)} at "
        f"{first[-1]['within']:.0%}; within ten guesses it is {tenth[0]['within']:.0%} and {tenth[-1]['within']:.0%}."
    )
    return Figure(HITS, TITLES[HITS], sentence, columns, rows, (part,), notes=(
        f"Over all positions of the {part} prompts' texts, each head given the true tokens before it: "
        "in a tree a head is only asked where the guesses above it were right. Intervals: 95 %, bootstrap over prompts.",
    ))  # fmt: skip


def trees(material: Material) -> Figure | Missing:
    """Every node of the bank's trees with the share of steps at which it is accepted."""
    reason = ""
    if material.bank is None:
        reason, hint = "there is no bank", "entmtp fit-thresholds"
    elif not material.replayable:
        reason, hint = NO_REPLAY, ""
    elif not material.unseen:
        reason, hint = "there is no whole set of traces", "entmtp search"
    if reason or material.bank is None:
        return Missing(TREES, TITLES[TREES], reason, hint)
    part = material.unseen
    rows = [
        {"tree": tree.label} | row
        for tree in material.bank.trees if tree.topology.nodes
        for row in node_acceptance(tree.topology, material.traces[part])
    ]  # fmt: skip
    if not rows:
        return Missing(TREES, TITLES[TREES], "the bank holds plain decoding alone", "")
    columns = ("tree", "node", "depth", "rank", "accepted", "low", "high", "steps")
    return Figure(TREES, TITLES[TREES], _trees_sentence(rows), columns, rows, (part,), notes=(
        f"Share of the tree's own steps at which a node is accepted, by replay over the {part} prompts. The number before the "
        "share is the rank of the guess. Intervals in the CSV: 95 %, bootstrap over prompts.",
    ))  # fmt: skip


def node_acceptance(topology: Topology, traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """How often each node is accepted at the steps of the tree's own walk.

    Returns:
        One row a node in the order (depth, ranks): node as text, depth, rank, accepted (share of steps) with low and high, steps.
    """
    tree = topology.sorted()
    table = NodeTable(tree)
    counts, steps = np.zeros((len(traces), len(table.nodes)), int), []
    for number, trace in enumerate(traces):
        depths, last = table.follow(trace.ranks)
        at = walk(depths)
        counts[number] = np.bincount(last[at], minlength=len(table.nodes))
        steps.append(len(at))
    index: Mapping[Node, int] = {node: place for place, node in enumerate(table.nodes)}
    for place in range(len(table.nodes) - 1, 0, -1):  # deepest first: who is accepted brings all above it
        counts[:, index[table.nodes[place][:-1]]] += counts[:, place]
    rows = []
    for place, node in enumerate(table.nodes[1:], 1):
        share, low, high = ratio_interval(counts[:, place].tolist(), steps)
        rows.append({"node": ".".join(map(str, node)), "depth": len(node), "rank": node[-1], "accepted": share, "low": low,
                     "high": high, "steps": sum(steps)})  # fmt: skip
    return rows


def accept_interval(topology: Topology, traces: Sequence[Trace]) -> tuple[float, float, float]:
    """Mean accept of a tree's own walk over traces, with its interval over prompts."""
    accepted, steps = [], []
    for trace in traces:
        depths = accepted_depths(topology, trace)
        at = walk(depths)
        accepted.append(int(depths[at].sum()))
        steps.append(len(at))
    return ratio_interval(accepted, steps)


def _growth_points(growth: Growth, material: Material) -> list[dict[str, Any]]:
    """What the search counted at every size, and at some sizes what replay gives on the search prompts and on new ones."""
    prompts, none = len(material.traces.get("search", ())), float("nan")
    rows = [_point(growth, size, SEARCHED, (score, none, none), prompts) for size, score in enumerate(growth.scores, 1)]
    for kind, part in ((REPLAYED, "search"), (HELD_OUT, "fit")):
        traces = material.traces.get(part, ()) if material.replayable else ()
        for size in _sizes(growth.order.size) if traces else ():
            rows.append(_point(growth, size, kind, accept_interval(growth.order.prefix(size), traces), len(traces)))
    return rows


def _point(growth: Growth, size: int, kind: str, found: tuple[float, float, float], prompts: int) -> dict[str, Any]:
    value, low, high = found
    return {"max_depth": growth.max_depth, "nodes": size, "kind": kind, "mean_accept": value, "low": low, "high": high,
            "prompts": prompts}  # fmt: skip


def _rollout_points(material: Material) -> list[dict[str, Any]]:
    """Trees that decoded by themselves, each under the smallest bound on depth under which it grew."""
    assert material.frontier is not None
    rows = []
    for item in material.candidates:
        size, own = item.topology.size, material.rollouts.get(item.label)
        grown = [g for g in material.frontier.growths if g.order.prefix(size).sorted() == item.topology.sorted()]
        if own and grown:
            found = ratio_interval([row["accepted"] for row in own], [row["steps"] for row in own])
            rows.append(_point(grown[0], size, ROLLOUT, found, len(own)))
    return rows


def _sizes(largest: int) -> list[int]:
    return sorted({round(size) for size in np.geomspace(1, largest, _SIZES).tolist()})


def _frontier_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    def best(kind: str) -> Mapping[str, Any] | None:
        own = [row for row in rows if row["kind"] == kind]
        return max(own, key=lambda row: (row["mean_accept"], -row["nodes"])) if own else None

    searched, held_out, replayed = best(SEARCHED), best(HELD_OUT), best(REPLAYED)
    assert searched is not None
    text = f"The search counts up to {searched['mean_accept']:.2f} accepted drafts per step, at {searched['nodes']} nodes"
    if replayed:
        bias = searched["mean_accept"] / replayed["mean_accept"] - 1 if replayed["mean_accept"] else float("nan")
        text += f"; the best tree at its own steps accepts {replayed['mean_accept']:.2f}, so the count is off by {bias:+.1%}"
    if held_out:
        interval = span(held_out["low"], held_out["high"])
        text += f"; prompts that the search did not see give at most {held_out['mean_accept']:.2f}{interval}"
    return text + "."


def _trees_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    parts = [[row for row in rows if row["tree"] == label] for label in dict.fromkeys(row["tree"] for row in rows)]
    largest = max(parts, key=len)
    best, least = max(largest, key=lambda row: row["accepted"]), min(largest, key=lambda row: row["accepted"])
    return (
        f"In {largest[0]['tree']}, the largest, node {best['node']} is accepted at {best['accepted']:.0%} of the steps"
        f"{span(best['low'], best['high'], '.0%')} and node {least['node']} at {least['accepted']:.1%}: "
        "a node is worth its row only where that share pays for it."
    )
