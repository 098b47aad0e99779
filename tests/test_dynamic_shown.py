"""What is said of dynamic policies: labels of steps, narration, tables and reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from banks import bank_for, tiny_pair
from entmtp_calib.commands._tables import describe
from made_runs import whole

from entmtp_calib.calibrate.bank_decoder import BankDecoder
from entmtp_calib.calibrate.bench import contestants
from entmtp_calib.calibrate.narration import explain_choice, narrate
from entmtp_calib.calibrate.step_log import StepLog
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.policy import Dynamic
from entmtp_calib.report.build import figures
from entmtp_calib.report.figure import Figure
from entmtp_calib.report.material import read_material
from entmtp_calib.topology import chain


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny_pair()


def test_steps_are_called_after_how_many_nodes_were_taken(pair: Pair) -> None:
    model = BankDecoder(bank_for(pair), pair, "dynamic")
    log = StepLog(model.labels)
    log.begin(10)
    steps = list(log.timed(model.steps(list(range(60, 70)), 40)))
    assert set(log.figures().trees) == {"best 5", "best 2", "best 4"}
    assert [row["tree"] for row in log.rows] == [["best 5", "best 2", "best 4"][step.index] for step in steps]


def test_a_narration_tells_the_nodes_that_were_taken(pair: Pair) -> None:
    bank = bank_for(pair)
    policy = bank.policy("dynamic")
    assert isinstance(policy, Dynamic)
    told = narrate(pair, bank, "dynamic", list(range(60, 70)), StopRule(frozenset(), 40), 12).told
    for step in told:
        assert step.guesses == () or len(step.guesses) == step.nodes == int(step.tree.removeprefix("best "))
        assert {guess.node for guess in step.guesses} <= set(policy.drafted.nodes)
        assert sum(guess.accepted for guess in step.guesses) == step.accepted
        assert step.why.startswith(("at least", "below"))
    assert len({step.nodes for step in told}) > 1


def test_a_dynamic_policy_in_words() -> None:
    bank = bank_for(tiny_pair())
    assert explain_choice(Dynamic((0.5,), (1, 2), chain(2)), 0.4) == "below 0.5"
    assert explain_choice(Dynamic((), (2,), chain(2)), 0.4) == ""
    assert describe(Dynamic((), (2,), chain(3)), bank) == "best 2 of 3 drafted"
    assert describe(Dynamic((0.5,), (1, 2), chain(3)), bank) == "best 1, 0.5: best 2 of 3 drafted"


def test_a_bench_has_it_as_an_arm_with_the_most_nodes_that_it_verifies(pair: Pair) -> None:
    assert contestants(pair, bank_for(pair))["dynamic"].nodes == 5


def test_a_report_of_a_run_that_recommends_it_shows_its_gain_and_replays_the_static_tree(tmp_path: Path) -> None:
    material = read_material(whole(tmp_path / "run").path)
    assert material.bank is not None
    row = {"gain": {"ratio": 1.2, "low": 1.1, "high": 1.3}, "test_tokens_per_s": 36.0, "random_tokens_per_s": 36.0}
    said = material.bank.evaluation
    policies = {**material.bank.policies, "dynamic": Dynamic((), (3,), chain(3))}
    evaluation = {**said, "policies": {**said["policies"], "dynamic": row}}
    bank = replace(material.bank, recommended="dynamic", policies=policies, evaluation=evaluation)
    found = {figure.name: figure for figure in figures(replace(material, bank=bank)) if isinstance(figure, Figure)}
    assert "dynamic, gives 1.200 times" in found["gain"].sentence
    arms = [one["arm"] for one in found["gain"].rows]
    assert "dynamic" in arms
    assert "dynamic at random" not in arms  # it always takes as many nodes
    assert found["timeline"].facts["main"] == "static"
    assert any("dynamic is recommended" in note for note in found["timeline"].notes)
    assert "signal" in found
