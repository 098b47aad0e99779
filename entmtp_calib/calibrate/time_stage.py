"""The timing stage of a run: what is timed, for how long, and how that compares with the cost model.

Joins candidates, traces and rows; measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from entmtp_calib.calibrate.candidates import Candidate
from entmtp_calib.calibrate.cost_model import Predicted, predicted
from entmtp_calib.calibrate.racing import Race, spent
from entmtp_calib.calibrate.timing import AR, AR_AGAIN, Arm, Row, Timed
from entmtp_calib.evidence import Trace, mean_accept
from entmtp_calib.topology import Topology

Tick = Callable[[str, int, int], None]


def race_of(candidates: Sequence[Candidate], rounds: int | None, budget: float | None, traces: Sequence[Trace] | None) -> Race:
    """Plain decoding, every candidate, and plain decoding again.

    Args:
        rounds, budget: see `Race`.
        traces: of the prompts that speeds are to hold for; None where nothing can be replayed.
    """
    arms = _arms(candidates)
    worth = {arm.label: tokens_per_step(arm, traces) for arm in arms} if traces is not None else {}
    return Race((*arms, Arm(AR_AGAIN, Topology())), rounds, budget, worth)


def progress(race: Race, prompts: int, rows: Sequence[Row], tick: Tick) -> Callable[[int], None]:
    """Tells `tick` after every run how far the race is: in seconds if it has a budget, else in runs."""
    if race.budget is not None:
        seconds = int(race.budget)
        return lambda _done: tick("time (seconds)", min(int(spent(rows)), seconds), seconds)
    total = prompts * len(race.arms) * (race.rounds or 0)
    return lambda done: tick("time", done, total)


def speeds(candidates: Sequence[Candidate], rows: Sequence[Row], traces: Sequence[Trace] | None) -> dict[str, Predicted]:
    """Every arm's speed as the cost model has it, with tokens per step by replay.

    Args:
        rows: of the timing journal; traces: of the timed prompts; None where nothing can be replayed, and where the measured
            tokens per step are taken.
    """
    worth = {arm.label: tokens_per_step(arm, traces) for arm in _arms(candidates)} if traces is not None else {}
    return predicted(rows, {arm.label: arm.topology for arm in _arms(candidates)}, worth)


def preferred(timed: Sequence[Timed], traces: Sequence[Trace] | None) -> Timed | None:
    """The tree with the most tokens per second, prefill left out; None where no tree was timed.

    Args:
        traces: of the prompts that it is to hold for; None for the tokens per step of the timed runs.
    """
    trees = [arm for arm in timed if arm.topology.size]
    worth = {arm.label: arm.tokens_per_step if traces is None else tokens_per_step(arm, traces) for arm in trees}
    return max(trees, key=lambda arm: (worth[arm.label] / arm.seconds_per_step, -arm.topology.size), default=None)


def tokens_per_step(arm: Arm | Timed, traces: Sequence[Trace]) -> float:
    """Tokens per step by replay."""
    return 1 + mean_accept(arm.topology, traces)


def _arms(candidates: Sequence[Candidate]) -> list[Arm]:
    return [Arm(AR, Topology())] + [Arm(candidate.label, candidate.topology) for candidate in candidates]
