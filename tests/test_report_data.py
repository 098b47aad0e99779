"""Laws of the data behind a report's figures, on traces made by hand and on runs made without a model."""

from __future__ import annotations

import csv
import io
import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import random_tree
from handmade import one_step, random_trace, trace
from made_runs import (
    BASE,
    COUNTS,
    ROW,
    add_bank,
    add_recalibration,
    add_search,
    add_timing,
    begin,
    candidates,
    made,
    traces,
    whole,
)

from entmtp_calib.bank import BankTree
from entmtp_calib.errors import ArtefactError
from entmtp_calib.evidence import accepted_depths, mean_accept, walk
from entmtp_calib.policy import Ladder, Static
from entmtp_calib.replay import Replay
from entmtp_calib.report.acceptance import HELD_OUT, RANKS, REPLAYED, ROLLOUT, SEARCHED, frontier, hit_rates
from entmtp_calib.report.build import figures
from entmtp_calib.report.figure import Figure, Missing, ratio_interval, to_csv
from entmtp_calib.report.material import Material, read_material
from entmtp_calib.report.palette import DEPTHS, SERIES
from entmtp_calib.report.speed import cost_model, search_time, throughput
from entmtp_calib.report.switching import gain, gain_rows, reliability, signal, verdict
from entmtp_calib.report.trees import node_acceptance, trees
from entmtp_calib.topology import Topology, chain


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return read_material(whole(tmp_path_factory.mktemp("made") / "run").path)


def test_the_csv_is_the_frame_with_nothing_where_there_is_no_value() -> None:
    rows = [{"a": 0.1, "b": 'say "x", y'}, {"a": float("nan"), "b": None}]
    figure = Figure("name", "Title", "Sentence.", ("a", "b"), rows, ())
    assert list(csv.reader(io.StringIO(to_csv(figure).decode()))) == [["a", "b"], ["0.1", 'say "x", y'], ["", ""]]


def test_a_ratio_of_sums_lies_in_its_interval_and_a_constant_one_has_none_to_speak_of() -> None:
    rng = random.Random(3)
    bottoms = [rng.randint(1, 50) for _ in range(30)]
    value, low, high = ratio_interval([2 * bottom for bottom in bottoms], bottoms)
    assert (value, low, high) == (2.0, 2.0, 2.0)
    tops = [rng.randint(0, 99) for _ in bottoms]
    value, low, high = ratio_interval(tops, bottoms)
    assert value == sum(tops) / sum(bottoms)
    assert low < value < high
    assert str(ratio_interval([1], [2])) == "(0.5, nan, nan)"
    assert str(ratio_interval([0, 0], [0, 0])) == "(nan, nan, nan)"


def test_a_node_is_accepted_where_the_path_passes_through_it() -> None:
    tree = Topology(((0,), (1,), (0, 0)))
    texts = [one_step(0, 0), one_step(0, 1), one_step(1, 0)]  # three steps each: two behind the first, or one
    rows = {row["node"]: row for row in node_acceptance(tree, texts)}
    steps = sum(len(walk(accepted_depths(tree, text))) for text in texts)
    assert {name: row["accepted"] * steps for name, row in rows.items()} == pytest.approx({"0": 2, "1": 1, "0.0": 1})
    assert {row["steps"] for row in rows.values()} == {steps}


def test_shares_of_the_nodes_sum_to_mean_accept() -> None:
    """Every accepted draft is one accepted node."""
    rng = random.Random(5)
    for _ in range(20):
        texts = [random_trace(rng, rng.randint(1, 40)) for _ in range(3)]
        tree = random_tree(rng, rng.randint(1, 12))
        assert sum(row["accepted"] for row in node_acceptance(tree, texts)) == pytest.approx(mean_accept(tree, texts))


def test_the_frontier_has_the_search_count_the_replay_and_the_rollouts(material: Material) -> None:
    rows = made(frontier(material)).rows
    assert material.frontier is not None
    for growth in material.frontier.growths:
        own = [row for row in rows if row["max_depth"] == growth.max_depth]
        assert [row["mean_accept"] for row in own if row["kind"] == SEARCHED] == list(growth.scores)
        for row in own:
            tree = growth.order.prefix(row["nodes"])
            if row["kind"] in (REPLAYED, HELD_OUT):
                part = "search" if row["kind"] == REPLAYED else "fit"
                assert row["mean_accept"] == pytest.approx(mean_accept(tree, traces(part)))
                assert row["prompts"] == COUNTS[part]
            elif row["kind"] == ROLLOUT:
                assert row["mean_accept"] == pytest.approx(mean_accept(tree, traces("fit")[:3]))
                assert row["low"] <= row["mean_accept"] <= row["high"]
    assert {row["nodes"] for row in rows if row["kind"] == ROLLOUT} == {tree.size for tree in candidates().values()}


