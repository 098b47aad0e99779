"""What two banks differ in: trees node by node, policies, and figures that lie apart by more than noise.

Reads banks, and the recalibrations beside them for the noise of mean accept. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import hypot, isclose, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from entmtp_calib.bank import BankTree, TopologyBank, load_bank
from entmtp_calib.calibrate.paired import COVERAGE, student
from entmtp_calib.errors import ArtefactError
from entmtp_calib.rundir import STAGES
from entmtp_calib.storage import Journal
from entmtp_calib.topology import Node

Interval = tuple[float, float]
Counts = Mapping[str, tuple[int, int]]
"""Accepted drafts and steps, by prompt."""
Margin = Callable[[float], float]
"""How far apart two figures of equal banks are at most, with a given probability."""
_TIMED = ("cpu", "cores", "device", "dtype", "graphs")


@dataclass(frozen=True, slots=True)
class Source:
    """A bank with what lies beside it. counts: of every tree's own rollouts by label, where the recalibration is there."""

    path: Path
    bank: TopologyBank
    counts: Mapping[str, Counts]


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure in both banks.

    first_interval, second_interval: 95 % each, None where none is known; noise: how far apart the figures of equal banks are at
    most, all pairs together in 19 of 20 cases, None where it is not known, and so is `apart`, whether they are further apart.
    """

    tree: str
    what: str
    first: float
    second: float
    first_interval: Interval | None
    second_interval: Interval | None
    noise: float | None = None
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

    shared: labels of trees that both have; pairs: figures that both have; first_only, second_only: the other trees; untimed: why
    timings are not compared, "" if they are; remarks: what else differs; verdict: in words.
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
        ArtefactError: no bank, or a damaged one, or a damaged recalibration beside it.
    """
    file = path / "bank.json" if path.is_dir() else path
    bank, journal = load_bank(file), Journal(file.parent / STAGES["recalibrate"][0])
    try:
        return Source(file, bank, counts_of(bank, journal.rows()[1:]))
    except (LookupError, TypeError, ValueError):
        raise ArtefactError(
            f"a line of {journal.path} has another form.", "Compare the bank.json alone, in another folder."
        ) from None


def counts_of(bank: TopologyBank, rows: Sequence[Mapping[str, Any]]) -> dict[str, Counts]:
    """What every tree of a bank accepted, by label; trees whose rows do not give the bank's mean accept are left out.

    Args:
        rows: of a recalibration; behind those of the prompts that count, there may be some of the search prompts.
    """
    used = bank.prompts.get("prompts_used", {}).get("recalibrate")
    found: dict[str, Counts] = {}
    for tree in bank.trees:
        own = (row for row in rows if row["tree"] == tree.label)
        counts = {row["prompt"]: (row["accepted"], row["steps"]) for row in islice(own, used)}
        if len(counts) > 1 and isclose(_pooled(counts)[0], tree.figures["mean_accept"], rel_tol=1e-9):
            found[tree.label] = counts
    return found


def compare_banks(first: Source, second: Source) -> Difference:
    """Everything that two banks differ in."""
    untimed = _untimed(first.bank, second.bank)
    theirs = {frozenset(tree.topology.nodes): tree for tree in second.bank.trees}
    both = [(tree, theirs[key]) for tree in first.bank.trees if (key := frozenset(tree.topology.nodes)) in theirs]
    found = []
    for ours, other in both:
        if ours.topology.size:
            found.append(_accept(first, second, ours, other))
            found += [] if untimed else [_speedup(ours.label, ours, other)]
    if not untimed:
        best = _best(first.bank), _best(second.bank)
        if best[0].topology.nodes != best[1].topology.nodes:
            found.append(_speedup(f"best ({best[0].label}, {best[1].label})", *best))
        found += _gains(first.bank, second.bank)
    judged = _judged(found)
    return Difference(
        tasks=(first.bank.task, second.bank.task),
        shared=tuple(tree.label for tree, _other in both),
        pairs=judged,
        first_only=_lone(first.bank, second.bank, {tree.label for tree, _other in both}),
        second_only=_lone(second.bank, first.bank, {tree.label for _tree, tree in both}),
        untimed=untimed,
        remarks=_remarks(first.bank, second.bank),
        verdict=_verdict(judged, untimed),
    )


def _untimed(first: TopologyBank, second: TopologyBank) -> str:
    """Why the timings of two banks cannot be compared, or ""."""
    ours, theirs = ({"graphs": "off"} | dict(bank.measured) for bank in (first, second))
    return _unlike(ours, theirs, _TIMED)


def _unlike(ours: Mapping[str, Any], theirs: Mapping[str, Any], names: Iterable[str]) -> str:
    """The values that differ, in words; "" if none does."""
    found = [(name, ours.get(name, "none"), theirs.get(name, "none")) for name in names]
    return ", ".join(f"{name} {one} and {other}" for name, one, other in found if one != other)


def _accept(first: Source, second: Source, ours: BankTree, theirs: BankTree) -> tuple[Pair, Margin | None]:
    """Mean accept; prompt by prompt, if both trees decoded the same prompts."""
    one, other = first.counts.get(ours.label), second.counts.get(theirs.label)
    pair = Pair(ours.label, "mean accept", ours.figures["mean_accept"], theirs.figures["mean_accept"],
                _interval(one), _interval(other))  # fmt: skip
    if not one or not other or one.keys() != other.keys():
        return pair, _apart(pair)
    gaps = _pooled(one)[1] - _pooled({name: other[name] for name in one})[1]
    return pair, lambda coverage: student(coverage, len(gaps) - 1) * _error(gaps)


