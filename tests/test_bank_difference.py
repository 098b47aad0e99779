"""Laws of comparing banks: equal ones do not differ, noise is told from difference, foreign timings and other trees are named."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import cli
from small_banks import small_bank, tree

from entmtp_calib.bank import TopologyBank
from entmtp_calib.calibrate.bank_difference import Counts, Source, compare_banks, counts_of
from entmtp_calib.policy import Dynamic, Ladder
from entmtp_calib.signals import Signal
from entmtp_calib.topology import Topology, published_default

SMALL = Topology(((0,), (1,), (0, 0)))
ACCEPT = {"n3-d2": {"a": (12, 20), "b": (18, 20)}, "default-63": {"a": (20, 20), "b": (25, 20)}}


def source(bank: TopologyBank, counts: dict[str, Counts] | None = None) -> Source:
    return Source(Path("bank.json"), bank, ACCEPT if counts is None else counts)


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
    assert found.verdict == "Beyond noise: speedup of n3-d2 (1.562 and 2.500)."
    assert [pair.apart for pair in found.pairs] == [False, True, False, False]
    strange = {"n3-d2": {"c": (38, 20), "d": (38, 20)}}
    found = compare_banks(source(small_bank()), source(with_speedup(1.5, 1.5625, 1.625, accept=1.9), strange))
    assert "No difference" in found.verdict  # two prompts say little
    steady = {"n3-d2": dict.fromkeys("abcd", (15, 20))}, {"n3-d2": dict.fromkeys("efgh", (38, 20))}
    found = compare_banks(source(small_bank(), steady[0]), source(with_speedup(1.5, 1.5625, 1.625, accept=1.9), steady[1]))
    assert "mean accept of n3-d2 (0.750 and 1.900)" in found.verdict


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


def drawn(rng: np.random.Generator, easy: np.ndarray, gain: float, names: str) -> Source:
    """A bank whose tree accepted so often on prompts that are so easy."""
    counts = {f"{names}{number}": (int(rng.poisson(30 * gain * ease)), 40) for number, ease in enumerate(easy)}
    mean = sum(accepted for accepted, _steps in counts.values()) / 40 / len(counts)
    return source(with_speedup(1.5, 1.5625, 1.625, accept=mean), {"n3-d2": counts})


def shares_apart(prompts: int, gain: float, alike: bool, draws: int = 300) -> float:
    """How often mean accept comes out as different; alike: both banks decoded the same prompts, else others of the same kind."""
    rng = np.random.default_rng(prompts)
    found = 0
    for _ in range(draws):
        easy = rng.lognormal(0, 0.3, (2, prompts))
        pair = drawn(rng, easy[0], 1.0, "a"), drawn(rng, easy[0 if alike else 1], gain, "a" if alike else "b")
        found += any(pair.apart for pair in compare_banks(*pair).pairs if pair.what == "mean accept")
    return found / draws


@pytest.mark.parametrize("prompts", [3, 5, 20])
@pytest.mark.parametrize("alike", [True, False])
def test_few_prompts_make_no_false_difference_of_mean_accept(prompts: int, alike: bool) -> None:
    """At most 5 % in truth; the 300 draws of one seed may show 8 %."""
    assert shares_apart(prompts, 1.0, alike) <= 0.08


def test_a_real_difference_is_found_and_sooner_on_the_same_prompts() -> None:
    assert shares_apart(20, 1.25, alike=True, draws=100) > 0.9
    assert 0.2 < shares_apart(20, 1.25, alike=False, draws=100) < 0.8


def test_timings_of_another_machine_or_dtype_are_not_compared_and_acceptance_is() -> None:
    for name, value in (("cpu", "another"), ("cores", 64), ("dtype", "bfloat16"), ("device", "cuda:0"), ("graphs", "on")):
        faster = with_speedup(2.4, 2.5, 2.6)
        other = replace(faster, measured=faster.measured | {name: value})
        found = compare_banks(source(small_bank()), source(other))
        assert {pair.what for pair in found.pairs} == {"mean accept"}
        assert found.verdict.startswith("No difference beyond noise. Timings are not compared: ")
        assert str(value) in found.untimed
        assert "None" not in found.untimed


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


def test_without_a_recalibration_mean_accept_is_not_judged() -> None:
    found = compare_banks(source(small_bank(), {}), source(with_speedup(1.5, 1.5625, 1.625, accept=3.0), {}))
    assert found.verdict.startswith("No difference beyond noise. Mean accept is not judged where no recalibration")


def test_other_models_heads_and_rules_are_remarked() -> None:
    other = replace(small_bank(), target=small_bank().target | {"identity": "sha256:x", "name": "larger"},
                    acceptance={"rule": "exact", "temperature": 0.7}, too_small_to_trust=True)  # fmt: skip
    remarks = " ".join(compare_banks(source(small_bank()), source(other)).remarks)
    assert "other model: tiny and larger" in remarks
    assert "other acceptance" in remarks
    assert "second bank rests on too few" in remarks


def test_policies_are_compared_by_what_they_do_and_by_what_they_gain() -> None:
    def gaining(ratio: float, **more: object) -> Source:
        gain = {"gain": {"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01}}
        return source(replace(small_bank(), evaluation={"policies": {"ladder": gain}}, **more))

    found = compare_banks(gaining(1.02), gaining(1.02))
    assert (found.verdict, found.remarks) == ("No difference beyond noise.", ())
    assert "gain over static of ladder (1.020 and 1.120)" in compare_banks(gaining(1.02), gaining(1.12)).verdict
    edges = small_bank().policies | {"ladder": Ladder((0.125, 0.75), (0, 1, 2)), "dynamic": Dynamic((), (2,), SMALL)}
    other = gaining(1.02, policies=edges, recommended="static", signal=Signal("entropy"), limits={"max_new_tokens": 64})
    remarks = compare_banks(gaining(1.02), other).remarks
    assert "other signal: path_value_2 and entropy" in remarks
    assert "other recommended policy: ladder and static" in remarks
    assert "other trees or thresholds of policies: ladder, dynamic" in remarks
    assert any("max_new_tokens 128 and 64" in remark for remark in remarks)


def test_the_noise_of_mean_accept_is_that_of_pooled_prompts() -> None:
    rng = np.random.default_rng(0)
    rows = [{"tree": "n3-d2", "prompt": str(k), "accepted": int(rng.poisson(20)), "steps": 20} for k in range(30)]
    mean = sum(row["accepted"] for row in rows) / 600
    bank = with_speedup(1.5, 1.5625, 1.625, accept=mean)
    alone = [{"tree": "default-63", "prompt": "0", "accepted": 9, "steps": 8}]  # 1.125 as in the bank, but of one prompt
    counts = counts_of(bank, [*rows, *alone])
    assert counts.keys() == {"n3-d2"}
    low, high = compare_banks(source(bank, counts), source(bank, counts)).pairs[0].first_interval or (0, 0)
    assert low < mean < high
    assert high - low == pytest.approx(2 * 2.05 * 20**0.5 / 20 / 30**0.5, rel=0.3)


def test_only_rows_that_gave_the_banks_figure_count() -> None:
    """Under typical acceptance those of the search prompts stand behind them; a recalibration may also be another's."""
    rows = [
        {"tree": "n3-d2", "prompt": name, "accepted": accepted, "steps": 20}
        for name, accepted in zip("abc", (12, 18, 20), strict=True)
    ]
    assert counts_of(small_bank(), rows) == {}
    counted = replace(small_bank(), prompts={"prompts_used": {"recalibrate": 2}})
    assert counts_of(counted, rows) == {"n3-d2": {"a": (12, 20), "b": (18, 20)}}


