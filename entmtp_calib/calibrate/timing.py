"""Timing: whole generations under every arm, interleaved, paired by prompt and round, with raw repeats kept.

Measures seconds on the device at hand; knows nothing of thresholds or of where trees come from.
"""

from __future__ import annotations

import hashlib
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from entmtp_calib.engine.acceptance import GREEDY, Rule
from entmtp_calib.engine.decoder import Decoder, Step
from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import EntmtpError
from entmtp_calib.policy import Static
from entmtp_calib.storage import Journal
from entmtp_calib.topology import Topology

Row = dict[str, Any]
AR, AR_AGAIN = "ar", "ar-again"
_DRAFT_REPEATS = 15
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing that is timed."""

    label: str
    topology: Topology


class Run(NamedTuple):
    """One generation: the new tokens, the target's steps (0 if unknown), seconds before the first draft, seconds in all."""

    tokens: list[int]
    steps: int
    prefill_seconds: float
    seconds: float


Runner = Callable[[Sequence[int], StopRule], Run]


@dataclass(frozen=True, slots=True)
class Timed:
    """An arm's figures, pooled over prompts and rounds.

    tokens_per_s: with prefill; decode_tokens_per_s: without; seconds_per_step: without prefill; draft_seconds: of one draft;
    speedup: over autoregressive decoding, with a 95 % bootstrap interval over prompts; cv: standard deviation over mean of the
    rounds' tokens per second.
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


def time_arms(
    target: Target,
    drafter: Drafter | None,
    arms: Sequence[Arm],
    prompts: Sequence[tuple[str, Sequence[int]]],
    stop: StopRule,
    rounds: int,
    seed: int,
    journal: Journal,
    rows: list[Row],
    on_run: Callable[[int], None] | None = None,
    rule: Rule = GREEDY,
) -> list[Timed]:
    """Time every arm on every prompt in every round, in random order; what the journal holds is not timed again.

    Every arm runs once unmeasured before it counts. Plain decoding is among the arms twice (A/A).

    Args:
        arms: must include one labelled "ar"; "ar-again" is added.
        rule: how tokens are chosen and drafts accepted.

    Raises:
        EntmtpError: an arm's tokens differ between repeats.
    """
    arms = [*arms, Arm(AR_AGAIN, Topology())]
    decoders = {arm.label: Decoder(target, drafter, [arm.topology], Static(0), rule=rule) for arm in arms}
    drafted = {row["arm"] for row in rows if "draft_seconds" in row}
    runners = {label: decoder_runner(decoder) for label, decoder in decoders.items()}
    interleave(runners, prompts, stop, rounds, seed, rows, journal, on_run)
    for arm in arms:
        if arm.label not in drafted and arm.label != AR_AGAIN:
            rows.append({"arm": arm.label, "prompt": "", "round": 0, "draft_seconds": draft_seconds(decoders[arm.label])})
            journal.append(rows[-1])
    return summarise(arms, rows, seed)


def interleave(
    runners: Mapping[str, Runner],
    prompts: Sequence[tuple[str, Sequence[int]]],
    stop: StopRule,
    rounds: int,
    seed: int,
    rows: list[Row],
    journal: Journal | None = None,
    on_run: Callable[[int], None] | None = None,
) -> None:
    """Run every arm on every prompt in every round, in random order; adds to `rows` what they do not hold yet.

    Every arm runs once unmeasured before it counts.

    Args:
        runners: arms by label; journal: where rows are kept, warm-ups too; on_run: called with the number of runs done.
    """
    done = {(row["arm"], row["prompt"], row["round"]) for row in rows}
    warm: set[str] = set()
    count = 0
    for number in range(rounds):
        for name, ids in prompts:
            order = list(runners)
            random.Random(f"{seed}:{number}:{name}").shuffle(order)
            for label in order:
                count += 1
                if (label, name, number) not in done:
                    if label not in warm:
                        _keep(journal, _row(runners[label](ids, stop), label, name, -1, len(ids)))
                        warm.add(label)
                    rows.append(_row(runners[label](ids, stop), label, name, number, len(ids)))
                    _keep(journal, rows[-1])
                if on_run:
                    on_run(count)


def _keep(journal: Journal | None, row: Row) -> None:
    if journal is not None:
        journal.append(row)


def draft_seconds(decoder: Decoder, repeats: int = _DRAFT_REPEATS) -> float:
    """Median seconds of one draft of the decoder's trees; 0 where nothing is drafted."""
    if not decoder.drafted.levels:
        return 0.0
    with torch.inference_mode():
        root = decoder.dummy_root()
        times = []
        for _ in range(repeats + 2):
            start = clock(decoder.target.device)
            decoder.draft(root)
            times.append(clock(decoder.target.device) - start)
    return statistics.median(times[2:])


