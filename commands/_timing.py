"""How the timing stage speaks: its table, the A/A check, what was not quiet, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._output import Column, Output, Table
from ._session import say_graphs
from ._tables import marked

if TYPE_CHECKING:
    from entmtp_calib.calibrate.environment import Trouble
    from entmtp_calib.calibrate.pipeline import Calibration
    from entmtp_calib.calibrate.step_profile import Profile

DEFAULT_ROUNDS = 2


def limits(rounds: int | None, budget: str | None, graphs: str = "auto") -> dict[str, Any]:
    """How to time: rounds (2 where neither is given) and seconds, each None where it sets no limit, and graphs where it is said.

    Raises:
        UsageError: a budget that is no length of time, or an unknown choice of graphs.
    """
    from entmtp_calib.calibrate.racing import seconds_of
    from entmtp_calib.graph_mode import check_mode

    check_mode(graphs)
    seconds = seconds_of(budget) if budget is not None else None
    said = {} if graphs == "auto" else {"graphs": graphs == "on" or None}
    return {"rounds": rounds if rounds or seconds else DEFAULT_ROUNDS, "budget": seconds} | said


def as_timed(calibration: Calibration) -> dict[str, Any]:
    """How the timing that a run has was asked for."""
    return {name: calibration.options("time").get(name) for name in ("rounds", "prompts", "budget", "graphs")}


def report_timing(screen: Output, calibration: Calibration, timed: Sequence[Any], counts: Mapping[str, int]) -> None:
    """Show the arms, and say how sure the figures are."""
    from entmtp_calib.calibrate.cost_model import mean_error
    from entmtp_calib.calibrate.environment import environments, trouble
    from entmtp_calib.calibrate.timing import AR_AGAIN

    predicted, rows = calibration.predicted(), calibration.timing_rows()
    screen.table(marked(timing_table(timed, predicted), counts))
    error = mean_error(predicted)
    screen.keep(cost_model_error=error, environment=environments(rows))
    if error == error:
        screen.say(f"cost model (rows, levels, context): predicted tokens/s are off by {error:.1%} on arms that it has not seen")
    say_graphs(screen, calibration.pair)
    _say_race(screen, calibration.options("time").get("budget"), timed, rows)
    again = next(arm for arm in timed if arm.label == AR_AGAIN)
    screen.say(
        f"A/A check: plain decoding against itself gives {again.speedup:.3f} ({again.speedup_low:.3f}–{again.speedup_high:.3f})"
    )
    apart = resolution(timed, calibration.config.rule.lossless)
    screen.say(f"trees that are less than {apart:.1%} apart count as equally fast, and the smaller one is taken")
    found = trouble(timed, rows)
    screen.keep(unsteady=sentences(found), resolution=apart)
    for sentence in sentences(found):
        screen.warn(sentence)


def report_profile(screen: Output, calibration: Calibration, timed: Sequence[Any], prompts: int, tick: Any) -> None:
    """Profile the steps of the fastest tree, show them and keep them in the timing journal."""
    from dataclasses import asdict

    from entmtp_calib.calibrate.environment import journal_row
    from entmtp_calib.calibrate.step_profile import profile_steps
    from entmtp_calib.calibrate.time_stage import preferred
    from entmtp_calib.storage import Journal

    rule = calibration.config.rule
    arm = preferred(timed, calibration.traces("fit") if rule.lossless else None)
    if arm is None:
        screen.warn("no tree was timed, so there are no steps to profile")
        return
    pair, chosen = calibration.pair, calibration.splits.fit[:prompts]
    found = profile_steps(
        pair.target, pair.heads, arm.topology, chosen, calibration.stop, rule, lambda done, of: tick("profile", done, of)
    )
    Journal(calibration.run.file("timings.jsonl")).append(journal_row({"profile": {"tree": arm.label, **asdict(found)}}))
    screen.table(profile_table(arm.label, found))
    screen.keep(profile={"tree": arm.label, **asdict(found)})
    for sentence in profile_sentences(arm.label, found):
        screen.text(sentence)


def profile_sentences(label: str, found: Profile) -> list[str]:
    """What a profile comes to."""
    from entmtp_calib.calibrate.step_profile import SCHEDULING

    ratio, choosing = found.ratio, found.choosing
    said = [
        f"A step of {label} takes {ratio.median:.2f} times the bare forward of its rows and its drafting together (middle 80 % "
        f"of {found.steps} steps: {ratio.low:.2f}–{ratio.high:.2f}).",
        f"Scheduling takes {1e3 * found.parts[SCHEDULING].median:.3f} ms of it; reading a signal and choosing from a ladder by "
        f"themselves take {1e3 * choosing.median:.3f} ms.",
    ]
    one, best = found.rows[1], min(found.rows, key=lambda rows: found.rows[rows].median)
    figures = ", ".join(f"{rows}: {1e3 * item.median:.1f}" for rows, item in found.rows.items())
    verdict = "Plain decoding would gain nothing by padding its row"
    if best > 1 and found.rows[best].high < one.low:
        verdict = f"Plain decoding would be faster with its row padded to {best}"
    return [*said, f"{verdict} (ms of a forward by rows: {figures})."]


def profile_table(label: str, found: Profile) -> Table:
    """The parts of a step, its whole, and the bare forward beside it."""
    lines = [*found.parts.items(), ("whole step", found.step), ("bare forward of the same rows", found.bare)]
    rows = [{"part": name, "ms": 1e3 * item.median, "low_ms": 1e3 * item.low, "high_ms": 1e3 * item.high,
             "share": item.median / found.step.median} for name, item in lines]  # fmt: skip
    columns = (Column("part", "part"), Column("ms", "median ms", ".3f"), Column("low_ms", "10 %", ".3f"),
               Column("high_ms", "90 %", ".3f"), Column("share", "of the step", ".1%"))  # fmt: skip
    return Table("profile_parts", f"Where a step of {label} spends its time, over {found.steps} steps", columns, rows)


def _say_race(screen: Output, budget: float | None, timed: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> None:
    from entmtp_calib.calibrate.racing import spent

    rounds, seconds = max(arm.rounds for arm in timed), spent(rows)
    early = [f"{arm.label} after {arm.rounds}" for arm in timed if arm.rounds < rounds]
    if early:
        screen.say(f"stopped early, as surely not 1 % faster than a smaller tree: {', '.join(early)} of {rounds} rounds")
    if budget is not None and seconds > budget:
        screen.warn(f"the first rounds took {seconds:.0f} s, more than the budget of {budget:.0f} s")
    elif budget is not None:
        screen.say(f"{rounds} rounds took {seconds:.0f} s of the budget of {budget:.0f} s; another did not fit or had no use")
    screen.keep(seconds_of_runs=seconds, budget=budget)


def resolution(timed: Sequence[Any], lossless: bool) -> float:
    """By how much two trees that ran in all rounds must differ before the bank takes the larger one, as a share."""
    from entmtp_calib.calibrate.bank_rules import timing_noise
    from entmtp_calib.calibrate.paired import seconds_per_step, seconds_per_token
    from entmtp_calib.calibrate.timing import AR, AR_AGAIN

    return timing_noise(timed, seconds_per_step if lossless else seconds_per_token).margin(AR, AR_AGAIN) - 1


def sentences(found: Trouble) -> list[str]:
    """What made the machine unsteady, in words, with what to do."""
    said = []
    if found.again:
        low, high = found.again.low, found.again.high
        said.append(
            f"plain decoding differs from itself by more than its interval says ({found.again.ratio:.3f}, {low:.3f}–{high:.3f}): "
            f"no difference below {abs(found.again.ratio - 1):.1%} counts here; give more --rounds, or a quieter machine"
        )
    if found.noisy:
        said.append(f"rounds of {found.noisy.label} differ by {found.noisy.cv:.0%}: close other programs, or give more --rounds")
    if found.load is not None:
        other = found.load - found.own
        said.append(
            f"other processes use about {other:.1f} cores: load {found.load:.1f} on {found.cores} cores, of which the timing "
            f"itself makes {found.own:.1f}; stop them, or give more --rounds"
        )
    return said


def timing_table(timed: Sequence[Any], predicted: Mapping[str, Any]) -> Table:
    """Every arm's speed.

    Args:
        predicted: what the cost model says, by label.
    """
    rows = [_timing_row(arm, predicted.get(arm.label)) for arm in timed]
    columns = (Column("arm", "arm"), Column("nodes", "nodes"), Column("rounds", "rounds", "", True),
               Column("tokens_per_step", "tokens/step", ".2f"), Column("ms_per_step", "ms/step", ".1f"),
               Column("draft_ms", "of it drafting", ".1f", True), Column("tokens_per_s", "tokens/s", ".1f"),
               Column("decode_tokens_per_s", "without prefill", ".1f", True),
               Column("predicted_tokens_per_s", "predicted", ".1f", True),
               Column("speedup", "× ar", ".2f"), Column("interval", "95 % interval"), Column("cv", "cv", ".1%"))  # fmt: skip
    return Table("timings", "Timing: end to end, prefill included, interleaved", columns, rows)


def _timing_row(arm: Any, found: Any) -> dict[str, Any]:
    row = {"arm": arm.label, "nodes": arm.topology.size, "rounds": arm.rounds, "tokens_per_step": arm.tokens_per_step,
           "ms_per_step": 1e3 * arm.seconds_per_step, "draft_ms": 1e3 * arm.draft_seconds, "tokens_per_s": arm.tokens_per_s,
           "decode_tokens_per_s": arm.decode_tokens_per_s, "speedup": arm.speedup, "speedup_low": arm.speedup_low,
           "speedup_high": arm.speedup_high, "cv": arm.cv}  # fmt: skip
    model = {"model_ms": 1e3 * found.seconds_per_step, "predicted_tokens_per_s": found.tokens_per_s} if found else {}
    return row | model | {"interval": f"{arm.speedup_low:.2f}–{arm.speedup_high:.2f}"}
