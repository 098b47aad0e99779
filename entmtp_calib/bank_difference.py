"""What two banks differ in: trees node by node, and figures that lie apart by more than their intervals allow.

Reads banks, and the recalibrations beside them for intervals of acceptance. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from entmtp_calib.bank import BankTree, TopologyBank, load_bank
from entmtp_calib.rundir import STAGES
from entmtp_calib.storage import Journal
from entmtp_calib.topology import Node

Interval = tuple[float, float]
_RESAMPLES = 1000
_LEVEL = 0.95
_SAME = ("cpu", "device", "dtype", "graphs")


@dataclass(frozen=True, slots=True)
class Source:
    """A bank with what lies beside it. accept: 95 % intervals of mean accept by label, where a recalibration is there."""

    path: Path
    bank: TopologyBank
    accept: Mapping[str, Interval]


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure in both banks; intervals are None where none is known, and so is `apart`, whether they differ beyond noise."""

    tree: str
    what: str
    first: float
    second: float
    first_interval: Interval | None
    second_interval: Interval | None
    apart: bool | None = None


@dataclass(frozen=True, slots=True)
class Lone:
    """A tree that only one bank has, beside the most similar one of the other: nodes of either that the other lacks."""

    label: str
    size: int
    nearest: str
    only_here: int
    only_there: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Two banks side by side.

    shared: labels of trees that both have; pairs: their figures; first_only, second_only: the other trees; untimed: why timings
    are not compared, "" if they are; remarks: what else makes figures differ; verdict: in words.
    """

    tasks: tuple[str, str]
    shared: tuple[str, ...]
    pairs: tuple[Pair, ...]
    first_only: tuple[Lone, ...]
    second_only: tuple[Lone, ...]
    untimed: str
    remarks: tuple[str, ...]
    verdict: str


def read_source(path: Path) -> Source:
    """A bank from its file or its run folder.

    Raises:
        ArtefactError: no bank, or a damaged one.
    """
    file = path / "bank.json" if path.is_dir() else path
    bank = load_bank(file)
    journal = Journal(file.parent / STAGES["recalibrate"][0])
    rows = journal.rows()[1:] if bank.acceptance["rule"] == "exact" else []  # else the search prompts are among them
    return Source(file, bank, accept_intervals(rows))


def accept_intervals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
    """95 % bootstrap intervals of pooled mean accept over prompts, for every tree with at least two.

    Args:
        rows: of a recalibration.
    """
    found: dict[str, Interval] = {}
    for label in sorted({row["tree"] for row in rows}):
        counts = np.asarray([(row["accepted"], row["steps"]) for row in rows if row["tree"] == label], np.float64)
        if len(counts) > 1:
            picks = np.random.default_rng(0).integers(0, len(counts), (_RESAMPLES, len(counts)))
            sums = counts[picks].sum(1)
            low, high = np.quantile(sums[:, 0] / sums[:, 1], (0.025, 0.975))
            found[label] = float(low), float(high)
    return found


def compare_banks(first: Source, second: Source) -> Difference:
    """Everything that two banks differ in."""
    untimed = _untimed(first.bank, second.bank)
    theirs = {frozenset(tree.topology.nodes): tree for tree in second.bank.trees}
    both = [(tree, theirs[key]) for tree in first.bank.trees if (key := frozenset(tree.topology.nodes)) in theirs]
    pairs = [pair for ours, other in both if ours.topology.size for pair in _figures(first, second, ours, other, not untimed)]
    best = _best(first.bank), _best(second.bank)
    if not untimed and best[0].topology.nodes != best[1].topology.nodes:
        pairs.append(_speedup(f"best ({best[0].label}, {best[1].label})", *best))
    judged = _judged(pairs)
    shared = {tree.label for tree, _other in both}, {tree.label for _tree, tree in both}
    return Difference(
        tasks=(first.bank.task, second.bank.task),
        shared=tuple(tree.label for tree, _other in both),
        pairs=judged,
        first_only=_lone(first.bank, second.bank, shared[0]),
        second_only=_lone(second.bank, first.bank, shared[1]),
        untimed=untimed,
        remarks=_remarks(first.bank, second.bank),
        verdict=_verdict(judged, untimed),
    )


def _untimed(first: TopologyBank, second: TopologyBank) -> str:
    """Why the timings of two banks cannot be compared, or ""."""
    other = [f"{name} {first.measured.get(name)} and {second.measured.get(name)}" for name in _SAME
             if first.measured.get(name) != second.measured.get(name)]  # fmt: skip
    return ", ".join(other)


def _figures(first: Source, second: Source, ours: BankTree, theirs: BankTree, timed: bool) -> list[Pair]:
    accept = Pair(ours.label, "mean accept", ours.figures["mean_accept"], theirs.figures["mean_accept"],
                  first.accept.get(ours.label), second.accept.get(theirs.label))  # fmt: skip
    return [accept, _speedup(ours.label, ours, theirs)] if timed else [accept]


def _speedup(label: str, ours: BankTree, theirs: BankTree) -> Pair:
    first, second = ((tree.figures["speedup_low"], tree.figures["speedup_high"]) for tree in (ours, theirs))
    return Pair(label, "speedup", ours.figures["speedup"], theirs.figures["speedup"], first, second)


def _judged(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The pairs with a judgement; all of them together are wrong in one case in twenty (Bonferroni)."""
    known = [pair for pair in pairs if pair.first_interval and pair.second_interval]
    quantile = NormalDist().inv_cdf(1 - (1 - _LEVEL) / 2 / max(1, len(known)))
    return tuple(_judge(pair, quantile) for pair in pairs)