def _speedup(label: str, ours: BankTree, theirs: BankTree) -> tuple[Pair, Margin | None]:
    first, second = ((tree.figures["speedup_low"], tree.figures["speedup_high"]) for tree in (ours, theirs))
    pair = Pair(label, "speedup", ours.figures["speedup"], theirs.figures["speedup"], first, second)
    return pair, _apart(pair)


def _gains(first: TopologyBank, second: TopologyBank) -> list[tuple[Pair, Margin | None]]:
    """What the policies that both banks have gain over their best tree."""
    found = []
    for name in first.policies:
        gains = [bank.evaluation.get("policies", {}).get(name, {}).get("gain") for bank in (first, second)]
        if name != "static" and all(gains):
            ratios, intervals = ([gain["ratio"] for gain in gains], [(gain["low"], gain["high"]) for gain in gains])
            pair = Pair(name, "gain over static", *ratios, *intervals)
            found.append((pair, _apart(pair)))
    return found


def _pooled(counts: Counts) -> tuple[float, np.ndarray]:
    """Mean accept over all steps, and by how much each prompt moves it, to first order."""
    accepted, steps = np.asarray(list(counts.values()), np.float64).T
    mean = accepted.sum() / steps.sum()
    return float(mean), (accepted - mean * steps) / steps.sum()


def _error(moves: np.ndarray) -> float:
    """Standard error of a figure that prompts move by so much; Cochran, Sampling Techniques, 1977, equation 6.11."""
    return sqrt(len(moves) / (len(moves) - 1) * float((moves**2).sum()))


def _interval(counts: Counts | None) -> Interval | None:
    if not counts:
        return None
    mean, moves = _pooled(counts)
    half = student(COVERAGE, len(moves) - 1) * _error(moves)
    return mean - half, mean + half


def _apart(pair: Pair) -> Margin | None:
    """The margin of figures that were measured apart, from their intervals; with few prompts it is rather too wide."""
    if not pair.first_interval or not pair.second_interval:
        return None
    both = hypot(*((high - low) / 2 for low, high in (pair.first_interval, pair.second_interval)))
    normal = NormalDist()
    return lambda coverage: both * normal.inv_cdf(0.5 + coverage / 2) / normal.inv_cdf(0.5 + COVERAGE / 2)


def _judged(found: Sequence[tuple[Pair, Margin | None]]) -> tuple[Pair, ...]:
    """The pairs with a judgement; all of them together are wrong in one case in twenty (Bonferroni)."""
    coverage = 1 - (1 - COVERAGE) / max(1, sum(margin is not None for _pair, margin in found))
    noise = [margin and margin(coverage) for _pair, margin in found]
    return tuple(replace(pair, noise=most, apart=None if most is None else abs(pair.second - pair.first) > most)
                 for (pair, _margin), most in zip(found, noise, strict=True))  # fmt: skip


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
    """What makes figures differ, and what differs without being a figure."""
    found = [f"other {what}: {ours['name']} and {theirs['name']}"
             for what, ours, theirs in (("model", first.target, second.target), ("heads", first.heads, second.heads))
             if ours["identity"] != theirs["identity"]]  # fmt: skip
    for what, ours, theirs in (("acceptance", first.acceptance, second.acceptance), ("limits", first.limits, second.limits)):
        if unlike := _unlike(ours, theirs, {**ours, **theirs}):
            found.append(f"other {what}: {unlike}")
    if first.template != second.template:
        found.append("other prompt style or chat template")
    if first.signal != second.signal:
        found.append(f"other signal: {first.signal.name} and {second.signal.name}")
    if first.recommended != second.recommended:
        found.append(f"other recommended policy: {first.recommended} and {second.recommended}")
    names = [name for name in {**first.policies, **second.policies} if _rule(first, name) != _rule(second, name)]
    if names:
        found.append(f"other trees or thresholds of policies: {', '.join(names)}")
    small = [name for name, bank in (("first", first), ("second", second)) if bank.too_small_to_trust]
    return (*found, *(f"the {name} bank rests on too few prompts to trust" for name in small))


def _rule(bank: TopologyBank, name: str) -> Any:
    """What a policy of a bank does; None if there is none."""
    if name not in bank.policies:
        return None
    policy = bank.policies[name]
    return policy, policy.kind != "dynamic" and [bank.topologies[index] for index in policy.members]


def _verdict(pairs: Sequence[Pair], untimed: str) -> str:
    apart = [f"{pair.what} of {pair.tree} ({pair.first:.3f} and {pair.second:.3f})" for pair in pairs if pair.apart]
    words = "Beyond noise: " + ", ".join(apart) + "." if apart else "No difference beyond noise."
    if not any(pair.apart is not None for pair in pairs):
        words = "Nothing that both banks have can be judged."
    if any(pair.apart is None for pair in pairs):
        words += " Mean accept is not judged where no recalibration of two prompts or more lies beside both banks."
    return words + (f" Timings are not compared: {untimed}." if untimed else "")
