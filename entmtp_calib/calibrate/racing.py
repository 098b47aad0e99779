"""Which arms go on being timed, and whether there is time for another round.

Every decision follows from the rows of rounds before it, so a killed run that goes on decides the same again. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from entmtp_calib.calibrate.paired import Noise, noise_of, seconds_per_step, seconds_per_token
from entmtp_calib.calibrate.timing import AR, AR_AGAIN, Arm, Row, Timed, aa_slack, runs_by_arm
from entmtp_calib.errors import UsageError

LEAST_ROUNDS = 2  # an arm runs this often before it can be dropped
TIE = 1.01  # a tree that gains less than this over a smaller one is not worth more time
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Race:
    """Arms and how long they are timed.

    Args:
        arms: AR, AR again and trees.
        rounds: at most so many; None for no limit.
        budget: seconds for all runs, warm-ups too; None for no limit. The first round is always run.
        worth: tokens per step of every arm over many prompts, by replay; empty to take those of the timed runs.
    """

    arms: tuple[Arm, ...]
    rounds: int | None = None
    budget: float | None = None
    worth: Mapping[str, float] = field(default_factory=dict)

    def schedule(self, rows: Sequence[Row]) -> Iterator[tuple[int, list[str]]]:
        """Rounds and the labels of the arms that run in each.

        Args:
            rows: of the journal; all runs of a round must have been added before the next round is asked for.
        """
        labels = [arm.label for arm in self.arms]
        for number in count():
            if number == self.rounds:
                return
            if number:
                labels = self.survivors(labels, rows, number)
                if len(self.arms) > len(labels) == 2 or not self.affords(labels, rows, number):
                    return
            yield number, labels

    def survivors(self, labels: Sequence[str], rows: Sequence[Row], number: int) -> list[str]:
        """The arms that are still worth timing in a round, in their order.

        A tree is dropped when even the upper end of the interval of its speed over the fastest smaller tree that the hull would
        keep is below a tie. Plain decoding and its repeat stay.
        """
        runs = runs_by_arm([row for row in rows if row["round"] < number and row["arm"] in labels])
        if number < LEAST_ROUNDS:
            return list(labels)
        rates, noise = self._rates(runs), self._noise(runs)
        trees = sorted((arm for arm in self.arms if arm.label in labels and arm.label != AR_AGAIN), key=by_size)
        best, kept = AR, {AR, AR_AGAIN}
        for arm in trees:
            ratio, margin = rates[arm.label] / rates[best], noise.margin(arm.label, best)
            if ratio * margin >= TIE:
                kept.add(arm.label)
            if ratio > margin:
                best = arm.label
        return [label for label in labels if label in kept]

    def affords(self, labels: Sequence[str], rows: Sequence[Row], number: int) -> bool:
        """Whether a round fits into the budget, by what its arms took in the round before; a round that was begun does."""
        begun = any(row["round"] == number for row in rows if "seconds" in row)
        return self.budget is None or begun or spent(rows) + self.next_round(labels, rows, number) <= self.budget

    def next_round(self, labels: Sequence[str], rows: Sequence[Row], number: int) -> float:
        """Seconds that a round will take."""
        return sum(row["seconds"] for row in rows if row["round"] == number - 1 and row["arm"] in labels and "seconds" in row)

    def _rates(self, runs: Mapping[str, Sequence[Row]]) -> dict[str, float]:
        rates = {}
        for label, own in runs.items():
            steps, tokens = sum(row["steps"] for row in own), sum(row["tokens"] for row in own)
            if self.worth and label != AR_AGAIN:
                rates[label] = self.worth[label] * steps / sum(row["seconds"] - row["prefill_seconds"] for row in own)
            else:
                rates[label] = tokens / sum(row["seconds"] for row in own)
        return rates

    def _noise(self, runs: Mapping[str, Sequence[Row]]) -> Noise:
        cost = seconds_per_step if self.worth else seconds_per_token
        return noise_of(runs, cost, len(runs) - 2, aa_slack(runs))


def spent(rows: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of all runs so far, warm-ups too."""
    return float(sum(row["seconds"] for row in rows if "seconds" in row))


def by_size(arm: Arm | Timed) -> tuple[int, int, str]:
    """Order in which a tree counts as smaller than another."""
    return arm.topology.size, arm.topology.depth, arm.label


def seconds_of(text: str) -> float:
    """Seconds of a duration such as 90s, 10m or 1h.

    Raises:
        UsageError: it is no such thing.
    """
    number, unit = text[:-1], text[-1:]
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"the budget is {text!r}, which is no length of time.", "Give seconds, minutes or hours: 90s, 10m, 1h.")
    return seconds
