"""Ratios of paired runs and how sure they are: intervals from few prompts and rounds that cover what they claim to.

Works on rows of the timing journal and on numbers; measures nothing and knows no trees.

Intervals are Student's, on the log of a ratio, with prompts as the units: rounds of one prompt repeat its text and say nothing
about other prompts. A bootstrap over four prompts covered a true ratio of 1 in 78 of 100 simulated runs, the one used here in 93
to 96 (`tests/test_paired.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cos, exp, inf, log, pi, sin, sqrt, tan
from typing import Any

import numpy as np

Row = Mapping[str, Any]
Place = tuple[str, int]
"""A prompt and a round: runs of two arms at one place are a pair."""
COVERAGE = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one arm is than another, with a 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1."""
        return not self.low <= 1 <= self.high


def speed_ratio(arm: Sequence[Row], base: Sequence[Row], alike: bool = False, slack: float = 0.0) -> Ratio:
    """How many times the pooled tokens per second of `base` those of `arm` are, over the places where both ran.

    The standard error is the jackknife's (Tukey 1958; Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 11):
    every unit is left out once and the pseudo-values are treated as a sample, with Student's t for so many units less one.

    Args:
        arm, base: rows with `prompt`, `round`, `tokens` and `seconds`.
        alike: the arms are the same thing, so every run is a unit; else every prompt is, or every round if there is one prompt.
        slack: half of the interval is at least this, in the log: what this session's A/A pair differed by. With a single unit,
            which has no spread of its own, it is taken for a standard error with one degree of freedom; for arms that are alike
            their own difference is.
    """
    pairs = _pairs(arm, base)
    unit = _unit(pairs, alike)
    sums: dict[Any, np.ndarray] = {}
    for place, (one, other) in pairs.items():
        part = np.array([one["tokens"], one["seconds"], other["tokens"], other["seconds"]], float)
        sums[unit(place)] = sums.get(unit(place), np.zeros(4)) + part
    units = np.stack(list(sums.values()))
    found = _log_ratio(units.sum(0))
    if alike:
        slack = abs(found) if len(units) == 1 else 0.0
    half = _margin(_jackknife_error(units), len(units) - 1, slack, COVERAGE)
    return Ratio(exp(found), exp(found - half), exp(found + half))


class Noise:
    """How much faster one arm must be than another before it counts.

    The spread is pooled over all arms that ran at the places that two arms share, so that few prompts give many degrees of
    freedom: what is left of the log costs, averaged over rounds, after an effect of each arm and one of each prompt (two-way
    analysis of variance without replication).

    Args:
        costs: log of the cost of every run, by arm and place.
        comparisons: how many comparisons are made; each is made so strict that all together err as seldom as one should
            (Bonferroni).
        slack: half of an interval is at least this, in the log; see `speed_ratio`.
    """

    def __init__(self, costs: Mapping[str, Mapping[Place, float]], comparisons: int = 1, slack: float = 0.0) -> None:
        self.costs = costs
        self.coverage = 1 - (1 - COVERAGE) / max(1, comparisons)
        self.slack = slack
        self._spreads: dict[frozenset[Place], tuple[float, int]] = {}

    def margin(self, one: str, other: str) -> float:
        """The factor, at least 1, by which the ratio of two arms can be off; 1 where nothing was measured."""
        shared = self.costs.get(one, {}).keys() & self.costs.get(other, {}).keys()
        if not shared:
            return 1.0
        if (key := frozenset(shared)) not in self._spreads:
            self._spreads[key] = self._spread(key)
        return exp(_margin(*self._spreads[key], self.slack, self.coverage))

    def _spread(self, shared: frozenset[Place]) -> tuple[float, int]:
        """Standard error of the difference of two arms, and its degrees of freedom."""
        group = 0 if len({place[0] for place in shared}) > 1 else 1
        units = sorted({place[group] for place in shared})
        table = np.array([
            [np.mean([costs[place] for place in shared if place[group] == unit]) for unit in units]
            for costs in self.costs.values() if shared <= costs.keys()
        ])  # fmt: skip
        left = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
        degrees = (len(table) - 1) * (len(units) - 1)
        return (sqrt(2 * float((left**2).sum()) / degrees / len(units)) if degrees else 0.0), degrees


def noise_of(runs: Mapping[str, Sequence[Row]], cost: Callable[[Row], float], comparisons: int = 1, slack: float = 0.0) -> Noise:
    """The noise of arms' rows under a cost."""
    costs = {label: {(row["prompt"], row["round"]): log(cost(row)) for row in rows} for label, rows in runs.items()}
    return Noise(costs, comparisons, slack)


def seconds_per_token(row: Row) -> float:
    """Of a whole run, prefill included."""
    return float(row["seconds"] / row["tokens"])


def seconds_per_step(row: Row) -> float:
    """Of a run without its prefill."""
    return float((row["seconds"] - row["prefill_seconds"]) / row["steps"])


@lru_cache(maxsize=1024)
def student(coverage: float, degrees: int) -> float:
    """Half width, in standard errors, of an interval that covers this much of Student's distribution.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4, solved by bisection; above 200 degrees the
    value for 200 or 199, which is less than 1 % too wide.
    """
    degrees = min(degrees, 200 - degrees % 2)
    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _covered(middle, degrees) < coverage else (low, middle)
    return sqrt(degrees) * tan(low)


def _covered(angle: float, degrees: int) -> float:
    odd = degrees % 2
    term = total = (cos(angle) if odd else 1.0) if degrees > 1 else 0.0
    for k in range(2 + odd, degrees - 1, 2):
        term *= cos(angle) ** 2 * (k - 1) / k
        total += term
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


def _margin(error: float, degrees: int, slack: float, coverage: float) -> float:
    """Half of an interval in the log; with no degree of freedom the slack is the only error that is known."""
    if degrees < 1:
        return student(coverage, 1) * slack
    return max(student(coverage, degrees) * error, slack)


def _pairs(arm: Sequence[Row], base: Sequence[Row]) -> dict[Place, tuple[Row, Row]]:
    there = {(row["prompt"], row["round"]): row for row in base}
    places = [(row["prompt"], row["round"]) for row in arm]
    return {place: (row, there[place]) for place, row in zip(places, arm, strict=True) if place in there}


def _unit(pairs: Mapping[Place, Any], alike: bool) -> Callable[[Place], Any]:
    if alike:
        return lambda place: place
    return (lambda place: place[0]) if len({name for name, _ in pairs}) > 1 else (lambda place: place[1])


def _log_ratio(sums: np.ndarray) -> float:
    return log(sums[0] * sums[3] / (sums[1] * sums[2]))


def _jackknife_error(units: np.ndarray) -> float:
    count = len(units)
    if count < 2:
        return inf
    without = np.array([_log_ratio(units.sum(0) - unit) for unit in units])
    return sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
