"""`run`, `search`, `recalibrate`, `time` and `fit-thresholds`: the stages of a run, one by one or all together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _options as opt
from ._output import Output
from ._session import load, open_run, same_heads, start_run
from ._tables import arms_table, bank_table, frontier_table, policy_table, recalibration_table, timing_table

if TYPE_CHECKING:
    from entmtp_calib.calibrate.pipeline import Calibration


def run(
    out: opt.Out,
    model: opt.Model = "smollm2",
    heads: opt.Heads = "smollm2-hydra",
    task: opt.Task = "humaneval",
    data: opt.Data = None,
    prompt_style: opt.PromptStyle = "auto",
    search_prompts: opt.SearchPrompts = 32,
    fit_prompts: opt.FitPrompts = 24,
    test_prompts: opt.TestPrompts = 20,
    max_new_tokens: opt.MaxNewTokens = 96,
    max_nodes: opt.MaxNodes = 64,
    max_depth: opt.MaxDepth = None,
    trees: opt.Trees = 7,
    recalibrate_prompts: opt.RecalibratePrompts = 4,
    time_prompts: opt.TimePrompts = 4,
    rounds: opt.Rounds = 2,
    signal: opt.Signal = "path_value_4",
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Calibrate from prompts to a bank: search, recalibrate, time, fit thresholds, then decode a held-out prompt.

    A killed run goes on where it stopped when the same command is given again.
    """
    from entmtp_calib.calibrate.splits import RunConfig

    screen = Output(json, quiet)
    config = RunConfig(model, heads, task, data, prompt_style, seed, search_prompts, fit_prompts, test_prompts,
                       max_new_tokens, max_nodes, max_depth, device, dtype)  # fmt: skip
    if not fresh and _already_there(screen, out, config, {"trees": trees, "prompts": recalibrate_prompts},
                                    {"rounds": rounds, "prompts": time_prompts}, signal):  # fmt: skip
        screen.finish("run")
        return
    with screen.progress() as tick:
        calibration = start_run(screen, out, config, fresh, tick)
        screen.say("search: self-rollout and greedy growth")
        frontier = calibration.search()
        screen.table(frontier_table(frontier))
        screen.say("recalibrate: every tree by itself, on prompts that search did not see")
        recalibrated = calibration.recalibrate(trees, recalibrate_prompts)
        screen.table(recalibration_table(recalibrated))
        screen.say("time: every arm on every prompt, interleaved")
        timed = calibration.time(rounds, time_prompts)
        _report_timing(screen, timed)
        screen.say("fit-thresholds: policies by replay")
        calibration.fit(signal, timed, recalibrated)
    _report_bank(screen, calibration)
    _side_by_side(screen, calibration)
    screen.finish("run")


