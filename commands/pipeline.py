"""`run`, `search`, `recalibrate`, `time` and `fit-thresholds`: the stages of a run, one by one or all together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entmtp_calib.errors import UsageError

from . import _options as opt
from ._beginning import begins, config_of
from ._check import check_run
from ._output import Output
from ._recalibration import report_recalibration
from ._runs import already_there, prompt_counts, search_and_tell
from ._scheduler import report_study, verdict
from ._session import open_run, start_run
from ._side_by_side import side_by_side
from ._tables import (
    arms_table,
    bank_table,
    frontier_table,
    generalisation_table,
    marked,
    policy_table,
)
from ._timing import as_timed, limits, report_profile, report_timing

if TYPE_CHECKING:
    from entmtp_calib.calibrate.pipeline import Calibration
    from entmtp_calib.engine.pair import Pair


@begins
def run(
    ctx: typer.Context,
    out: opt.OutOrNone = None,
    trees: opt.Trees = 7,
    add_trees: opt.AddTrees = None,
    recalibrate_prompts: opt.RecalibratePrompts = 4,
    time_prompts: opt.TimePrompts = 4,
    rounds: opt.TimeRounds = None,
    budget: opt.Budget = None,
    signal: opt.Signal = "auto",
    bank_rule: opt.BankRule = "hull",
    graphs: opt.Graphs = "auto",
    dump_prompts: opt.DumpPrompts = None,
    check: opt.Check = None,
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    **_beginning: Any,
) -> None:
    """Calibrate from prompts to a bank: search, recalibrate, time, fit thresholds, then decode a held-out prompt.

    A killed run goes on where it stopped when the same command is given again.
    """
    from entmtp_calib.calibrate.bank_rules import check_rule
    from entmtp_calib.signals import check_asked

    screen = Output(json, quiet)
    if check is not None:
        check_run(screen, check, ctx)
        return
    if out is None:
        raise UsageError("no run folder is given.", "Give one with --out.")
    config = config_of(ctx)
    check_asked(signal)  # a typo should not cost the hours before the signal is read
    check_rule(bank_rule, config.rule.lossless)
    timing = limits(rounds, budget, graphs) | {"prompts": time_prompts}
    added = _added(add_trees)
    stages = {"trees": trees, "prompts": recalibrate_prompts} | ({"added": added} if added else {}), timing
    if not fresh and dump_prompts is None and already_there(screen, out, config, *stages, signal, bank_rule):
        screen.finish("run")
        return
    with screen.progress() as tick:
        calibration = start_run(screen, out, config, fresh, tick, dump_prompts)
        calibration.check_signal(signal)
        _check_depths(added, calibration.pair)
        counts = prompt_counts(screen, calibration, {"recalibrate": recalibrate_prompts, "time": time_prompts})
        screen.say("search: self-rollout and greedy growth")
        _search(screen, calibration, counts)
        screen.say("recalibrate: every tree by itself, on prompts that search did not see")
        recalibrated = calibration.recalibrate(trees, recalibrate_prompts, added=added)
        report_recalibration(screen, calibration, recalibrated, counts)
        screen.say("time: every arm on every prompt, interleaved")
        timed = calibration.time(**timing | {"graphs": calibration.wants_graphs(graphs)})
        report_timing(screen, calibration, timed, counts)
        screen.say("fit-thresholds: policies by replay" if config.rule.lossless else "fit-thresholds: policies by rollouts")
        calibration.fit(signal, timed, recalibrated, rule=bank_rule)
    _report_bank(screen, calibration)
    side_by_side(screen, calibration)
    screen.finish("run")


@begins
def search(
    ctx: typer.Context,
    out: opt.Out,
    dump_prompts: opt.DumpPrompts = None,
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    **_beginning: Any,
) -> None:
    """Begin a run: let the target write the search prompts and grow trees from what the heads guessed."""
    screen = Output(json, quiet)
    config = config_of(ctx)
    with screen.progress() as tick:
        calibration = start_run(screen, out, config, fresh, tick, dump_prompts)
        _search(screen, calibration, prompt_counts(screen, calibration))
    screen.say(f"next: entmtp recalibrate {out}")
    screen.finish("search")


def recalibrate(
    run_folder: opt.RunFolder,
    trees: opt.Trees = 7,
    prompts: opt.RecalibratePrompts = 4,
    add_trees: opt.AddTrees = None,
    seed: opt.SameSeed = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run candidate trees by themselves on new prompts and compare with what the search predicted."""
    screen = Output(json, quiet)
    added = _added(add_trees)
    with screen.progress() as tick:
        calibration = open_run(screen, run_folder, device, dtype, seed, tick)
        recalibrated = calibration.recalibrate(trees, prompts, fresh, added)
        counts = prompt_counts(screen, calibration, {"recalibrate": prompts})
        report_recalibration(screen, calibration, recalibrated, counts)
    screen.say(f"next: entmtp time {run_folder}")
    screen.finish("recalibrate")


