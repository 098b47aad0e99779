"""`show`: what a run folder or a bank holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _options as opt
from ._output import Column, Output, Table
from ._tables import bank_table, frontier_table, marked, policy_table


def show(
    path: Annotated[Path, typer.Argument(help="Run folder or bank.json.", metavar="RUN|BANK")],
    tree: Annotated[str | None, typer.Option(help="Draw one tree of the bank, by label.", show_default="none")] = None,
    seed: Annotated[int, typer.Option(help="Unused; accepted for uniformity.", hidden=True)] = 0,
    device: Annotated[str, typer.Option(help="Unused; accepted for uniformity.", hidden=True)] = "auto",
    dtype: Annotated[str, typer.Option(help="Unused; accepted for uniformity.", hidden=True)] = "auto",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show the state of a run, its frontier, and its bank with trees and policies."""
    from entmtp_calib.bank import load_bank
    from entmtp_calib.calibrate.search import frontier_from_json
    from entmtp_calib.errors import ArtefactError, UsageError
    from entmtp_calib.rundir import RunDir
    from entmtp_calib.storage import read_json
    from entmtp_calib.topology import draw
    from entmtp_calib.trust import prompts_used

    screen = Output(json, quiet)
    if not path.exists():
        raise ArtefactError(f"there is nothing at {path}.", "Give a run folder or a bank.json.")
    bank_path = path
    if path.is_dir():
        run = RunDir.open(path)
        _show_run(screen, run)
        if run.file("frontier.json").exists():
            frontier = frontier_from_json(read_json(run.file("frontier.json"), "frontier"))
            screen.table(marked(frontier_table(frontier), prompts_used(run)))
        bank_path = run.file("bank.json")
    if bank_path.exists():
        bank = load_bank(bank_path)
        screen.table(bank_table(bank))
        screen.table(policy_table(bank))
        screen.keep(trees={item.label: item.topology.to_lists() for item in bank.trees}, recommended=bank.recommended)
        if tree is not None:
            chosen = [item for item in bank.trees if item.label == tree]
            if not chosen:
                raise UsageError(f"the bank has no tree {tree!r}.", f"It has: {', '.join(item.label for item in bank.trees)}.")
            screen.text("\n".join(draw(chosen[0].topology)))
    screen.finish("show")


def _show_run(screen: Output, run: object) -> None:
    from entmtp_calib.rundir import STAGES, RunDir
    from entmtp_calib.storage import Journal

    assert isinstance(run, RunDir)
    screen.fields("config", run.about["config"], f"Run {run.path}")
    rows = []
    for stage, names in STAGES.items():
        path = run.file(names[-1])
        lines = len(Journal(path).rows()) - 1 if path.suffix == ".jsonl" else 0
        state = "absent" if not path.exists() else f"{lines} measurements" if lines else "complete"
        rows.append({"stage": stage, "file": names[-1], "state": state})
    columns = (Column("stage", "stage"), Column("file", "file"), Column("state", "state"))
    screen.table(Table("stages", "Stages", columns, rows))
