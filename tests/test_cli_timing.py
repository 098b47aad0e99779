"""The timing stage from the command line: a budget, a profile, a rule of the bank."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import cli

START = ("--search-prompts", 4, "--fit-prompts", 3, "--test-prompts", 2, "--max-new-tokens", 24, "--max-nodes", 8,
         "--dtype", "float32", "--quiet")  # fmt: skip


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, tiny_heads: Path, prompt_file: Path) -> Path:
    """A run that was timed within a budget that holds everything."""
    out = tmp_path_factory.mktemp("runs") / "timed"
    for words in (
        ("search", "--out", out, "--model", tiny_folder, "--heads", tiny_heads, "--task", prompt_file, *START),
        ("recalibrate", out, "--trees", 3, "--prompts", 1, "--quiet"),
        ("time", out, "--rounds", 3, "--budget", "1h", "--prompts", 2, "--quiet"),
    ):
        result = cli(*words)
        assert result.exit_code == 0, result.output
    return out


def rows_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]


def test_a_budget_is_part_of_what_was_timed_and_the_environment_is_kept(timed: Path) -> None:
    first, *rows = rows_of(timed)
    assert (first["options"]["rounds"], first["options"]["budget"], first["options"]["prompts"]) == (3, 3600, 2)
    assert [row["environment"]["when"] for row in rows if "environment" in row] == ["start", "end"]
    result = cli("time", timed, "--rounds", 3, "--prompts", 2)
    assert result.exit_code == 3
    assert "other options" in result.stderr


def test_a_profile_is_printed_and_kept_without_timing_again(timed: Path) -> None:
    before = [row for row in rows_of(timed) if "profile" not in row]
    result = cli("time", timed, "--rounds", 3, "--budget", "1h", "--prompts", 2, "--profile", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    profile = document["profile"]
    assert profile["steps"] > 0
    assert profile["parts"]["target forward"]["median"] > 0
    assert set(profile["ratio"]) == {"median", "low", "high"}
    assert {row["part"] for row in document["profile_parts"]} >= {"drafting", "transfer", "whole step"}
    assert document["resolution"] > 0
    assert document["environment"][0]["threads"] == 1
    assert (document["budget"], isinstance(document["unsteady"], list)) == (3600, True)
    assert all(row["predicted_tokens_per_s"] > 0 for row in document["timings"] if row["arm"] != "ar-again")
    assert [row for row in rows_of(timed) if "profile" not in row] == before
    assert rows_of(timed)[-1]["profile"]["tree"] == profile["tree"]


@pytest.mark.parametrize("rule", ["conditional", "hull"])
def test_the_rule_of_a_bank_is_in_its_file(timed: Path, rule: str) -> None:
    result = cli("fit-thresholds", timed, "--bank-rule", rule, "--signal", "expected_chain_2", "--quiet")
    assert result.exit_code == 0, result.output
    bank = json.loads((timed / "bank.json").read_text())
    assert bank["evaluation"]["bank_rule"] == rule
    assert bank["trees"][0]["label"] == "ar"


def test_a_bank_names_the_machine_that_timed_it_wherever_it_was_fitted(timed: Path, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere"
    shutil.copytree(timed, out)
    first, *rows = rows_of(timed)
    for row in rows:
        if "environment" in row:
            row["environment"] |= {"cpu": "an abacus", "cores": 64}
    (out / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (first, *rows)))
    result = cli("fit-thresholds", out, "--signal", "expected_chain_2", "--quiet")
    assert result.exit_code == 0, result.output
    measured = json.loads((out / "bank.json").read_text())["measured"]
    assert (measured["cpu"], measured["cores"], measured["dtype"]) == ("an abacus", 64, "float32")


@pytest.mark.parametrize(
    ("words", "told"),
    [(("time", "x", "--budget", "soon"), "no length of time"), (("fit-thresholds", "x", "--bank-rule", "all"), "bank rule")],
)
def test_a_typo_is_refused_before_anything_is_loaded(words: tuple[str, ...], told: str) -> None:
    result = cli(*words)
    assert result.exit_code == 2
    assert told in result.stderr