def time(
    run_folder: opt.RunFolder,
    rounds: opt.TimeRounds = None,
    budget: opt.Budget = None,
    prompts: opt.TimePrompts = 4,
    profile: opt.Profile = False,
    graphs: opt.Graphs = "auto",
    seed: opt.SameSeed = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Time plain decoding, every candidate and the published 63-node tree, end to end and interleaved."""
    screen = Output(json, quiet)
    timing = limits(rounds, budget, graphs)
    with screen.progress() as tick:
        calibration = open_run(screen, run_folder, device, dtype, seed, tick)
        timed = calibration.time(prompts=prompts, fresh=fresh, **timing | {"graphs": calibration.wants_graphs(graphs)})
        report_timing(screen, calibration, timed, prompt_counts(screen, calibration, {"time": prompts}))
        if profile:
            report_profile(screen, calibration, timed, prompts, tick)
    screen.say(f"next: entmtp fit-thresholds {run_folder}")
    screen.finish("time")


def fit_thresholds(
    run_folder: opt.RunFolder,
    signal: opt.Signal = "auto",
    bank_rule: opt.BankRule = "hull",
    study: Annotated[
        bool, typer.Option("--study", help="Look at every signal, and try other orders of drafting.", show_default="off")
    ] = False,
    seed: opt.SameSeed = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Choose the bank from the timings, fit the policies by replay (typical acceptance: by rollouts) and write bank.json."""
    from entmtp_calib.calibrate.bank_rules import check_rule
    from entmtp_calib.signals import check_asked

    screen = Output(json, quiet)
    check_asked(signal)
    check_rule(bank_rule)
    with screen.progress() as tick:
        calibration = open_run(screen, run_folder, device, dtype, seed, tick)
        if study and not calibration.config.rule.lossless:
            screen.warn("--study replays texts, which typical acceptance does not allow; signals are compared, and not shown")
        if fresh:
            calibration.run.clear("fit-thresholds")
        calibration.require("timings.jsonl", "time")
        recalibrated = calibration.recalibrate(**calibration.options("recalibrate"))
        calibration.fit(signal, calibration.time(**as_timed(calibration)), recalibrated, study, bank_rule)
    _report_bank(screen, calibration)
    screen.say(f"next: entmtp decode --bank {run_folder / 'bank.json'} 'your prompt'")
    screen.finish("fit-thresholds")


def _search(screen: Output, calibration: Calibration, counts: Mapping[str, int]) -> None:
    """Grow the frontier, and say how it holds on other prompts."""
    screen.table(marked(frontier_table(search_and_tell(screen, calibration)), counts))
    held_out = calibration.generalisation()
    if held_out:
        screen.table(marked(generalisation_table(held_out), counts))


def _added(file: Path | None) -> dict[str, list[list[int]]] | None:
    """Node lists of a tree file by label, or None without one."""
    from entmtp_calib.imports import load_trees

    return {label: tree.to_lists() for label, tree in load_trees(file).items()} if file else None


def _check_depths(added: Mapping[str, Any] | None, pair: Pair) -> None:
    """Refuse trees that are too deep for the heads before the search has cost its time."""
    from entmtp_calib.engine.limits import check_depth
    from entmtp_calib.topology import from_lists

    for label, nodes in (added or {}).items():
        check_depth(from_lists(nodes, f"tree {label}"), pair.heads)


def _report_bank(screen: Output, calibration: Calibration) -> None:
    from entmtp_calib.bank import load_bank

    bank = load_bank(calibration.run.file("bank.json"))
    screen.table(arms_table(bank))
    screen.table(bank_table(bank))
    screen.table(policy_table(bank))
    report_study(screen, calibration.run.file("study.json"))
    screen.keep(bank_file=str(calibration.run.file("bank.json")), recommended=bank.recommended,
                prompts_used=bank.prompts.get("prompts_used", {}), too_small_to_trust=bank.too_small_to_trust)  # fmt: skip
    if bank.acceptance["rule"] != "exact":
        screen.text("Typical acceptance is not lossless: the text depends on the tree. Policies are fitted on recorded steps, as "
                    "if a choice did not change how well later steps go, and judged by rollouts of their own.")  # fmt: skip
    for sentence in verdict(bank):
        screen.text(sentence)
