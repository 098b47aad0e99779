"""The data of figures about what is accepted: frontier and hit rates.

Everything but the rollouts' own counts is replayed over traces. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from entmtp_calib.calibrate.search import Growth
from entmtp_calib.evidence import Trace, accepted_depths, walk
from entmtp_calib.report.figure import NONE, Figure, Missing, ratio_interval, span
from entmtp_calib.report.material import Material
from entmtp_calib.topology import Topology

RANKS = 10
_SIZES = 14  # sizes of each growth that are replayed, evenly spaced in their logarithm
FRONTIER, HITS = "frontier", "hit-rates"
TITLES = {
    FRONTIER: "Accepted drafts by size and depth of the tree",
    HITS: "How often the heads are right",
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
    prompts = len(material.traces.get("search", ()))
    rows = [_point(growth, size, SEARCHED, (score, NONE, NONE), prompts) for size, score in enumerate(growth.scores, 1)]
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
        bias = searched["mean_accept"] / replayed["mean_accept"] - 1 if replayed["mean_accept"] else NONE
        text += f"; the best tree at its own steps accepts {replayed['mean_accept']:.2f}, so the count is off by {bias:+.1%}"
    if held_out:
        interval = span(held_out["low"], held_out["high"])
        text += f"; prompts that the search did not see give at most {held_out['mean_accept']:.2f}{interval}"
    alone = best(ROLLOUT)
    if alone:
        interval = f"{alone['mean_accept']:.2f}{span(alone['low'], alone['high'])}"
        text += f"; the tree of {alone['nodes']} nodes that decoded new prompts by itself accepts {interval}"
    return text + "."
