"""Laws of the bank file: one meaning, the same bytes, and a refusal that names the field for everything else."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_banks import DYNAMIC, FIGURES, GOLDEN, PLAIN, WRONG, changed, refusal, small_bank, written

from entmtp_calib.bank import load_bank
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.policy import Ladder
from entmtp_calib.signals import Signal, terms


def test_a_bank_round_trips_with_the_same_bytes(tmp_path: Path) -> None:
    small_bank().save(tmp_path / "a.json")
    back = load_bank(tmp_path / "a.json")
    assert back == small_bank()
    back.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_version_1_is_read_as_the_same_bank_forever(tmp_path: Path) -> None:
    assert load_bank(GOLDEN) == small_bank()
    small_bank().save(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_bytes() == GOLDEN.read_bytes()


def test_the_mark_and_the_counts_of_prompts_are_kept_and_an_older_bank_has_none(tmp_path: Path) -> None:
    bank = replace(small_bank(), prompts={"prompts_used": {"fit": 2}}, too_small_to_trust=True)
    bank.save(tmp_path / "a.json")
    assert load_bank(tmp_path / "a.json") == bank
    assert (load_bank(GOLDEN).prompts, load_bank(GOLDEN).too_small_to_trust) == ({}, False)
    for name, wrong in (("too_small_to_trust", 1), ("too_small_to_trust", None), ("prompts", []), ("prompts", None)):
        assert name in refusal(tmp_path, PLAIN | {name: wrong})


@pytest.mark.parametrize("style", ["chat", "raw", "vicuna"])
def test_every_prompt_style_can_be_in_a_bank(tmp_path: Path, style: str) -> None:
    assert load_bank(written(tmp_path, changed("template", "style", to=style))).template["style"] == style


def test_each_node_has_a_line_of_its_own() -> None:
    lines = [line.strip().rstrip(",") for line in GOLDEN.read_text().splitlines()]
    assert [json.loads(line) for line in lines if line.startswith("[")] == [
        node for row in PLAIN["trees"] for node in row["nodes"]
    ]


def test_nodes_in_any_order_are_the_same_bank(tmp_path: Path) -> None:
    value = copy.deepcopy(PLAIN)
    for row in value["trees"]:
        random.Random(0).shuffle(row["nodes"])
    assert value != PLAIN
    bank = load_bank(written(tmp_path, value))
    assert bank == small_bank()
    bank.save(tmp_path / "b.json")
    assert (tmp_path / "b.json").read_bytes() == GOLDEN.read_bytes()


def test_a_loaded_bank_answers_for_its_trees_and_policies() -> None:
    bank = load_bank(GOLDEN)
    assert [topology.size for topology in bank.topologies] == [0, 3, 63]
    assert bank.policy() == bank.policy("auto") == bank.policy("ladder") == Ladder((0.125, 0.5), (0, 1, 2))
    with pytest.raises(UsageError, match="'tau'") as error:
        bank.policy("tau")
    assert all(name in error.value.hint for name in ("static", "ladder", "hysteresis"))


@pytest.mark.parametrize("name", sorted(PLAIN.keys() - {"format"}))
def test_a_missing_or_mistyped_field_is_refused_by_name(tmp_path: Path, name: str) -> None:
    assert name in refusal(tmp_path, changed(name))
    for wrong in (*WRONG, 7, "x", 0.5, [PLAIN[name]]):
        if type(wrong) is not type(PLAIN[name]) and wrong != PLAIN[name]:
            assert name in refusal(tmp_path, changed(name, to=wrong))


def test_only_the_right_format_is_a_bank(tmp_path: Path) -> None:
    assert "is not a bank" in refusal(tmp_path, changed("format"))
    for wrong in (*WRONG, 7, "entmtp-frontier", "ENTMTP-BANK"):
        assert "is not a bank" in refusal(tmp_path, changed("format", to=wrong))


def test_another_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    for wrong in (0, 2, "1", None, [1]):
        message = refusal(tmp_path, changed("version", to=wrong))
        assert repr(wrong) in message
        assert "reads 1" in message


@pytest.mark.parametrize("name", ["label", "size", "depth", "nodes", *FIGURES])
def test_a_field_of_a_tree_is_refused_by_its_place(tmp_path: Path, name: str) -> None:
    assert f"trees[1].{name}" in refusal(tmp_path, changed("trees", 1, name))
    for wrong in (*WRONG, ["x"]):
        if name != "nodes" or wrong != []:
            assert f"trees[1].{name}" in refusal(tmp_path, changed("trees", 1, name, to=wrong))


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_a_finite_number_from_0_up(tmp_path: Path, name: str) -> None:
    for wrong in (-1, -1e-9, float("nan"), float("inf"), "1", True):
        assert f"trees[0].{name}" in refusal(tmp_path, changed("trees", 0, name, to=wrong))


def test_size_and_depth_are_those_of_the_nodes(tmp_path: Path) -> None:
    for name, wrong in (("size", 4), ("size", "3"), ("depth", 1), ("depth", 3)):
        assert f"trees[1].{name}" in refusal(tmp_path, changed("trees", 1, name, to=wrong))


CODE = "__import__('os').system('touch HERE')"
NO_TREES: list[Any] = [
    CODE, [CODE], [[CODE]], [[0.5]], [[-1]], [[1]], [[0], [0]], [[0], [0, 1]], [[0, 0]], [[True]], [[]], [0], {"0": [0]}, "[[0]]",
]  # fmt: skip


@pytest.mark.parametrize("nodes", NO_TREES, ids=range(len(NO_TREES)))
def test_nodes_that_are_no_tree_are_refused_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert "trees[1].nodes" in refusal(tmp_path, changed("trees", 1, "nodes", to=nodes))
    assert [item.name for item in tmp_path.iterdir()] == ["bank.json"]


SECTIONS = [("target", "name"), ("target", "identity"), ("heads", "name"), ("heads", "identity"), ("template", "style"),
            ("template", "hash"), ("acceptance", "rule")]  # fmt: skip


@pytest.mark.parametrize(("section", "name"), SECTIONS)
def test_a_field_of_a_section_is_refused_by_its_place(tmp_path: Path, section: str, name: str) -> None:
    assert f"{section}.{name}" in refusal(tmp_path, changed(section, name))
    for wrong in (*WRONG, 7, ["x"]):
        assert f"{section}.{name}" in refusal(tmp_path, changed(section, name, to=wrong))


def test_a_bank_needs_as_many_heads_as_its_deepest_tree_and_its_signal(tmp_path: Path) -> None:
    for wrong in (*WRONG, "4", 3, 4.0, -1):
        assert "needs 4 heads" in refusal(tmp_path, changed("heads", "heads", to=wrong))
    assert "needs 9 heads" in refusal(tmp_path, changed("signal", to="path_value_9"))
    assert "signal" in refusal(tmp_path, changed("signal", to="tau"))


def test_a_dynamic_policy_has_its_own_tree_to_draft(tmp_path: Path) -> None:
    bank = load_bank(written(tmp_path, changed("policies", "dynamic", to=DYNAMIC)))
    assert bank.choices(bank.policy("dynamic")) == [("best 1", 1), ("best 3", 3)]
    assert bank.choices(bank.policy("static"))[1] == ("n3-d2", 3)
    deep = DYNAMIC | {"drafted": [[0] * depth for depth in range(1, 6)]}
    assert "needs 5 heads" in refusal(tmp_path, changed("policies", "dynamic", to=deep))
    for name in DYNAMIC:
        assert f"'{name}'" in refusal(tmp_path, changed("policies", "dynamic", to=DYNAMIC | {name: "x"}))


def test_a_fitted_signal_is_kept_as_plain_numbers(tmp_path: Path) -> None:
    signal = Signal("combined", (0.5, -0.25, 0.125, 1.0, 2.0, -1.5))
    bank = replace(small_bank(), signal=signal)
    bank.save(tmp_path / "bank.json")
    assert load_bank(tmp_path / "bank.json").signal == signal
    assert json.loads((tmp_path / "bank.json").read_text())["signal"]["weights"]["accepted_ema_8"] == 1.0
    weights = dict.fromkeys(terms(2), 1.0)
    for wrong in (weights | {"path_2": "1"}, weights | {"path_4": 1.0}, {"intercept": 1.0}, weights | {"path_1": True}, []):
        assert "signal" in refusal(tmp_path, changed("signal", to={"name": "combined", "weights": wrong}))
    for name in ("base_top1", "mood", 3):
        assert "signal" in refusal(tmp_path, changed("signal", to={"name": name, "weights": weights}))
    assert "needs 5 heads" in refusal(tmp_path, changed("signal", to={"name": "combined", "weights": dict.fromkeys(terms(5), 1)}))


def test_only_rules_that_a_decoder_can_run_are_read(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"rule": "typical", "temperature": 0},
        {"rule": "lenient", "temperature": 0.7},
        {"rule": "exact"},
        {"rule": "typical", "epsilon": 0.1},
        *({"rule": "exact", "temperature": value} for value in (None, "0", -1, True)),
        *(
            {"rule": "exact", "temperature": 1} | more
            for more in ({"top_p": 0}, {"top_k": 2.5}, {"epsilon": 0.1}, {"coupled": 1})
        ),
    ]
    for acceptance in wrong:
        assert "acceptance" in refusal(tmp_path, changed("acceptance", to=acceptance))
    sampled = {"rule": "exact", "temperature": 0.7, "top_k": 5, "top_p": 0.9, "coupled": True}
    typical = {"rule": "typical", "temperature": 0.7, "epsilon": 0.09, "alpha": 0.3}
    for acceptance in ({"rule": "exact", "temperature": 0}, sampled, typical):
        assert load_bank(written(tmp_path, changed("acceptance", to=acceptance))).acceptance == acceptance


def test_policies_fit_the_bank(tmp_path: Path) -> None:
    assert "no tree" in refusal(tmp_path, changed("trees", to=[]))
    assert "'tau'" in refusal(tmp_path, changed("policies", "tau", to={"index": 0}))
    assert "3 trees" in refusal(tmp_path, changed("policies", "static", "index", to=3))
    assert "'edges'" in refusal(tmp_path, changed("policies", "ladder", "edges", to=["0.5", 1]))
    assert "rise" in refusal(tmp_path, changed("policies", "ladder", "edges", to=[0.5, 0.125]))
    assert "off" in refusal(tmp_path, changed("policies", "hysteresis", "off", to=0.75))
    for wrong in ("tau", "auto", ""):
        assert "recommended" in refusal(tmp_path, changed("recommended", to=wrong))
    assert "recommended" in refusal(tmp_path, changed("policies", to={}))


def test_a_bank_fits_only_what_it_was_made_for() -> None:
    bank = small_bank()
    fitting = ("sha256:target", "sha256:heads", "sha256:template")
    bank.check_fits(*fitting)
    for place, word in enumerate(("model", "heads", "template")):
        with pytest.raises(ArtefactError, match=word):
            bank.check_fits(*(item + "x" if index == place else item for index, item in enumerate(fitting)))


PLACES: list[tuple[tuple[str, ...], Any]] = [
    (("evaluation", "policies"), 3), (("evaluation", "policies", "ladder"), "x"),
    (("evaluation", "policies", "ladder", "gain"), 1), (("evaluation", "policies", "ladder", "gain"), {"ratio": 1.0}),
    (("evaluation", "policies", "ladder", "headroom"), "all"),
    (("evaluation", "arms_fit_tokens_per_s"), [1]), (("evaluation", "arms_fit_tokens_per_s"), {"ar": "fast"}),
    (("evaluation", "oracle_test_tokens_per_s"), {}), (("evaluation", "oracle_test_tokens_per_s"), 10**400),
    (("splits", "test"), 5), (("splits", "test", "ids"), "a"), (("splits", "test", "ids"), [1]),
    (("prompts",), {"prompts_used": 3}), (("prompts",), {"prompts_used": {"fit": None}}),
]  # fmt: skip


@pytest.mark.parametrize(("place", "wrong"), PLACES, ids=[f"{'.'.join(place)} {n}" for n, (place, _wrong) in enumerate(PLACES)])
def test_recorded_figures_of_another_form_are_refused_by_their_place(tmp_path: Path, place: tuple[str, ...], wrong: Any) -> None:
    assert ".".join(place) in refusal(tmp_path, changed(*place, to=wrong))


def test_recorded_figures_may_be_absent_or_null(tmp_path: Path) -> None:
    for place, value in ((("evaluation",), {}), (("splits",), {}), (("evaluation", "oracle_test_tokens_per_s"), None),
                         (("evaluation", "policies", "ladder", "gain"), {})):  # fmt: skip
        load_bank(written(tmp_path, changed(*place, to=value)))


@pytest.mark.parametrize(("section", "name"), [place for place in SECTIONS if place[0] in ("target", "heads")])
def test_an_empty_name_is_refused(tmp_path: Path, section: str, name: str) -> None:
    assert f"{section}.{name}' is empty" in refusal(tmp_path, changed(section, name, to=""))


@pytest.mark.parametrize("deepest", [65, 2999, 100_000])
def test_a_tree_deeper_than_any_heads_is_refused_at_once(tmp_path: Path, deepest: int) -> None:
    nodes = [[0] * depth for depth in range(1, min(deepest, 3000))] + [[0] * deepest]
    row = PLAIN["trees"][1] | {"nodes": nodes, "size": len(nodes), "depth": deepest}
    assert f"trees[1].nodes has a node {deepest} deep; 64 is the most" in refusal(tmp_path, changed("trees", 1, to=row))


def test_a_field_that_is_given_twice_is_refused_by_name(tmp_path: Path) -> None:
    text = json.dumps(PLAIN)
    assert "'task' twice" in refusal(tmp_path, text[:-1] + ', "task": "other"}')
    assert "'label' twice" in refusal(tmp_path, text.replace('"label": "ar"', '"label": "ar", "label": "other"'))
