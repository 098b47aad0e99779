"""What the commands of a run share: whether it is finished already, how many prompts it rests on, how the search is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ._output import Output
from ._session import same_heads
from ._tables import bank_table, policy_table

if TYPE_CHECKING:
    from entmtp_calib.calibrate.pipeline import Calibration
    from entmtp_calib.calibrate.search import Frontier


def already_there(
    screen: Output, out: Path, config: Any, recalibrate: Any, timing: Any, signal: str, bank_rule: str = "hull"
) -> bool:
    """Whether a finished run of exactly these options is in the folder; if so, show its bank."""
    from dataclasses import asdict, replace

    from entmtp_calib.bank import load_bank
    from entmtp_calib.rundir import RunDir

    if not (out / "bank.json").exists() or not (out / "run.json").exists():
        return False
    there = RunDir.open(out)
    left_open = {name: there.about["config"].get(name) for name in ("device", "dtype", "max_depth")}
    wanted = replace(config, **{name: value for name, value in left_open.items() if getattr(config, name) in ("auto", None)})
    bank = load_bank(out / "bank.json")
    if not same_heads(there, config.heads):
        return False
    stages = [there.journal_options(name) for name in ("recalibration.jsonl", "timings.jsonl")]
    if asdict(wanted) != asdict(type(config)(**there.about["config"])) or stages[0] != recalibrate:
        return False
    if (bank.evaluation.get("signal_asked", bank.signal.name), bank.evaluation.get("bank_rule", "hull")) != (signal, bank_rule):
        return False
    if {name: stages[1].get(name) for name in timing} != timing:
        return False
    screen.say(f"{out} holds this run, finished: nothing to do. Use --fresh to start over.")
    screen.table(bank_table(bank))
    screen.table(policy_table(bank))
    screen.keep(status="nothing to do", bank=str(out / "bank.json"))
    return True


def prompt_counts(screen: Output, calibration: Calibration, asked: Mapping[str, int] | None = None) -> dict[str, int]:
    """Prompts that the run's figures rest on; a stage that asked for more than there are is told of.

    Args:
        asked: prompts that stages of this command were told to take.
    """
    from entmtp_calib.trust import prompts_used, too_few

    counts = prompts_used(calibration.run, asked)
    for stage, wanted in (asked or {}).items():
        if counts["fit"] < wanted:
            screen.warn(f"{stage} takes {wanted} prompts and the fit part has {counts['fit']}; none is used twice")
    screen.keep(prompts_used=counts, too_small_to_trust=bool(too_few(counts)))
    return counts


def search_and_tell(screen: Output, calibration: Calibration) -> Frontier:
    """The frontier, with what its search cost: seconds of this command, and forwards of the target where growths ran it."""
    start = perf_counter()
    frontier = calibration.search()
    seconds = perf_counter() - start
    forwards = {growth.max_depth: growth.forwards for growth in frontier.growths if growth.forwards}
    by_depth = ", ".join(f"depth {depth} {count}" for depth, count in forwards.items())
    screen.say(f"searched in {seconds:.1f} s" + (f"; target forwards of joint rollouts: {by_depth}" if forwards else ""))
    screen.keep(search_seconds=seconds, target_forwards=forwards)
    return frontier