def test_hit_rates_count_ranks(material: Material) -> None:
    world = replace(material, traces={"test": (trace([[0, 1], [2, 1], [0, 99], [5, 0]]),)})
    rows = {(row["depth"], row["rank"]): row for row in made(hit_rates(world)).rows}
    assert rows[1, 0]["share"] == pytest.approx(2 / 3)  # the last position has no next token
    assert rows[1, 2]["within"] == 1.0
    assert rows[2, 1]["within"] == 1.0
    assert rows[2, 0]["positions"] == 2
    whole_run = made(hit_rates(material)).rows
    for depth in (1, 2, 3):
        within = [row["within"] for row in whole_run if row["depth"] == depth]
        assert within == sorted(within)
        assert len(within) == RANKS


def test_trees_of_the_bank_have_a_row_for_every_node_on_the_least_used_prompts(material: Material) -> None:
    figure = made(trees(material))
    assert material.bank is not None
    for tree in material.bank.trees:
        rows = [row for row in figure.rows if row["tree"] == tree.label]
        assert len(rows) == tree.topology.size
        assert sum(row["accepted"] for row in rows) == pytest.approx(mean_accept(tree.topology, traces("test")))
    assert figure.facts["drawn"] == ["chain", "wide"]
    assert figure.rests_on == ("test",)
    swapped = replace(material.bank, trees=material.bank.trees[::-1])
    assert made(trees(replace(material, bank=swapped))).sentence == figure.sentence
    assert "In wide, the largest" in figure.sentence


def test_of_a_large_bank_the_trees_that_policies_take_are_drawn(material: Material) -> None:
    assert material.bank is not None
    figures_of = material.bank.trees[0].figures
    many = tuple(BankTree(f"t{size}", Topology(tuple((rank,) for rank in range(size))), figures_of) for size in range(12))
    bank = replace(material.bank, trees=many, policies={"static": Static(11), "ladder": Ladder((0.5,), (0, 10))})
    figure = made(trees(replace(material, bank=bank)))
    assert figure.facts["drawn"] == ["t1", "t2", "t3", "t4", "t5", "t6", "t10", "t11"]
    assert {row["tree"] for row in figure.rows} == {f"t{size}" for size in range(1, 12)}
    assert figure.notes[-1].startswith("3 more trees")


def test_throughput_is_what_was_timed(material: Material) -> None:
    figure = made(throughput(material))
    timed = {arm.label: arm for arm in material.timed}
    assert {row["arm"] for row in figure.rows} == set(timed) == {"ar", "ar-again", *candidates()}
    for row in figure.rows:
        assert (row["times_plain"], row["low"]) == (timed[row["arm"]].speedup, timed[row["arm"]].speedup_low)
        assert row["in_bank"] is (row["arm"] == "ar")
    assert {row["arm"]: row["replayed_times_plain"] for row in figure.rows}["n1-d1"] == 1.5
    best = max(figure.rows, key=lambda row: row["times_plain"])
    assert best["arm"] in figure.sentence
    assert ("not measurably" in figure.sentence) is (best["low"] <= 1)


def test_a_speed_that_is_barely_measurable_shows_it(material: Material) -> None:
    arms = [
        replace(arm, speedup=1.2, speedup_low=1.003, speedup_high=1.5) if arm.topology.size else arm for arm in material.timed
    ]
    sentence = made(throughput(replace(material, timed=tuple(arms)))).sentence
    assert "1.003 to 1.500), measurably faster" in sentence


def test_one_timed_prompt_has_no_interval_and_measures_nothing(material: Material) -> None:
    figure = made(throughput(replace(material, counts={**material.counts, "time": 1})))
    assert all(row["low"] != row["low"] for row in figure.rows)
    assert "not measurably faster" in figure.sentence
    assert "interval" not in figure.sentence


def test_a_cost_that_is_a_straight_line_is_met_by_the_model(material: Material) -> None:
    for row in made(cost_model(material)).rows:
        assert row["measured_ms"] == pytest.approx(1e3 * (BASE + ROW * (row["nodes"] + 1)))
        assert row["off"] == pytest.approx(0, abs=1e-9)