def search(
    out: opt.Out,
    model: opt.Model = "smollm2",
    heads: opt.Heads = "smollm2-hydra",
    task: opt.Task = "humaneval",
    data: opt.Data = None,
    prompt_style: opt.PromptStyle = "auto",
    search_prompts: opt.SearchPrompts = 32,
    fit_prompts: opt.FitPrompts = 24,
    test_prompts: opt.TestPrompts = 20,
    max_new_tokens: opt.MaxNewTokens = 96,
    max_nodes: opt.MaxNodes = 64,
    max_depth: opt.MaxDepth = None,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Begin a run: let the target write the search prompts and grow trees from what the heads guessed."""
    from entmtp_calib.calibrate.splits import RunConfig

    screen = Output(json, quiet)
    config = RunConfig(model, heads, task, data, prompt_style, seed, search_prompts, fit_prompts, test_prompts,
                       max_new_tokens, max_nodes, max_depth, device, dtype)  # fmt: skip
    with screen.progress() as tick:
        calibration = start_run(screen, out, config, fresh, tick)
        frontier = calibration.search()
    screen.table(frontier_table(frontier))
    screen.say(f"next: entmtp recalibrate {out}")
    screen.finish("search")


def recalibrate(
    run_folder: opt.RunFolder,
    trees: opt.Trees = 7,
    prompts: opt.RecalibratePrompts = 4,
    seed: opt.SameSeed = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run candidate trees by themselves on new prompts and compare with what the search predicted."""
    screen = Output(json, quiet)
    with screen.progress() as tick:
        calibration = open_run(screen, run_folder, device, dtype, seed, tick)
        recalibrated = calibration.recalibrate(trees, prompts, fresh)
    screen.table(recalibration_table(recalibrated))
    screen.say(f"next: entmtp time {run_folder}")
    screen.finish("recalibrate")


def time(
    run_folder: opt.RunFolder,
    rounds: opt.Rounds = 2,
    prompts: opt.TimePrompts = 4,
    seed: opt.SameSeed = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Time plain decoding, every candidate and the published 63-node tree, end to end and interleaved."""
    screen = Output(json, quiet)
    with screen.progress() as tick:
        calibration = open_run(screen, run_folder, device, dtype, seed, tick)
        timed = calibration.time(rounds, prompts, fresh)
    _report_timing(screen, timed)
    screen.say(f"next: entmtp fit-thresholds {run_folder}")
    screen.finish("time")


def fit_thresholds(
    run_folder: opt.RunFolder,
    signal: opt.Signal = "path_value_4",
    seed: opt.SameSeed = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Choose the bank from the timings, fit the policies by replay and write bank.json."""
    screen = Output(json, quiet)
    with screen.progress() as tick:
        calibration = open_run(screen, run_folder, device, dtype, seed, tick)
        if fresh:
            calibration.run.clear("fit-thresholds")
        calibration.require("timings.jsonl", "time")
        recalibrated = calibration.recalibrate(**calibration.options("recalibrate"))
        timing = {name: calibration.options("time")[name] for name in ("rounds", "prompts")}
        calibration.fit(signal, calibration.time(**timing), recalibrated)
    _report_bank(screen, calibration)
    screen.say(f"next: entmtp decode --bank {run_folder / 'bank.json'} 'your prompt'")
    screen.finish("fit-thresholds")


def _already_there(screen: Output, out: Path, config: Any, recalibrate: Any, timing: Any, signal: str) -> bool:
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
    if asdict(wanted) != there.about["config"] or bank.signal != signal or stages[0] != recalibrate:
        return False
    if {name: stages[1].get(name) for name in timing} != timing:
        return False
    screen.say(f"{out} holds this run, finished: nothing to do. Use --fresh to start over.")
    screen.table(bank_table(bank))
    screen.table(policy_table(bank))
    screen.keep(status="nothing to do", bank=str(out / "bank.json"))
    return True


def _report_timing(screen: Output, timed: list[Any]) -> None:
    from entmtp_calib.calibrate.timing import AR_AGAIN

    screen.table(timing_table(timed))
    again = next(arm for arm in timed if arm.label == AR_AGAIN)
    screen.say(
        f"A/A check: plain decoding against itself gives {again.speedup:.3f} ({again.speedup_low:.3f}–{again.speedup_high:.3f})"
    )
    noisy = max(timed, key=lambda arm: arm.cv)
    if noisy.cv > 0.1:
        screen.warn(f"rounds of {noisy.label} differ by {noisy.cv:.0%}: close other programs, or give more --rounds")


def _report_bank(screen: Output, calibration: Calibration) -> None:
    from entmtp_calib.bank import load_bank

    bank = load_bank(calibration.run.file("bank.json"))
    screen.table(arms_table(bank))
    screen.table(bank_table(bank))
    screen.table(policy_table(bank))
    screen.keep(bank_file=str(calibration.run.file("bank.json")), recommended=bank.recommended)
    if bank.recommended == "static":
        screen.text("No policy that switches has a measurable gain over the best static tree: static is recommended.")
    else:
        screen.text(f"Recommended: {bank.recommended}.")


def _side_by_side(screen: Output, calibration: Calibration) -> None:
    """Decode one prompt that nothing has seen, with the bank and without."""
    from entmtp_calib.bank import load_bank
    from entmtp_calib.calibrate.comparison import compare_with_plain

    bank = load_bank(calibration.run.file("bank.json"))
    name, ids = calibration.splits.test[0]
    found = compare_with_plain(calibration.pair, bank, "auto", ids, calibration.stop)
    screen.text(f"\nHeld-out prompt {name}, decoded with the bank ({bank.recommended}) and without:")
    screen.text("\n".join("  " + line for line in found.text.splitlines()[:12]))
    screen.fields("side_by_side", {"prompt": name} | _figures(found))
    if not found.same_text:
        where = f"the texts part at token {found.parted_at}, where the two best logits are {found.gap:.3g} apart"
        screen.warn(f"{where} ({found.verdict})")
        if calibration.config.dtype != "float32":
            _exact(screen, calibration, bank, ids)


def _exact(screen: Output, calibration: Calibration, bank: Any, ids: list[int]) -> None:
    """Decode the prompt once more in float32, where trees and plain decoding write the same text."""
    from entmtp_calib.calibrate.comparison import compare_with_plain

    config = calibration.config
    pair = load(Output(quiet=True), config.model, config.heads, config.device, "float32")
    found = compare_with_plain(pair, bank, "auto", ids, calibration.stop)
    screen.text("The same prompt in float32, where texts do not depend on rounding:")
    screen.fields("side_by_side_float32", _figures(found))


def _figures(found: Any) -> dict[str, Any]:
    return {
        "same_text": found.same_text,
        "tokens": found.tokens,
        "tokens_per_step": found.tokens_per_step,
        "tokens_per_s_bank": found.tokens_per_s,
        "tokens_per_s_plain": found.plain_tokens_per_s,
        "ratio": found.tokens_per_s / found.plain_tokens_per_s,
    }