def test_the_command_takes_files_and_run_folders(tmp_path: Path) -> None:
    for name, bank in (("a", small_bank()), ("b", with_speedup(2.4, 2.5, 2.6))):
        (tmp_path / name).mkdir()
        bank.save(tmp_path / name / "bank.json")
        rows = [{"options": {}}] + [{"tree": "n3-d2", "prompt": str(k), "accepted": 14 + k, "steps": 20} for k in range(3)]
        (tmp_path / name / "recalibration.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = cli("compare", tmp_path / "a", tmp_path / "b" / "bank.json", tmp_path / "a")
    assert result.exit_code == 0, result.output
    assert "humaneval: Beyond noise: speedup of n3-d2" in result.stdout
    assert "humaneval: No difference beyond noise." in result.stdout
    document = json.loads(cli("compare", tmp_path / "a", tmp_path / "b", "--json").stdout)
    (found,) = document["comparisons"]
    assert document.keys() == {"format", "version", "comparisons"}
    assert found["pairs"][0]["first_interval"] == found["pairs"][0]["second_interval"] != None  # noqa: E711
    assert found["pairs"][0]["noise"] == 0
    assert cli("compare", tmp_path / "a").exit_code == 2
    for line in ('{"tree": "n3-d2"}', '{"accepted": 1}', "null"):
        (tmp_path / "b" / "recalibration.jsonl").write_text(f"{{}}\n{line}\n")
        damaged = cli("compare", tmp_path / "a", tmp_path / "b")
        assert (damaged.exit_code, "recalibration.jsonl" in damaged.stderr) == (3, True)
    assert cli("compare", tmp_path / "a", tmp_path / "absent").exit_code == 3