def test_search_times_come_from_a_file_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_bytes(b"prompts,rollout_s,growth_s\r\n50,20,1\r\n25,10,1\r\n")
    figure = made(search_time(path))
    assert [row["prompts"] for row in figure.rows] == [25, 50]
    assert "0.40 s a prompt" in figure.sentence
    assert isinstance(search_time(None), Missing)
    for content in (b"", b"prompts,rollout_s\n1,2\n", b"prompts,rollout_s,growth_s\n1,2,x\n", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(ArtefactError, match="has no rows"):
            search_time(path)
    with pytest.raises(ArtefactError):
        search_time(tmp_path / "nothing.csv")


def test_bins_of_the_signal_hold_every_step_once(material: Material) -> None:
    assert material.bank is not None
    largest = material.bank.trees[2].topology
    for figure, column, tree in (
        (made(signal(material)), "accepted", largest),
        (made(reliability(material)), "observed", chain(2)),
    ):
        rows = figure.rows
        steps = sum(len(walk(accepted_depths(tree, text))) for text in traces("test"))
        assert sum(row["steps"] for row in rows) == steps
        assert all(low["signal_to"] < high["signal_from"] for low, high in pairwise(rows))
        if column == "accepted":
            total = sum(row["accepted"] * row["steps"] for row in rows)
            assert total / steps == pytest.approx(mean_accept(tree, traces("test")))
    lines = [(line["policy"], line["threshold"]) for line in made(signal(material)).facts["lines"]]
    assert sorted(lines) == [("hysteresis", 0.4), ("hysteresis", 0.7), ("ladder", 0.3), ("ladder", 0.6)]


@pytest.mark.parametrize(
    ("signals", "said"),
    [([0.5, 0.5, 0.5, 0.5], "right as far"), ([0.9, 0.9, 0.9, 0.9], "too much"), ([0.1, 0.1, 0.1, 0.1], "too little")],
)
def test_a_signal_that_is_off_within_noise_is_not_called_off(signals: list[float], said: str) -> None:
    none = np.zeros(0, np.int64)
    run = Replay(none, none, none, np.array([0, 0, 1, 1]), np.array(signals))
    assert said in verdict(run, np.array([1.0, 0.0, 0.0, 1.0]))


def test_gain_has_ceiling_and_floors_and_does_without_what_an_older_bank_lacks(material: Material) -> None:
    assert material.bank is not None
    rows = {row["arm"]: row for row in made(gain(material)).rows}
    assert rows["oracle"]["times_static"] == 1.5
    assert rows["oracle that drafts all"]["times_static"] == 1.4
    assert rows["ladder at random"]["times_static"] == 0.8
    assert "static at random" not in rows
    assert (rows["ladder"]["low"], rows["ladder"]["high"]) == (1.02, 1.2)
    assert "a measurable gain" in made(gain(material)).sentence
    assert "the floor" not in made(gain(material)).sentence
    one = replace(material.bank, policies={name: Static(2) for name in material.bank.policies})
    assert "the floor, switching at random, is static itself" in made(gain(replace(material, bank=one))).sentence
    old = {"policies": {"static": {"gain": {"ratio": 1.0, "low": 1.0, "high": 1.0}}, "ladder": {}}}
    assert [row["arm"] for row in gain_rows(replace(material.bank, evaluation=old))] == ["static"]
    assert isinstance(gain(replace(material, bank=replace(material.bank, evaluation={}))), Missing)


def test_a_run_with_a_search_alone_has_its_figures_and_names_the_others(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    assert {item.name for item in figures(read_material(run.path)) if isinstance(item, Figure)} == set()
    add_search(run)
    found = figures(read_material(run.path))
    assert {item.name for item in found if isinstance(item, Figure)} == {"frontier", "hit-rates"}
    assert all(item.reason for item in found if isinstance(item, Missing))
    assert {row["kind"] for row in made(frontier(read_material(run.path))).rows} == {SEARCHED, REPLAYED, HELD_OUT}


def test_what_is_unfinished_is_said_and_left_out(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    add_search(run)
    add_recalibration(run)
    add_timing(run)
    for name, keep in (("recalibration.jsonl", 5), ("timings.jsonl", 4)):
        lines = run.file(name).read_bytes().splitlines(keepends=True)
        run.file(name).write_bytes(b"".join(lines[:keep]) + lines[keep][:9])
    run.file("rollouts/fit/00002.npz").unlink()
    found = read_material(run.path)
    assert set(found.gaps) == {"fit", "recalibrate", "time"}
    assert "fit" not in found.traces
    assert len(found.rollouts) == 1
    assert isinstance(throughput(found), Missing)
    add_bank(run)
    assert isinstance(trees(read_material(run.path)), Figure)


def test_typical_acceptance_is_not_replayed(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", acceptance="typical", temperature=0.7, schedule="joint")
    add_search(run)
    add_bank(run)
    found = {item.name: item for item in figures(read_material(run.path))}
    assert {name for name, item in found.items() if isinstance(item, Figure)} == {"frontier", "hit-rates", "gain"}
    assert {row["kind"] for row in made(found["frontier"]).rows} == {SEARCHED}


def test_damaged_and_foreign_folders_are_refused_in_a_sentence(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    add_search(run)
    run.file("rollouts/search/00001.npz").write_bytes(b"nothing")
    with pytest.raises(ArtefactError, match="damaged"):
        read_material(run.path)
    about = json.loads(run.file("run.json").read_text())
    for part, value in (("config", {"colour": "red"}), ("inputs", {})):
        run.file("run.json").write_text(json.dumps(about | {part: value}))
        with pytest.raises(ArtefactError, match="was changed"):
            read_material(run.path)


@pytest.mark.parametrize("colours", [SERIES, DEPTHS])
def test_colours_stay_apart_in_grey(colours: tuple[str, ...]) -> None:
    """Relative luminance falls from one to the next by at least a fortieth of the scale."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    found = [luminance(colour) for colour in colours]
    assert all(one - other > 1 / 40 for one, other in pairwise(found)), found
