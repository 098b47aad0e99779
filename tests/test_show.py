"""What `show` draws: every tree of a bank, one tree with its shares, in signs that the terminal has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import cli
from made_runs import add_search, begin, traces, whole

from entmtp_calib.evidence import mean_accept
from entmtp_calib.topology import Topology, draw


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(tmp_path_factory.mktemp("shown") / "run").path


def test_all_trees_of_a_bank_are_drawn(run: Path) -> None:
    shown = cli("show", run / "bank.json").stdout
    assert "chain: 2 nodes, depth 2\nroot\n└─ 0\n   └─ 0\n" in shown
    assert "ar: autoregressive\nroot\n" in shown
    assert "└─ 1\n   └─ 0\n" in shown
    assert "\nroot\n" not in cli("show", run).stdout


def test_one_tree_has_the_shares_that_its_run_gives(run: Path, tmp_path: Path) -> None:
    document = json.loads(cli("show", run, "--tree", "chain", "--json").stdout)
    tree = Topology(((0,), (0, 0)))
    assert sum(row["accepted"] for row in document["accepted"]) == pytest.approx(mean_accept(tree, traces("test")))
    share = f"└─ 0  {document['accepted'][0]['accepted']:.1%}\n"
    assert share in cli("show", run, "--tree", "chain").stdout
    assert share in cli("show", run / "bank.json", "--tree", "chain").stdout
    (tmp_path / "bank.json").write_bytes((run / "bank.json").read_bytes())  # away from its run
    assert "└─ 0\n" in cli("show", tmp_path / "bank.json", "--tree", "chain").stdout


def test_a_run_without_a_bank_has_no_tree_to_draw(tmp_path: Path) -> None:
    made = begin(tmp_path / "run")
    add_search(made)
    assert cli("show", made.path).exit_code == 0
    result = cli("show", made.path, "--tree", "chain")
    assert result.exit_code == 3
    assert "fit-thresholds" in result.stderr


def test_a_terminal_without_unicode_gets_other_signs(run: Path) -> None:
    words = [sys.executable, "-m", "entmtp_calib", "show", str(run / "bank.json")]
    shown = subprocess.run(words, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert shown.returncode == 0, shown.stderr
    text = shown.stdout.decode("ascii").replace("\r\n", "\n")
    wide = text[text.index("wide: 6 nodes") :].splitlines()[1:]
    assert [len(line) for line in wide] == [len(line) for line in draw(Topology(((0,), (1,), (0, 0), (1, 0), (0, 1), (0, 0, 0))))]
    assert wide[0] == "root"


def test_what_stands_beside_nodes_stands_on_their_lines() -> None:
    tree = Topology(((0,), (1,), (0, 0)))
    assert list(draw(tree, {(0, 0): "x", (1,): "y"})) == ["root", "├─ 0", "│  └─ 0  x", "└─ 1  y"]