def summarise(arms: Sequence[Arm], rows: Sequence[Row], seed: int) -> list[Timed]:
    """Figures of every arm from the raw rows (warm-ups, which have round -1, do not count)."""
    runs = [row for row in rows if "seconds" in row and row["round"] >= 0]
    drafts = {row["arm"]: row["draft_seconds"] for row in rows if "draft_seconds" in row}
    base = _by_prompt(runs, AR)
    timed = []
    for arm in arms:
        own = [row for row in runs if row["arm"] == arm.label]
        _check_ids(own)
        tokens, seconds = sum(r["tokens"] for r in own), sum(r["seconds"] for r in own)
        decode = sum(r["seconds"] - r["prefill_seconds"] for r in own)
        steps = sum(r["steps"] for r in own) or float("nan")  # what is not ours does not count its steps
        low, high = bootstrap_ratio(_by_prompt(runs, arm.label), base, seed)
        timed.append(
            Timed(
                label=arm.label,
                topology=arm.topology,
                tokens_per_s=tokens / seconds,
                decode_tokens_per_s=tokens / decode,
                seconds_per_step=decode / steps,
                draft_seconds=drafts.get(arm.label, 0.0),
                tokens_per_step=tokens / steps,
                speedup=(tokens / seconds) / _rate(base),
                speedup_low=low,
                speedup_high=high,
                cv=_variation(own),
            )
        )
    return timed


def bootstrap_ratio(arm: dict[str, tuple[float, float]], base: dict[str, tuple[float, float]], seed: int) -> tuple[float, float]:
    """95 % interval of the ratio of pooled rates over resampled prompts, the same prompts for both arms.

    Args:
        arm, base: `(tokens, seconds)` of each prompt.
    """
    names = sorted(set(arm) & set(base))
    picks = np.random.default_rng(seed).integers(0, len(names), (_RESAMPLES, len(names)))
    a, b = (np.asarray([part[name] for name in names])[picks].sum(1) for part in (arm, base))
    ratios = (a[:, 0] / a[:, 1]) / (b[:, 0] / b[:, 1])
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(high)


def decoder_runner(decoder: Decoder) -> Runner:
    """Runs a decoder."""

    def run(ids: Sequence[int], stop: StopRule) -> Run:
        device = decoder.target.device
        start = clock(device)
        generation = decoder.begin(ids, stop)
        prefilled = clock(device)
        steps: list[Step] = list(decoder.resume(generation))
        end = clock(device)
        return Run([token for step in steps for token in step.tokens], len(steps), prefilled - start, end - start)

    return run


def _row(run: Run, label: str, name: str, number: int, prompt_tokens: int) -> Row:
    return {
        "arm": label,
        "prompt": name,
        "round": number,
        "prompt_tokens": prompt_tokens,
        "seconds": run.seconds,
        "prefill_seconds": run.prefill_seconds,
        "tokens": len(run.tokens),
        "steps": run.steps,
        "ids": hashlib.sha256(repr(run.tokens).encode()).hexdigest()[:16],
    }


def clock(device: torch.device) -> float:
    """Seconds, after everything that the device was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def _by_prompt(runs: Sequence[Row], label: str) -> dict[str, tuple[float, float]]:
    pooled: dict[str, tuple[float, float]] = {}
    for row in runs:
        if row["arm"] == label:
            tokens, seconds = pooled.get(row["prompt"], (0.0, 0.0))
            pooled[row["prompt"]] = (tokens + row["tokens"], seconds + row["seconds"])
    return pooled


def _rate(pooled: dict[str, tuple[float, float]]) -> float:
    return sum(tokens for tokens, _ in pooled.values()) / sum(seconds for _, seconds in pooled.values())


def _variation(own: Sequence[Row]) -> float:
    rounds = sorted({row["round"] for row in own})
    rates = []
    for number in rounds:
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
