"""Laws of comparing banks: equal ones do not differ, noise is told from difference, and foreign timings are left alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import cli
from test_bank import small_bank, tree

from entmtp_calib.bank import TopologyBank
from entmtp_calib.bank_difference import Source, accept_intervals, compare_banks
from entmtp_calib.topology import Topology, published_default

SMALL = Topology(((0,), (1,), (0, 0)))
WIDER = {"n3-d2": (0.5, 1.0), "default-63": (1.0, 1.25)}


def source(bank: TopologyBank, accept: dict | None = None) -> Source:
    return Source(Path("bank.json"), bank, WIDER if accept is None else accept)


def with_speedup(low: float, speedup: float, high: float, accept: float = 0.75) -> TopologyBank:
    found = small_bank()
    changed = tree("n3-d2", SMALL, accept, 1.75, 62.5, 0.028, 0.001, speedup, low, high)
    return replace(found, trees=(found.trees[0], changed, found.trees[2]))


def test_a_bank_does_not_differ_from_itself() -> None:
    found = compare_banks(source(small_bank()), source(small_bank()))
    assert found.shared == ("ar", "n3-d2", "default-63")
    assert (found.first_only, found.second_only, found.remarks, found.untimed) == ((), (), (), "")
    assert found.verdict == "No difference beyond noise."
    assert [pair.what for pair in found.pairs] == ["mean accept", "speedup"] * 2


def test_what_lies_within_the_intervals_is_noise_and_what_lies_beyond_is_named() -> None:
    assert "No difference" in compare_banks(source(small_bank()), source(with_speedup(1.55, 1.6, 1.65))).verdict
    found = compare_banks(source(small_bank()), source(with_speedup(2.4, 2.5, 2.6)))
    assert found.verdict == "Beyond noise: speedup of n3-d2 (1.56 and 2.5)."
    assert [pair.apart for pair in found.pairs] == [False, True, False, False]
    found = compare_banks(source(small_bank()), source(with_speedup(1.5, 1.5625, 1.625, accept=1.9)))
    assert "mean accept of n3-d2 (0.75 and 1.9)" in found.verdict


def test_equal_banks_look_different_in_one_case_in_twenty_at_most() -> None:
    """Both banks measure the same speedups with noise of the size that their intervals say: 400 draws, wrong 5 %, ± 3.3 %."""
    rng = random.Random(0)
    wrong = 0
    for _ in range(400):
        banks = []
        for _bank in range(2):
            middle = rng.gauss(1.5, 0.05)
            banks.append(with_speedup(middle - 0.098, middle, middle + 0.098))
        wrong += "Beyond noise" in compare_banks(source(banks[0]), source(banks[1])).verdict
    assert wrong <= 33


def test_timings_of_another_machine_or_dtype_are_not_compared_and_acceptance_is() -> None:
    for name, value in (("cpu", "another"), ("dtype", "bfloat16"), ("device", "cuda:0")):
        faster = with_speedup(2.4, 2.5, 2.6)
        other = replace(faster, measured=faster.measured | {name: value})
        found = compare_banks(source(small_bank()), source(other))
        assert {pair.what for pair in found.pairs} == {"mean accept"}
        assert found.verdict.startswith("No difference beyond noise. Timings are not compared: ")
        assert value in found.untimed


def test_trees_of_one_bank_are_counted_node_by_node_against_the_nearest() -> None:
    other = replace(small_bank(), trees=(*small_bank().trees[:1],
                    tree("n4-d2", Topology((*SMALL.nodes, (0, 1))), 1, 2, 3, 4, 5, 1.6, 1.5, 1.7),
                    tree("the-63", published_default(), 1.125, 2.125, 64, 0.03, 0.004, 1.6, 1.4, 1.8)))  # fmt: skip
    found = compare_banks(source(small_bank()), source(other))
    assert found.shared == ("ar", "default-63")  # by nodes, whatever the label
    (lone,) = found.first_only
    assert (lone.label, lone.nearest, lone.only_here, lone.only_there) == ("n3-d2", "n4-d2", 0, 1)
    (lone,) = found.second_only
    assert (lone.label, lone.nearest, lone.only_here, lone.only_there) == ("n4-d2", "n3-d2", 1, 0)
    assert any(pair.tree == "best (n3-d2, n4-d2)" for pair in found.pairs)


def test_without_intervals_acceptance_is_not_judged() -> None:
    found = compare_banks(source(small_bank(), {}), source(with_speedup(1.5, 1.5625, 1.625, accept=3.0), {}))
    assert found.verdict == "No difference beyond noise. Not judged, since no interval is known: mean accept."


def test_other_models_heads_and_rules_are_remarked() -> None:
    other = replace(small_bank(), target=small_bank().target | {"identity": "sha256:x", "name": "larger"},
                    acceptance={"rule": "exact", "temperature": 0.7}, too_small_to_trust=True)  # fmt: skip
    remarks = " ".join(compare_banks(source(small_bank()), source(other)).remarks)
    assert "other model: tiny and larger" in remarks
    assert "other acceptance" in remarks
    assert "second bank rests on too few" in remarks


def test_acceptance_intervals_hold_the_pooled_mean_and_need_two_prompts() -> None:
    rng = np.random.default_rng(0)
    rows = [{"tree": "a", "accepted": int(rng.poisson(20)), "steps": 20} for _ in range(30)]
    rows.append({"tree": "b", "accepted": 3, "steps": 5})
    found = accept_intervals(rows)
    low, high = found["a"]
    assert low < sum(row["accepted"] for row in rows[:-1]) / 600 < high
    assert high - low == pytest.approx(2 * 1.96 * 20**0.5 / 20 / 30**0.5, rel=0.3)
    assert "b" not in found


def test_the_command_takes_files_and_run_folders(tmp_path: Path) -> None:
    for name, bank in (("a", small_bank()), ("b", with_speedup(2.4, 2.5, 2.6))):
        (tmp_path / name).mkdir()
        bank.save(tmp_path / name / "bank.json")
        rows = [{"options": {}}] + [{"tree": "n3-d2", "accepted": 15 + k, "steps": 20} for k in range(3)]
        (tmp_path / name / "recalibration.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = cli("compare", tmp_path / "a", tmp_path / "b" / "bank.json", tmp_path / "a")
    assert result.exit_code == 0, result.output
    assert "humaneval: Beyond noise: speedup of n3-d2" in result.stdout
    assert "humaneval: No difference beyond noise." in result.stdout
    document = json.loads(cli("compare", tmp_path / "a", tmp_path / "b", "--json").stdout)
    (found,) = document["comparisons"]
    assert found["pairs"][0]["first_interval"] == found["pairs"][0]["second_interval"]
    assert cli("compare", tmp_path / "a").exit_code == 2
    assert cli("compare", tmp_path / "a", tmp_path / "absent").exit_code == 3
