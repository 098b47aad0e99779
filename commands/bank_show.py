"""`show`: what a run folder or a bank holds, as tables and drawn trees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import _completion as known
from . import _options as opt
from ._output import Column, Output, Table
from ._tables import bank_table, describe, frontier_table, marked, policy_table

if TYPE_CHECKING:
    from entmtp_calib.bank import TopologyBank
    from entmtp_calib.rundir import RunDir
    from entmtp_calib.topology import Topology


def show(
    path: Annotated[Path, typer.Argument(help="Run folder or bank.json.", metavar="RUN|BANK")],
    tree: Annotated[
        str | None,
        typer.Option(
            help="Draw this tree, or what this dynamic policy drafts, with the share of steps at which each node is accepted if "
            "the run is there.",
            show_default="all trees of a bank, none of a run",
            autocompletion=known.drawable,
        ),
    ] = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show the state of a run, its frontier, and its bank with trees and policies."""
    from entmtp_calib.bank import load_bank
    from entmtp_calib.errors import ArtefactError
    from entmtp_calib.rundir import RunDir

    screen = Output(json, quiet)
    if not path.exists():
        raise ArtefactError(f"there is nothing at {path}.", "Give a run folder or a bank.json.")
    bank_path = path
    if path.is_dir():
        run = RunDir.open(path)
        _show_run(screen, run)
        bank_path = run.file("bank.json")
    if bank_path.exists():
        bank = load_bank(bank_path)
        screen.table(bank_table(bank))
        screen.table(policy_table(bank))
        screen.keep(trees={item.label: item.topology.to_lists() for item in bank.trees}, recommended=bank.recommended)
        if tree is not None or not path.is_dir():
            _draw_trees(screen, bank, tree, bank_path)
    elif tree is not None:
        raise ArtefactError(f"the run {path} has no bank yet.", f"Run first: entmtp fit-thresholds {path}")
    screen.finish("show")


def _draw_trees(screen: Output, bank: TopologyBank, wanted: str | None, bank_path: Path) -> None:
    """Draw the tree of that label, or all; what a dynamic policy drafts goes by the policy's name."""
    from entmtp_calib.errors import UsageError
    from entmtp_calib.topology import draw

    trees = _trees(bank)
    if wanted is not None and wanted not in trees:
        raise UsageError(f"the bank has no tree {wanted!r}.", f"It has: {', '.join(trees)}.")
    rows = _acceptance(bank, wanted, bank_path.parent) if wanted is not None else []
    beside = {tuple(map(int, row["node"].split("."))): _shares(row) for row in rows}
    if rows:
        screen.keep(accepted=rows)
    for label in trees if wanted is None else [wanted]:
        tree, policy = trees[label], bank.policies.get(label)
        about = f"{tree}; {describe(policy, bank)}" if policy is not None and policy.kind == "dynamic" else str(tree)
        screen.text(f"\n{label}: {about}" + (f"; accepted at that share of {rows[0]['steps']} steps" if rows else ""))
        screen.text("\n".join(draw(tree, beside)))


def _trees(bank: TopologyBank) -> dict[str, Topology]:
    """The bank's trees by label, and behind them what its dynamic policies draft by the policy's name."""
    from entmtp_calib.policy import Dynamic

    drafted = {name: policy.drafted for name, policy in bank.policies.items() if isinstance(policy, Dynamic)}
    return {item.label: item.topology for item in bank.trees} | drafted


def _shares(row: dict[str, Any]) -> str:
    return f"{row['accepted']:.1%}" + (f" (verified {row['verified']:.1%})" if "verified" in row else "")


def _acceptance(bank: TopologyBank, label: str, folder: Path) -> list[dict[str, Any]]:
    """How often each node is accepted, by replay of the traces of the run that the bank lies in; empty where there are none."""
    if not (folder / "run.json").exists():
        return []
    from entmtp_calib.policy import Dynamic
    from entmtp_calib.report.material import read_material
    from entmtp_calib.report.trees import drafted_acceptance, node_acceptance

    material, policy, tree = read_material(folder), bank.policies.get(label), _trees(bank)[label]
    if not tree.nodes or not material.replayable or not material.unseen:
        return []
    if isinstance(policy, Dynamic):
        return drafted_acceptance(material, bank, policy)
    return node_acceptance(tree, material.traces[material.unseen])


def _show_run(screen: Output, run: RunDir) -> None:
    """Options, how far the stages are, and the frontier."""
    from entmtp_calib.calibrate.search import frontier_from_json
    from entmtp_calib.rundir import STAGES
    from entmtp_calib.storage import Journal, read_json
    from entmtp_calib.trust import prompts_used

    screen.fields("config", run.about["config"], f"Run {run.path}")
    rows = []
    for stage, names in STAGES.items():
        path = run.file(names[-1])
        lines = len(Journal(path).rows()) - 1 if path.suffix == ".jsonl" else 0
        state = "absent" if not path.exists() else f"{lines} measurements" if lines else "complete"
        rows.append({"stage": stage, "file": names[-1], "state": state})
    columns = (Column("stage", "stage"), Column("file", "file"), Column("state", "state"))
    screen.table(Table("stages", "Stages", columns, rows))
    if run.file("frontier.json").exists():
        frontier = frontier_from_json(read_json(run.file("frontier.json"), "frontier"))
        screen.table(marked(frontier_table(frontier), prompts_used(run)))
