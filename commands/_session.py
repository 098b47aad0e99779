"""What commands do before and after the library's work: load a pair, open a run, say what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from entmtp_calib.errors import UsageError

from ._logging import log_to
from ._output import Output
from ._tables import prompts_table

if TYPE_CHECKING:
    from entmtp_calib.bank import TopologyBank
    from entmtp_calib.calibrate.pipeline import Calibration
    from entmtp_calib.calibrate.prompts import Prompt
    from entmtp_calib.calibrate.splits import Report, RunConfig, Splits
    from entmtp_calib.engine.pair import Pair
    from entmtp_calib.rundir import RunDir

DEFAULT_DEPTH = 4
MANY_LONG = 0.1  # share of too long prompts from which the rest speaks for short ones only
Tick = Callable[[str, int, int], None]


def load(out: Output, model: str, heads: str | None, device: str, dtype: str) -> Pair:
    """Load target and heads and say what was loaded and why so."""
    out.say(f"loading {model}" + (f" and {heads}" if heads else ""))
    from entmtp_calib.engine.loading import choose_placement
    from entmtp_calib.engine.pair import load_pair

    pair = load_pair(model, heads, choose_placement(device, dtype))
    out.say(f"running on {pair.placement.reason}; end tokens {sorted(pair.target.end_ids)}")
    for note in pair.notes:
        out.say(note)
    for warning in pair.warnings:
        out.warn(warning)
    if pair.sanity:
        rates = ", ".join(f"{rate:.0%}" for rate in pair.sanity.top10)
        out.say(f"self-tests passed; true token among a head's first ten guesses: {rates} (chance {pair.sanity.chance:.2%})")
    return pair


def load_of_bank(
    out: Output, bank: TopologyBank, model: str | None, heads: str | None, device: str, dtype: str, graphs: str = "off"
) -> Pair:
    """Load what a bank was made for, under the bank's names or others, and check that it is that.

    Raises:
        ArtefactError: another model, other heads or another template.
        UsageError: graphs that are asked for where there are none.
    """
    from entmtp_calib.calibrate.bank_decoder import check_pair
    from entmtp_calib.engine.loading import choose_placement
    from entmtp_calib.engine.pair import with_graphs
    from entmtp_calib.graph_mode import wants_graphs

    wanted = wants_graphs(graphs, str(choose_placement(device, dtype).device), bank.acceptance["rule"] == "exact")
    pair = load(out, model or bank.target["name"], heads or bank.heads["name"], device, dtype)
    check_pair(bank, pair)
    return with_graphs(pair, wanted)


def token_ids(bank: TopologyBank, prompts: Sequence[Prompt], pair: Pair) -> list[tuple[str, list[int]]]:
    """Names and token ids of prompts, encoded as the bank's own were."""
    from entmtp_calib.template import encode

    style = bank.template["style"]
    return [(prompt.id, encode(prompt.said(style), pair.tokenizer, style)) for prompt in prompts]


def say_graphs(out: Output, pair: Pair) -> None:
    """After decoding: whether steps were replayed from CUDA graphs, or why not."""
    from entmtp_calib.calibrate.environment import graphs_used

    out.keep(graphs=graphs_used(pair.graphs))
    if pair.graphs is None:
        return
    if pair.graphs.reason is not None:
        out.warn(f"steps were not captured as CUDA graphs and ran one by one: {pair.graphs.reason}")
    else:
        out.say("steps were replayed from CUDA graphs")


def start_run(out: Output, path: Path, config: RunConfig, fresh: bool, tick: Tick, dump: Path | None = None) -> Calibration:
    """Begin or reopen a run with these options; what can fail without a model fails before one is loaded.

    Args:
        dump: file for the prompts that are used, or None.
    """
    from entmtp_calib.calibrate.farm import farm_from_environment
    from entmtp_calib.calibrate.pipeline import Calibration, begin, serve
    from entmtp_calib.calibrate.prompt_dump import check_dump, dump_prompts
    from entmtp_calib.calibrate.prompts import load_prompts
    from entmtp_calib.calibrate.splits import load_splits
    from entmtp_calib.engine.limits import check_depth
    from entmtp_calib.topology import chain

    farm = farm_from_environment()
    out = Output(quiet=True) if farm.rank else out
    check_dump(dump)
    found = load_prompts(config.task, config.data, None, config.seed, turns=config.turns)
    pair = load(out, config.model, config.heads, config.device, config.dtype)
    placement = pair.placement
    depth = min(DEFAULT_DEPTH, pair.heads.depth) if config.max_depth is None else config.max_depth
    check_depth(chain(depth), pair.heads)
    config = replace(config, device=str(placement.device), dtype=placement.dtype_name, max_depth=depth)
    splits, report = load_splits(found, pair.tokenizer, pair.target, pair.heads.depth, config)
    if farm.rank:
        serve(farm, pair, splits, config)
        raise typer.Exit
    _tell(out, config.task, report)
    if dump is not None:
        dump_prompts(dump, splits, pair.tokenizer, config.prompt_style)
        out.say(f"prompts as they are used: {dump}")
    run = begin(path, config, pair, splits, report, fresh)
    log_to(run.path)
    return Calibration(run, lambda: pair, lambda _pair: splits, tick, farm)


def _tell(out: Output, task: str, report: Report) -> None:
    """Say which prompts are used, which are not, and why."""
    for note in report.notes:
        out.warn(note)
    out.table(prompts_table(task, report))
    out.say("prompts: " + ", ".join(f"{name} {count}" for name, count in report.used.items()))
    if report.long_share > MANY_LONG:
        out.warn(f"{report.long_share:.0%} of the prompts are too long for the context: the figures speak for shorter ones")


def open_run(out: Output, path: Path, device: str, dtype: str, seed: int | None, tick: Tick, log: bool = True) -> Calibration:
    """Reopen a run whose options are in the folder; models are loaded when a stage needs them.

    Args:
        log: write to the run's log, and keep other processes from writing in the run.

    Raises:
        UsageError: device, dtype or seed differ from the run's. EntmtpError: another process is at work in the run.
    """
    from entmtp_calib.calibrate.farm import farm_from_environment
    from entmtp_calib.calibrate.pipeline import Calibration, serve
    from entmtp_calib.calibrate.prompts import load_prompts
    from entmtp_calib.calibrate.splits import load_splits
    from entmtp_calib.rundir import RunDir
    from entmtp_calib.storage import hold

    run = RunDir.open(path)
    config = run.about["config"]
    for name, value in (("device", device), ("dtype", dtype), ("seed", seed)):
        if value not in ("auto", None) and value != config[name]:
            raise UsageError(f"this run has {name} {config[name]}, not {value}.", "A run keeps its options; start another.")

    def prompts(pair: Pair) -> Splits:
        options = calibration.config
        found = load_prompts(options.task, options.data, None, options.seed, turns=options.turns)
        return load_splits(found, pair.tokenizer, pair.target, pair.heads.depth, options)[0]

    def models() -> Pair:
        return load(out, config["model"], config["heads"], config["device"], config["dtype"])

    farm = farm_from_environment()
    out = Output(quiet=True) if farm.rank else out
    calibration = Calibration(run, models, prompts, tick, farm)
    if farm.rank:
        serve(farm, calibration.pair, calibration.splits, calibration.config)
        raise typer.Exit
    if log:
        hold(run.path)
        log_to(run.path)
    return calibration


def same_heads(run: RunDir, name: str) -> bool:
    """Whether the heads of that name are still those that a run was made with."""
    from entmtp_calib.engine.head_files import load_heads

    return load_heads(name).identity == run.about["inputs"]["heads"]["identity"]
