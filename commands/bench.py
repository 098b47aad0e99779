"""`bench`: a bank beside plain decoding and transformers' own ways, on the same prompts in one run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import _options as opt
from ._output import Column, Output, Table
from ._session import load_of_bank, say_graphs, token_ids

if TYPE_CHECKING:
    from entmtp_calib.bank import TopologyBank
    from entmtp_calib.calibrate.bench import Contestant
    from entmtp_calib.calibrate.rounds import Prompts
    from entmtp_calib.engine.pair import Pair

Rows = list[dict[str, Any]]


def bench(
    bank: opt.BankFile,
    task: opt.BankTask = None,
    data: opt.Data = None,
    prompts: Annotated[int, typer.Option(help="How many prompts, at most.", min=1)] = 20,
    rounds: opt.Rounds = 2,
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Other heads of the same target, to run the published tree with; may be repeated.", show_default="none"
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Time this arm beside plain decoding and no other; may be repeated.", show_default="all arms"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.csv, bench.json and bench.png.", show_default="none")] = None,
    model: opt.BankModel = None,
    heads: opt.BankHeads = None,
    max_new_tokens: opt.MaxNewTokens = 128,
    seed: opt.Seed = 1,
    graphs: opt.Graphs = "auto",
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Time the policies of a bank, plain decoding, the published tree and transformers, interleaved.

    The prompts are those that the bank's calibration kept for tests, or any of another task.
    """
    from entmtp_calib.bank import load_bank
    from entmtp_calib.calibrate.bench import check_arms, contestants, only_these, unseen_prompts
    from entmtp_calib.engine.head_files import load_heads
    from entmtp_calib.engine.pair import take

    screen = Output(json, quiet)
    found = load_bank(bank)
    check_arms(only or (), found, also or ())
    chosen, warning = unseen_prompts(found, task, data, prompts, seed)
    if warning:
        screen.warn(warning)
    others = [load_heads(name) for name in also or ()]
    pair = load_of_bank(screen, found, model, heads, device, dtype, graphs)
    entered = only_these(contestants(pair, found, seed, {other.name: take(other, pair.target) for other in others}), only or ())
    title = f"Tokens per second on {len(chosen)} prompts of {task or found.task}, prefill included, interleaved"
    rows, arms = _timed(screen, pair, entered, token_ids(found, chosen, pair), max_new_tokens, rounds, seed)
    table = bench_table(title, _ceiling(found, arms) + arms)
    screen.table(table)
    say_graphs(screen, pair)
    screen.keep(runs=rows, max_new_tokens=max_new_tokens)
    if out:
        _write(screen, out, table, rows)
    screen.finish("bench")


def _timed(
    screen: Output, pair: Pair, entered: Mapping[str, Contestant], texts: Prompts, max_new_tokens: int, rounds: int, seed: int
) -> tuple[Rows, Rows]:
    """Every run, and every arm with its figures, the fastest first."""
    from entmtp_calib.calibrate.bench import Scribe, over_static
    from entmtp_calib.calibrate.rounds import interleave
    from entmtp_calib.calibrate.timing import Arm, summarise
    from entmtp_calib.engine.stopping import StopRule
    from entmtp_calib.topology import Topology

    scribe, rows = Scribe(), list[dict[str, Any]]()
    runners = {label: scribe.watch(label, one.run) for label, one in entered.items()}
    total = len(runners) * len(texts) * rounds
    with screen.progress() as tick:
        interleave(runners, texts, StopRule(pair.target.end_ids, max_new_tokens), rounds, seed, rows,
                   on_run=lambda done: tick("bench", done, total))  # fmt: skip
        judged, against = scribe.judge(pair.target), over_static(rows)
    timed = summarise([Arm(label, Topology()) for label in runners], rows)
    return rows, [
        {"arm": arm.label, "nodes": entered[arm.label].nodes, "same_text": judged[arm.label].same, "logp": judged[arm.label].logp,
         **against.get(arm.label, {}), "tokens_per_s": arm.tokens_per_s, "tokens_per_step": arm.tokens_per_step,
         "speedup": arm.speedup, "speedup_low": arm.speedup_low, "speedup_high": arm.speedup_high, "cv": arm.cv,
         "interval": f"{arm.speedup_low:.2f}–{arm.speedup_high:.2f}"}
        for arm in sorted(timed, key=lambda arm: -arm.tokens_per_s)
    ]  # fmt: skip


def bench_table(title: str, rows: Rows) -> Table:
    """Arms with their figures."""
    columns = (Column("arm", "arm"), Column("nodes", "nodes", "", True), Column("tokens_per_s", "tokens/s", ".1f"),
               Column("tokens_per_step", "tokens/step", ".2f", True), Column("speedup", "× ar", ".2f"),
               Column("interval", "95 % interval"), Column("over_static", "× static", ".3f"),
               Column("over_static_interval", "95 % interval"), Column("cv", "cv", ".1%", True),
               Column("same_text", "text of ar", ".0%"), Column("logp", "log p/token", ".3f", True))  # fmt: skip
    return Table("bench", title, columns, rows)


def _ceiling(bank: TopologyBank, rows: Rows) -> Rows:
    """What the best choice of tree at every step would give: as many times the static tree as in the calibration's replay."""
    from entmtp_calib.report.contest import ORACLE

    replayed = bank.evaluation.get("policies", {}).get("static", {}).get("test_tokens_per_s")
    oracle = bank.evaluation.get("oracle_test_tokens_per_s")
    measured = next((row for row in rows if row["arm"] == "static"), None)
    if not replayed or not oracle or not measured:
        return []
    times = oracle / replayed
    return [{"arm": ORACLE, "nodes": max(tree.topology.size for tree in bank.trees),
             "tokens_per_s": measured["tokens_per_s"] * times, "speedup": measured["speedup"] * times}]  # fmt: skip


def _write(screen: Output, folder: Path, table: Table, runs: Rows) -> None:
    """The table as CSV, JSON with every run, and a picture."""
    from entmtp_calib.report.contest import bench as contest
    from entmtp_calib.report.drawing import to_png
    from entmtp_calib.report.figure import is_none, to_csv
    from entmtp_calib.storage import to_json, write_atomically

    figure = contest(table.title, table.rows)
    arms = [{name: None if is_none(value) else value for name, value in row.items()} for row in table.rows]
    document = {"format": "entmtp-bench", "version": 1, "title": table.title, "arms": arms, "runs": runs}
    files = {"bench.csv": to_csv(figure), "bench.json": to_json(document), "bench.png": to_png(figure)}
    for name, data in files.items():
        write_atomically(folder / name, data)
    screen.say(f"wrote {', '.join(files)} to {folder}")
