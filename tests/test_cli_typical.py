"""Runs with typical acceptance from the command line, from timing to a bank that is verified by its rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import cli

from entmtp_calib.bank import load_bank
from entmtp_calib.calibrate.typical_fitting import METHOD
from entmtp_calib.engine.acceptance import Typical
from entmtp_calib.report.figure import Figure
from entmtp_calib.report.material import read_material
from entmtp_calib.report.switching import gain

SETTINGS = ("--acceptance", "typical", "--temperature", 1.0, "--epsilon", 0.001, "--schedule", "joint", "--search-prompts", 4,
            "--fit-prompts", 5, "--test-prompts", 3, "--max-new-tokens", 24, "--max-nodes", 8, "--dtype", "float32",
            "--device", "cpu")  # fmt: skip


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, tiny_heads: Path, prompt_file: Path) -> Path:
    """A run with typical acceptance up to its timings, in which the bank has three trees."""
    out = tmp_path_factory.mktemp("runs") / "typical"
    for words in (("search", "--out", out, "--model", tiny_folder, "--heads", tiny_heads, "--task", prompt_file, *SETTINGS),
                  ("recalibrate", out, "--trees", 3, "--prompts", 2), ("time", out, "--rounds", 2, "--prompts", 2)):  # fmt: skip
        result = cli(*words, "--quiet")
        assert result.exit_code == 0, result.output
    slow_down(out / "timings.jsonl")
    return out


def slow_down(path: Path, again: float = 1.0) -> None:
    """Make every step of a timing take what its rows make of it, so that the bank does not depend on this machine.

    Args:
        again: how many times slower the repeat of plain decoding is than plain decoding.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if "steps" in row:
            size = int(row["arm"][1:].split("-")[0]) if row["arm"][0] == "n" else 63 if row["arm"] == "default-63" else 0
            factor = again if row["arm"] == "ar-again" else 1.0
            row |= {"prefill_seconds": 0.01, "seconds": (0.01 + row["steps"] * (0.02 + 0.0001 * size)) * factor}
    path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))


def test_the_fit_ends_in_the_same_bytes_and_goes_on_where_it_was_killed(timed: Path) -> None:
    result = cli("fit-thresholds", timed, "--signal", "path_value_2")
    assert result.exit_code == 0, result.output
    assert "not lossless" in result.stdout
    bank = load_bank(timed / "bank.json")
    assert len(bank.trees) > 1
    assert bank.evaluation["method"] == METHOD
    assert ("No measurable gain" in result.stdout) == (bank.recommended == "static")
    files = {path: path.read_bytes() for path in sorted((timed / "rollouts" / "typical").iterdir())}
    assert len(files) >= 5 + 3 + 3
    before = json.loads((timed / "bank.json").read_text())
    for path in list(files)[::2]:
        path.unlink()
    assert cli("fit-thresholds", timed, "--signal", "path_value_2", "--quiet").exit_code == 0
    assert {path: path.read_bytes() for path in sorted((timed / "rollouts" / "typical").iterdir())} == files
    after = json.loads((timed / "bank.json").read_text())
    assert {**after, "provenance": 0, "measured": 0} == {**before, "provenance": 0, "measured": 0}


def test_auto_looks_at_every_signal_and_the_bank_decodes(timed: Path) -> None:
    assert cli("fit-thresholds", timed, "--quiet").exit_code == 0
    bank = load_bank(timed / "bank.json")
    assert bank.evaluation["signal_asked"] == "auto"
    found = gain(read_material(timed))
    assert isinstance(found, Figure)
    assert "not lossless" in found.notes[0]
    for policy in bank.policies:
        result = cli("decode", "--bank", timed / "bank.json", "Hello", "--policy", policy, "--max-new-tokens", 12, "--json")
        assert result.exit_code == 0, result.output
    assert cli("run", "--check", timed, "--quiet").exit_code == 0


def test_a_rollout_of_another_prompt_is_refused(timed: Path) -> None:
    assert cli("fit-thresholds", timed, "--signal", "path_value_2", "--quiet").exit_code == 0
    files = sorted((timed / "rollouts" / "typical").glob("recorded-fit-*.npz"))
    kept = files[0].read_bytes()
    files[0].write_bytes(files[1].read_bytes())
    result = cli("fit-thresholds", timed, "--signal", "path_value_2", "--quiet")
    assert result.exit_code == 3
    assert "another prompt" in result.stderr
    files[0].write_bytes(kept)


def test_timing_repeats_the_text_of_every_arm_and_has_an_a_a_floor(timed: Path) -> None:
    """Trees are faster only by more than plain decoding differs from itself, and an arm must write the same in all rounds."""
    path = timed / "timings.jsonl"
    kept = path.read_bytes()
    rows = [row for row in map(json.loads, kept.splitlines()) if row.get("round", -1) >= 0 and "steps" in row]
    texts = {(row["arm"], row["prompt"]): {row["ids"]} for row in rows}
    assert len(rows) == 2 * len(texts)
    assert all(row["ids"] in texts[row["arm"], row["prompt"]] for row in rows)
    assert texts["ar", rows[0]["prompt"]] == texts["ar-again", rows[0]["prompt"]]
    fit = ("fit-thresholds", timed, "--signal", "path_value_2", "--quiet")
    assert cli(*fit).exit_code == 0
    assert len(load_bank(timed / "bank.json").trees) > 1
    slow_down(path, 4.0)
    assert cli(*fit).exit_code == 0
    assert [tree.label for tree in load_bank(timed / "bank.json").trees] == ["ar"]
    lines = kept.splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if b'"ar-again"' in line and b'"round": 1' in line)
    lines[place] = lines[place].replace(json.loads(lines[place])["ids"].encode(), b"0123456789abcdef")
    path.write_bytes(b"".join(lines))
    result = cli("time", timed, "--rounds", 2, "--prompts", 2, "--quiet")
    assert result.exit_code == 1
    assert "wrote different tokens" in result.stderr
    path.write_bytes(kept)


def test_a_bank_with_typical_acceptance_is_verified_by_its_rule(timed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("fit-thresholds", timed, "--signal", "path_value_2", "--quiet").exit_code == 0
    words = ("verify", timed / "bank.json", "--prompts", 2, "--max-new-tokens", 20, "--dtype", "float32", "--json")
    rows = json.loads(cli(*words).stdout)["verification"]
    assert all((row["unlawful"], row["repeated"]) == (0, 2) for row in rows)
    assert sum(row["drafts"] for row in rows) > 10
    monkeypatch.setattr(Typical, "judge", lambda self, layout, tokens, logits, choices: (tokens >= 0, layout.depths.float()))
    result = cli(*words)
    assert result.exit_code == 4
    assert "break the rule" in result.stderr


def test_recalibration_says_how_likely_its_texts_are_beside_greedy_ones(timed: Path) -> None:
    result = cli("recalibrate", timed, "--trees", 3, "--prompts", 2, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    rows = {row["text"]: row["logp"] for row in document["quality"]}
    assert set(rows) == {"greedy decoding", *(row["tree"] for row in document["recalibration"])}
    journal = [json.loads(line) for line in (timed / "recalibration.jsonl").read_text().splitlines()][1:]
    own = [row for row in journal if row["tree"] == document["recalibration"][0]["tree"]][2:]  # behind those on new prompts
    assert len(own) == 4
    pooled = sum(row["logp"] * row["tokens"] for row in own) / sum(row["tokens"] for row in own)
    assert rows[own[0]["tree"]] == pytest.approx(pooled)
