"""The data of the trees' figure: how often every node is accepted, and of a dynamic policy's draft also how often it is verified.

Replayed over traces. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.bank import TopologyBank
from entmtp_calib.evidence import NodeTable, Trace, accepted_depths, walk
from entmtp_calib.policy import Dynamic
from entmtp_calib.report.figure import Figure, Missing, ratio_interval, span
from entmtp_calib.report.material import Material, read_drafts
from entmtp_calib.report.replays import Replays, of_text
from entmtp_calib.report.switching import replayed_bank
from entmtp_calib.topology import Topology

TREES = "trees"
TITLE = "The trees of the bank, and how often each node is accepted"
_COLUMNS = ("tree", "node", "depth", "rank", "accepted", "low", "high", "steps", "verified")
_MOST_TREES = 8  # that are drawn
Steps = tuple[NDArray[Any], NDArray[Any]]
"""Positions and accepted drafts of the steps of a text, `[steps]` each."""


def trees(material: Material) -> Figure | Missing:
    """Every node of the bank's trees, and of the tree that its dynamic policy drafts, with the share of steps that accept it."""
    bank, part = replayed_bank(material, TREES, TITLE), material.unseen
    if isinstance(bank, Missing):
        return bank
    rows = [
        {"tree": tree.label} | row
        for tree in bank.trees if tree.topology.nodes
        for row in node_acceptance(tree.topology, material.traces[part])
    ]  # fmt: skip
    sentence = _trees_sentence(rows) if rows else ""
    drafted = _drafted_rows(material, bank)
    if not rows and not drafted:
        return Missing(TREES, TITLE, "the bank holds plain decoding alone", "")
    drawn = _drawn(bank) + list(dict.fromkeys(row["tree"] for row in drafted))
    notes = _notes(part, bool(drafted), len({row["tree"] for row in rows + drafted}) - len(drawn))
    return Figure(TREES, TITLE, sentence, _COLUMNS, rows + drafted, (part,), {"drawn": drawn}, notes)


def _drawn(bank: TopologyBank) -> list[str]:
    """As many of the bank's trees as a figure holds, first those that policies take, in the bank's order."""
    taken = {index for policy in bank.policies.values() if not isinstance(policy, Dynamic) for index in policy.members}
    order = sorted(range(len(bank.trees)), key=lambda index: (index not in taken, index))
    chosen = [index for index in order if bank.trees[index].topology.nodes][:_MOST_TREES]
    return [bank.trees[index].label for index in sorted(chosen)]


def _notes(part: str, drafted: bool, left_out: int) -> tuple[str, ...]:
    shares = (
        f"Share of the tree's own steps at which a node is accepted, by replay over the {part} prompts. The number before "
        f"the share is the rank of the guess, 0 for a head's first. Intervals are in figures/{TREES}.csv: 95 %, bootstrap over "
        "prompts."
    )
    more = "A dynamic policy drafts more nodes than it verifies; the share of steps that verify a node is there, too."
    rest = f"{left_out} more trees of the bank are in figures/{TREES}.csv."
    return (shares, *([more] if drafted else []), *([rest] if left_out else []))


def _drafted_rows(material: Material, bank: TopologyBank) -> list[dict[str, Any]]:
    """Rows of what each dynamic policy drafts, as far as it can be replayed."""
    rows: list[dict[str, Any]] = []
    for name, policy in bank.policies.items():
        if isinstance(policy, Dynamic):
            sizes = " or ".join(map(str, dict.fromkeys(policy.sizes)))
            label = f"{name}, {sizes} of {policy.drafted.size} drafted"
            rows += [{"tree": label} | row for row in drafted_acceptance(material, bank, policy)]
    return rows


def drafted_acceptance(material: Material, bank: TopologyBank, policy: Dynamic) -> list[dict[str, Any]]:
    """How often each node that a dynamic policy drafts is accepted, as `node_acceptance` has it, and verified (share of steps).

    Empty where the run does not hold the path values of its unseen texts.
    """
    replays = Replays(bank, material.traces[material.unseen], read_drafts(material, material.unseen))
    if not replays.can(policy):
        return []
    run = replays.run(policy)
    parts = [of_text(run, text) for text in range(len(replays.traces))]
    rows = node_acceptance(policy.drafted, replays.traces, [(part.positions, part.accepted) for part in parts])
    return [row | {"verified": share} for row, share in zip(rows, replays.verified_shares(policy, run), strict=True)]


def node_acceptance(topology: Topology, traces: Sequence[Trace], steps: Sequence[Steps] | None = None) -> list[dict[str, Any]]:
    """How often each node is accepted.

    Args:
        steps: per text; None for those of the tree's own walk.

    Returns:
        One row a node in the order (depth, ranks): node as text, depth, rank, accepted (share of steps) with low and high, steps.
    """
    table = NodeTable(topology.sorted())
    places = {node: place for place, node in enumerate(table.nodes)}
    made = [_own_steps(topology, trace) for trace in traces] if steps is None else steps
    counts = np.array([_accepted_at(table, trace, *own) for trace, own in zip(traces, made, strict=True)])
    for place in range(len(table.nodes) - 1, 0, -1):  # deepest first: who is accepted brings all above it
        counts[:, places[table.nodes[place][:-1]]] += counts[:, place]
    many, rows = [len(positions) for positions, _accepted in made], []
    for place, node in enumerate(table.nodes[1:], 1):
        share, low, high = ratio_interval(counts[:, place].tolist(), many)
        rows.append({"node": ".".join(map(str, node)), "depth": len(node), "rank": node[-1], "accepted": share, "low": low,
                     "high": high, "steps": sum(many)})  # fmt: skip
    return rows


def _own_steps(topology: Topology, trace: Trace) -> Steps:
    depths = accepted_depths(topology, trace)
    at = walk(depths)
    return at, depths[at]


def _accepted_at(table: NodeTable, trace: Trace, positions: NDArray[Any], accepted: NDArray[Any]) -> NDArray[Any]:
    """How often each node is the last that is accepted, int64 `[nodes]`, the root first."""
    ranks = np.where(np.arange(trace.heads) < accepted[:, None], trace.ranks[positions], -1)
    _depths, last = table.follow(ranks)
    return np.bincount(last, minlength=len(table.nodes))


def _trees_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    parts = [[row for row in rows if row["tree"] == label] for label in dict.fromkeys(row["tree"] for row in rows)]
    largest = max(parts, key=len)
    best, least = max(largest, key=lambda row: row["accepted"]), min(largest, key=lambda row: row["accepted"])
    return (
        f"In {largest[0]['tree']}, the largest, node {best['node']} is accepted at {best['accepted']:.0%} of the steps"
        f"{span(best['low'], best['high'], '.0%')} and node {least['node']} at {least['accepted']:.1%}: "
        "a node is worth its row only where that share pays for it."
    )
