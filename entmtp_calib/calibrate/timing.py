"""What timings say: every arm's figures from the raw rows, compared over the runs that arms share.

Reads rows; `rounds.py` measures them. Knows nothing of thresholds or of where trees come from.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from entmtp_calib.calibrate.paired import Ratio, speed_ratio
from entmtp_calib.errors import EntmtpError
from entmtp_calib.topology import Topology

Row = dict[str, Any]
AR, AR_AGAIN = "ar", "ar-again"


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing that is timed."""

    label: str
    topology: Topology


@dataclass(frozen=True, slots=True)
class Timed:
    """An arm's figures, pooled over prompts and rounds.

    tokens_per_s: with prefill; decode_tokens_per_s: without; seconds_per_step: without prefill; draft_seconds: of one draft;
    speedup: over autoregressive decoding, over the runs that both have, with a 95 % interval; cv: standard deviation over mean of
    the rounds' tokens per second; rounds: how many the arm ran in; runs: its rows.

    An arm that stopped early ran in other rounds than the rest, so its times are those that it would have had in all rounds if it
    had slowed down and sped up as plain decoding did.
    """

    label: str
    topology: Topology
    tokens_per_s: float
    decode_tokens_per_s: float
    seconds_per_step: float
    draft_seconds: float
    tokens_per_step: float
    speedup: float
    speedup_low: float
    speedup_high: float
    cv: float
    rounds: int = 0
    runs: tuple[Mapping[str, Any], ...] = ()


def summarise(arms: Sequence[Arm], rows: Sequence[Row]) -> list[Timed]:
    """Figures of every arm from the raw rows; warm-ups, which have round -1, do not count.

    Args:
        arms: one of them is labelled "ar"; every arm has run wherever it is to be compared.

    Raises:
        EntmtpError: an arm wrote different tokens for one prompt in two rounds.
    """
    runs = runs_by_arm(rows)
    _check_ids([*runs[AR], *runs.get(AR_AGAIN, ())])
    drafts = {row["arm"]: row["draft_seconds"] for row in rows if "draft_seconds" in row}
    slack = aa_slack(runs)
    return [_timed(arm, runs[arm.label], runs[AR], drafts.get(arm.label, 0.0), slack) for arm in arms]


def runs_by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The measured runs of every arm: no warm-ups, no drafts by themselves."""
    runs: dict[str, list[Row]] = {}
    for row in rows:
        if "seconds" in row and row["round"] >= 0:
            runs.setdefault(row["arm"], []).append(row)
    return runs


def aa_slack(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """By how much two equal arms differed, as the size of a log ratio; 0 where none was timed twice."""
    if AR not in runs or AR_AGAIN not in runs:
        return 0.0
    return abs(log(speed_ratio(runs[AR_AGAIN], runs[AR], alike=True).ratio))


def _timed(arm: Arm, own: Sequence[Row], base: Sequence[Row], draft_seconds: float, slack: float) -> Timed:
    _check_ids(own)
    drift = _drift(own, base)
    tokens, seconds = sum(row["tokens"] for row in own), sum(row["seconds"] for row in own) * drift
    decode = sum(row["seconds"] - row["prefill_seconds"] for row in own) * drift
    steps = sum(row["steps"] for row in own) or float("nan")  # what is not ours does not count its steps
    faster = Ratio(1.0, 1.0, 1.0) if arm.label == AR else speed_ratio(own, base, arm.label == AR_AGAIN, slack)
    return Timed(
        label=arm.label,
        topology=arm.topology,
        tokens_per_s=tokens / seconds,
        decode_tokens_per_s=tokens / decode,
        seconds_per_step=decode / steps,
        draft_seconds=draft_seconds,
        tokens_per_step=tokens / steps,
        speedup=faster.ratio,
        speedup_low=faster.low,
        speedup_high=faster.high,
        cv=_variation(own),
        rounds=len({row["round"] for row in own}),
        runs=tuple(own),
    )


def _drift(own: Sequence[Row], base: Sequence[Row]) -> float:
    """How much longer plain decoding took on average over all its runs than over those beside the arm's."""
    places = {(row["prompt"], row["round"]) for row in own}
    beside = [row for row in base if (row["prompt"], row["round"]) in places]
    if len(beside) == len(base):
        return 1.0
    everywhere, there = (sum(row["seconds"] for row in part) / sum(row["tokens"] for row in part) for part in (base, beside))
    return float(everywhere / there)


def _variation(own: Sequence[Row]) -> float:
    rates = []
    for number in sorted({row["round"] for row in own}):
        part = [row for row in own if row["round"] == number]
        rates.append(sum(row["tokens"] for row in part) / sum(row["seconds"] for row in part))
    return statistics.stdev(rates) / statistics.mean(rates) if len(rates) > 1 else 0.0


def _check_ids(own: Sequence[Row]) -> None:
    seen: dict[str, str] = {}
    for row in own:
        if seen.setdefault(row["prompt"], row["ids"]) != row["ids"]:
            raise EntmtpError(
                f"arm {row['arm']} wrote different tokens for {row['prompt']} in two rounds, so its timing is void.",
                "Something on this machine makes the arithmetic vary; try --dtype float32.",
            )