def _judge(pair: Pair, quantile: float) -> Pair:
    if not pair.first_interval or not pair.second_interval:
        return pair
    unit = 2 * NormalDist().inv_cdf(0.5 + _LEVEL / 2)
    first, second = ((high - low) / unit for low, high in (pair.first_interval, pair.second_interval))
    return replace(pair, apart=abs(pair.first - pair.second) > quantile * hypot(first, second))


def _lone(bank: TopologyBank, other: TopologyBank, shared: set[str]) -> tuple[Lone, ...]:
    found = []
    for tree in bank.trees:
        if tree.label not in shared:
            nodes: set[Node] = set(tree.topology.nodes)
            near = min(other.trees, key=lambda item: len(nodes ^ set(item.topology.nodes)))
            there = set(near.topology.nodes)
            found.append(Lone(tree.label, len(nodes), near.label, len(nodes - there), len(there - nodes)))
    return tuple(found)


def _best(bank: TopologyBank) -> BankTree:
    """The tree of the static policy, or of the fastest where there is none."""
    if "static" in bank.policies:
        return bank.trees[bank.policy("static").members[0]]
    return max(bank.trees, key=lambda tree: tree.figures["tokens_per_s"])


def _remarks(first: TopologyBank, second: TopologyBank) -> tuple[str, ...]:
    found = []
    for what, ours, theirs in (("model", first.target, second.target), ("heads", first.heads, second.heads)):
        if ours["identity"] != theirs["identity"]:
            found.append(f"other {what}: {ours['name']} and {theirs['name']}")
    if first.acceptance != second.acceptance:
        found.append(f"other acceptance: {dict(first.acceptance)} and {dict(second.acceptance)}")
    if first.template != second.template:
        found.append("other prompt style or chat template")
    small = [name for name, bank in (("first", first), ("second", second)) if bank.too_small_to_trust]
    return (*found, *(f"the {name} bank rests on too few prompts to trust" for name in small))


def _verdict(pairs: Sequence[Pair], untimed: str) -> str:
    apart = [f"{pair.what} of {pair.tree} ({pair.first:.3g} and {pair.second:.3g})" for pair in pairs if pair.apart]
    open_ = sorted({pair.what for pair in pairs if pair.apart is None})
    words = "Beyond noise: " + ", ".join(apart) + "." if apart else "No difference beyond noise."
    if not any(pair.apart is not None for pair in pairs):
        words = "Nothing that both banks have can be judged."
    if open_:
        words += f" Not judged, since no interval is known: {', '.join(open_)}."
    return words + (f" Timings are not compared: {untimed}." if untimed else "")
