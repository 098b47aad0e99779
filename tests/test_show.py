"""What `show` draws: every tree of a bank, one tree with its shares, in signs that the terminal has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import cli
from made_runs import add_dynamic, add_search, begin, traces, whole

from entmtp_calib.bank import load_bank
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


def test_what_a_dynamic_policy_drafts_is_drawn_under_its_name(tmp_path: Path) -> None:
    made = whole(tmp_path / "run")
    add_dynamic(made, 3)
    size = load_bank(made.file("bank.json")).policies["dynamic"].drafted.size  # type: ignore[attr-defined]
    assert f"dynamic: {size} nodes, depth 3; best 3 of {size} drafted\nroot\n" in cli("show", made.path / "bank.json").stdout
    shown = cli("show", made.path, "--tree", "dynamic", "--json")
    rows = json.loads(shown.stdout)["accepted"]
    assert sum(row["verified"] for row in rows) == pytest.approx(3)
    line = f"{rows[0]['accepted']:.1%} (verified {rows[0]['verified']:.1%})"
    assert line in cli("show", made.path, "--tree", "dynamic").stdout
    assert "dynamic" in cli("show", made.path, "--tree", "nothing").stderr


def test_a_run_without_a_bank_has_no_tree_to_draw(tmp_path: Path) -> None:
    made = begin(tmp_path / "run")
    add_search(made)
    assert cli("show", made.path).exit_code == 0
    result = cli("show", made.path, "--tree", "chain")
    assert result.exit_code == 3
    assert "fit-thresholds" in result.stderr


def test_a_narrow_terminal_has_the_policies_without_minor_columns_and_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {}
    for columns in ("60", "80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        shown[columns] = cli("show", run / "bank.json").stdout
    assert "switches/100: 5.0" in shown["60"]
    assert "(not shown, the terminal is narrow: tokens/s, fit; headroom; switches/100)" in shown["80"].replace("\n", " ")
    assert "policy: " not in shown["80"]
    assert max(map(len, shown["80"].splitlines())) <= 80
    assert any("headroom  switches/100" in line for line in shown["200"].splitlines())
    assert "not shown" not in shown["200"]


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
