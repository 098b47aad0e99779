"""The study of signals and policies from the command line, on the tiny world."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import cli

from entmtp_calib import load_bank
from entmtp_calib.signals import signal_names


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, tiny_heads: Path, prompt_file: Path) -> Path:
    """A run up to its timings."""
    out = tmp_path_factory.mktemp("runs") / "run"
    for words in (
        ("search", "--out", out, "--model", tiny_folder, "--heads", tiny_heads, "--task", prompt_file, "--search-prompts", 8,
         "--fit-prompts", 5, "--test-prompts", 3, "--max-new-tokens", 16, "--max-nodes", 6, "--max-depth", 3,
         "--dtype", "float32", "--device", "cpu"),
        ("recalibrate", out, "--trees", 2, "--prompts", 1),
        ("time", out, "--rounds", 1, "--prompts", 1),
    ):  # fmt: skip
        result = cli(*words, "--quiet")
        assert result.exit_code == 0, result.output
    return out


def test_the_study_is_printed_kept_and_the_same_again(timed: Path) -> None:
    result = cli("fit-thresholds", timed, "--study", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [row["signal"] for row in document["signals"]] == signal_names(3)
    study = json.loads((timed / "study.json").read_text())
    assert study["format"] == "entmtp-study"
    assert [row["name"] for row in study["signals"]] == signal_names(3)
    assert study["asked"] == "auto"
    assert [row["size"] for row in study["dynamic"]["rows"]] == sorted(row["size"] for row in study["dynamic"]["rows"])
    assert len(document["reliability"]) == len(study["signals"][0]["reliability"])
    bank = load_bank(timed / "bank.json")
    assert bank.evaluation["signal_asked"] == "auto"
    assert bank.signal.name in signal_names(3)
    before = {name: (timed / name).read_bytes() for name in ("bank.json", "study.json")}
    assert cli("fit-thresholds", timed, "--study", "--quiet").exit_code == 0
    for name, data in before.items():
        now, then = json.loads((timed / name).read_text()), json.loads(data)
        assert {**now, "provenance": 0, "measured": 0} == {**then, "provenance": 0, "measured": 0}


def test_a_named_signal_needs_no_study_and_words_say_what_switching_is_worth(timed: Path) -> None:
    result = cli("fit-thresholds", timed, "--signal", "combined", "--quiet")
    assert result.exit_code == 0, result.output
    assert not (timed / "study.json").exists()
    bank = load_bank(timed / "bank.json")
    assert (bank.signal.name, bank.signal.depth) == ("combined", 3)
    assert set(bank.policies) == {"static", "ladder", "hysteresis", "dynamic"}
    assert "The oracle is" in result.stdout
    assert ("No measurable gain" in result.stdout) == (bank.recommended == "static")
    for name, policy in bank.policies.items():
        assert policy.kind == name
    assert cli("fit-thresholds", timed, "--signal", "mood").exit_code == 2
