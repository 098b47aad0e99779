"""The figures in the documents are those of the banks and benches that lie beside them in `docs/results`.

What was measured is not measured again: the tables are made from its files, by the code that `entmtp show` and `bench` use.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import cli
from entmtp_calib.commands._output import Output, Table
from entmtp_calib.commands._scheduler import verdict
from entmtp_calib.commands._tables import policy_table
from entmtp_calib.commands.bench import bench_table as empty_table

from entmtp_calib import TopologyBank, load_bank
from entmtp_calib.engine.head_files import load_heads
from entmtp_calib.report.figure import Figure
from entmtp_calib.report.speed import search_time

ROOT = Path(__file__).parent.parent
RESULTS = (ROOT / "docs" / "results.md").read_text("utf-8")
TASKS = {"humaneval": "HumanEval", "gsm8k": "GSM8K, test", "sharegpt": "ShareGPT, held out"}


def bank_of(task: str) -> TopologyBank:
    return load_bank(ROOT / "docs" / "results" / f"{task}-bank.json")


def bench_of(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "results" / f"{name}-bench.json").read_text("utf-8"))


def bench_table(name: str) -> Table:
    """The table of `bench`, without the columns that a bench did not have when it was measured."""
    found = bench_of(name)
    table = empty_table("", [])
    known = {name for row in found["arms"] for name in row}
    return table._replace(title=found["title"], rows=found["arms"], columns=[c for c in table.columns if c.key in known])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[Table], str]:
    """What a table looks like on the page."""
    monkeypatch.setenv("COLUMNS", "120")

    def show(table: Table) -> str:
        Output().table(table)
        return "\n".join("    " + line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"

    return show


@pytest.mark.parametrize("name", [*TASKS, "gsm8k-dynamic", "sharegpt-dynamic"])
def test_benches_of_the_results_are_what_the_command_makes_of_their_files(name: str, made: Callable[[Table], str]) -> None:
    assert made(bench_table(name)) in RESULTS


@pytest.mark.parametrize("task", TASKS)
def test_policies_of_the_results_are_what_show_makes_of_the_banks(task: str, made: Callable[[Table], str]) -> None:
    assert made(policy_table(bank_of(task))) + "".join(f"    {sentence}\n" for sentence in verdict(bank_of(task))) in RESULTS


def test_the_table_of_the_readme_is_that_of_the_benches() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    for task, name in TASKS.items():
        arms, bank = {row["arm"]: row for row in bench_of(task)["arms"]}, bank_of(task)
        dynamic = bank.policies["dynamic"]
        cells = [f"{arms[arm]['speedup']:.2f} ({arms[arm]['interval']})" for arm in
                 ("static", "dynamic", "default-63", "smollm2-medusa, default-63", "prompt lookup", "generate")]  # fmt: skip
        cells[0] += f", {arms['static']['nodes']} nodes"
        cells[1] += f", {dynamic.sizes[0]} of {dynamic.drafted.size}"
        assert f"| {name} | {' | '.join(cells)} |" in text


def test_the_tree_of_the_readme_is_drawn_from_its_bank() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    words = shlex.split(re.findall(r"^    entmtp (show docs/.*)", text, re.MULTILINE)[0])
    drawn = cli(words[0], ROOT / words[1], *words[2:]).stdout.rstrip().rpartition("\n\n")[2]
    assert drawn.startswith(words[-1])
    assert textwrap.indent(drawn, "    ") in text


def test_the_banks_are_for_the_heads_that_ship() -> None:
    for task in TASKS:
        bank = bank_of(task)
        assert bank.heads["identity"] == load_heads(bank.heads["name"]).identity
        assert re.fullmatch(r"[0-9a-f]{12}", bank.provenance["revision"])


def test_search_times_are_those_of_the_table_and_can_be_drawn() -> None:
    path = ROOT / "docs" / "results" / "search-times.csv"
    figure = search_time(path)
    assert isinstance(figure, Figure)
    for row in figure.rows:
        assert f"| {row['prompts']} | {row['rollout_s']} | {row['growth_s']} |" in RESULTS
