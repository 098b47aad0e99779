"""Laws of policies: pure transitions, strict construction, strict reading."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest

from entmtp_calib.errors import ArtefactError
from entmtp_calib.policy import Dynamic, Hysteresis, Ladder, Policy, Static, hysteresis, policy_from_json
from entmtp_calib.topology import Topology, chain

NAN, INF = float("nan"), float("inf")
LADDER = Ladder((0.25, 0.5), (2, 0, 1))
HYSTERESIS = Hysteresis(0.6, 0.4, 1, 3)
WIDE = Topology(((0,), (1,), (0, 0), (0, 1)))
POLICIES: list[Policy] = [Static(2), Ladder((), (1,)), LADDER, HYSTERESIS, Hysteresis(0.5, 0.5, 3, 0), Dynamic((), (3,), WIDE),
                          Dynamic((0.25, 0.5), (4, 1, 2), WIDE)]  # fmt: skip
IDS = ["static", "one-bin", "ladder", "hysteresis", "no-gap", "best", "best-by-signal"]


def test_static_never_moves() -> None:
    assert {Static(2).next(index, signal) for index in range(4) for signal in (0.0, 1.0, NAN, INF)} == {2}


@pytest.mark.parametrize(
    ("signal", "tree"), [(-1.0, 2), (0.0, 2), (0.2499, 2), (0.25, 0), (0.4999, 0), (0.5, 1), (1.0, 1), (INF, 1), (-INF, 2)]
)
def test_a_ladder_edge_belongs_to_the_bin_above_it(signal: float, tree: int) -> None:
    assert [LADDER.next(index, signal) for index in range(3)] == [tree] * 3


def test_a_ladder_is_the_bin_that_holds_the_signal() -> None:
    rng = random.Random(0)
    for _ in range(100):
        edges = sorted(rng.sample([number / 10 for number in range(11)], rng.randrange(6)))
        ladder = Ladder(tuple(edges), tuple(rng.randrange(9) for _ in range(len(edges) + 1)))
        signal = rng.choice([*edges, rng.random()])
        bounds = [-INF, *edges, INF]
        held = [k for k in range(len(edges) + 1) if bounds[k] <= signal < bounds[k + 1]]
        assert [ladder.next(0, signal)] == [ladder.trees[k] for k in held]


@pytest.mark.parametrize(
    ("index", "signal", "tree"),
    [
        (1, 0.6, 3), (3, 0.6, 3), (1, 0.9, 3), (7, 0.9, 3),
        (1, 0.5, 1), (3, 0.5, 3), (1, 0.4, 1), (3, 0.4, 3), (1, 0.5999, 1), (3, 0.5999, 3),
        (1, 0.3999, 1), (3, 0.3999, 1), (3, -INF, 1), (1, INF, 3), (7, 0.5, 1),
    ],
)  # fmt: skip
def test_hysteresis_rises_at_on_falls_below_off_and_else_stays(index: int, signal: float, tree: int) -> None:
    assert HYSTERESIS.next(index, signal) == tree


def test_hysteresis_without_a_gap_is_a_ladder_of_two() -> None:
    policy, ladder = Hysteresis(0.5, 0.5, 0, 1), Ladder((0.5,), (0, 1))
    for signal in (0.0, 0.4999, 0.5, 0.5001, 1.0):
        assert [policy.next(index, signal) for index in (0, 1)] == [ladder.next(index, signal) for index in (0, 1)]


@pytest.mark.parametrize("policy", POLICIES, ids=IDS)
def test_whatever_the_signal_the_next_tree_is_a_member(policy: Policy) -> None:
    for signal in (NAN, INF, -INF, -1.0, 0.0, 0.25, 0.5, 1.0, 2.0):
        for index in range(5):
            assert policy.next(index, signal) in policy.members
    assert list(policy.members) == sorted(set(policy.members))


@pytest.mark.parametrize("policy", POLICIES, ids=IDS)
def test_many_texts_at_once_are_each_text_by_itself(policy: Policy) -> None:
    signals = np.array([NAN, INF, -INF, -1.0, 0.0, 0.25, 0.4, 0.5, 0.6, 1.0] * 5)
    index = np.repeat(np.arange(5), 10)
    wanted = [policy.next(int(tree), float(signal)) for tree, signal in zip(index, signals, strict=True)]
    assert policy.next_many(index, signals).tolist() == wanted


def test_many_hystereses_at_once_are_each_by_itself() -> None:
    rng = random.Random(0)
    rules = [Hysteresis(*sorted((rng.random(), rng.random()), reverse=True), *rng.sample(range(3), 2)) for _ in range(200)]
    index = np.array([rng.randrange(3) for _ in rules])
    signals = np.array([rng.random() for _ in rules])
    columns = [np.array([getattr(rule, name) for rule in rules]) for name in ("on", "off", "low", "high")]
    wanted = [rule.next(int(tree), float(signal)) for rule, tree, signal in zip(rules, index, signals, strict=True)]
    assert hysteresis(*columns, index, signals).tolist() == wanted


@pytest.mark.parametrize(
    ("edges", "trees"),
    [
        ((0.5, 0.25), (0, 1, 2)), ((0.5, 0.5), (0, 1, 2)), ((0.1, 0.3, 0.2), (0, 1, 2, 3)),
        ((NAN,), (0, 1)), ((0.1, NAN, 0.3), (0, 1, 2, 3)), ((INF,), (0, 1)), ((-INF, 0.5), (0, 1, 2)),
        ((), ()), ((), (0, 1)), ((0.5,), (0,)), ((0.1, 0.5), (0, 1)), ((0.1,), (0, 1, 2)),
    ],
)  # fmt: skip
def test_ladder_edges_rise_are_finite_and_are_one_fewer_than_the_trees(edges: tuple[float, ...], trees: tuple[int, ...]) -> None:
    with pytest.raises(ArtefactError, match="ladder"):
        Ladder(edges, trees)


@pytest.mark.parametrize(("on", "off"), [(0.4, 0.6), (NAN, 0.1), (0.1, NAN), (INF, 0.1), (0.1, -INF), (-INF, -INF)])
def test_hysteresis_thresholds_are_finite_and_not_inverted(on: float, off: float) -> None:
    with pytest.raises(ArtefactError, match="hysteresis"):
        Hysteresis(on, off, 0, 1)


@pytest.mark.parametrize("policy", POLICIES, ids=IDS)
def test_a_policy_round_trips_through_json(policy: Policy) -> None:
    assert policy_from_json(policy.kind, json.loads(json.dumps(policy.to_json())), 4) == policy


def test_whole_numbers_are_read_as_thresholds() -> None:
    ladder = policy_from_json("ladder", {"edges": [0, 1], "trees": [0, 1, 2]}, 3)
    assert ladder == Ladder((0.0, 1.0), (0, 1, 2))
    assert all(type(edge) is float for edge in ladder.to_json()["edges"])


GOOD: list[tuple[str, Policy]] = [
    ("static", Static(0)),
    ("ladder", Ladder((0.5,), (0, 1))),
    ("hysteresis", Hysteresis(0.6, 0.4, 0, 1)),
    ("dynamic", Dynamic((0.5,), (1, 2), chain(2))),
]
FIELDS = [(kind, policy.to_json(), name) for kind, policy in GOOD for name in policy.to_json()]


@pytest.mark.parametrize(("kind", "value", "name"), FIELDS, ids=[f"{kind}-{name}" for kind, _value, name in FIELDS])
def test_a_field_of_the_wrong_type_is_refused_by_name(kind: str, value: dict[str, object], name: str) -> None:
    wrongs: list[object] = [None, "0", True, {}, [None], ["0"], [True], [[0]], "__import__('os')"]
    for wrong in wrongs:
        with pytest.raises(ArtefactError, match=f"'{name}'"):
            policy_from_json(kind, value | {name: wrong}, 2)


@pytest.mark.parametrize(("kind", "value", "name"), FIELDS, ids=[f"{kind}-{name}" for kind, _value, name in FIELDS])
def test_a_missing_field_is_refused_by_name(kind: str, value: dict[str, object], name: str) -> None:
    rest = {key: item for key, item in value.items() if key != name}
    with pytest.raises(ArtefactError, match=rf"fields.*\b{name}\b"):
        policy_from_json(kind, rest, 2)
    with pytest.raises(ArtefactError, match="fields"):
        policy_from_json(kind, value | {"extra": 1}, 2)


@pytest.mark.parametrize(("kind", "name"), [("static", "index"), ("hysteresis", "low"), ("hysteresis", "high")])
def test_an_index_is_a_whole_number_of_the_bank(kind: str, name: str) -> None:
    value = dict(GOOD)[kind].to_json()
    for wrong in (-1, 2, 10**30):
        with pytest.raises(ArtefactError, match="2 trees"):
            policy_from_json(kind, value | {name: wrong}, 2)
    with pytest.raises(ArtefactError, match=f"'{name}'"):
        policy_from_json(kind, value | {name: 1.0}, 2)


def test_ladder_trees_are_whole_numbers_of_the_bank() -> None:
    for wrong in ([0, 2], [-1, 0]):
        with pytest.raises(ArtefactError, match="2 trees"):
            policy_from_json("ladder", {"edges": [0.5], "trees": wrong}, 2)
    with pytest.raises(ArtefactError, match="'trees'"):
        policy_from_json("ladder", {"edges": [0.5], "trees": [0, 1.0]}, 2)


def test_a_dynamic_policy_counts_bins_and_takes_no_more_nodes_than_it_drafts() -> None:
    policy = Dynamic((0.25, 0.5), (4, 1, 2), WIDE)
    assert [policy.next(2, signal) for signal in (-INF, 0.24, 0.25, 0.5, INF)] == [0, 0, 1, 2, 2]
    assert policy.members == (0, 1, 2)
    for sizes in ((0, 1, 2), (1, 2, 5), (-1, 1, 1)):
        with pytest.raises(ArtefactError, match="1 to 4"):
            Dynamic((0.25, 0.5), sizes, WIDE)
        with pytest.raises(ArtefactError, match="1 to 4"):
            policy_from_json("dynamic", policy.to_json() | {"sizes": list(sizes)}, 1)
    for edges in ((0.5,), (0.5, 0.25), (NAN, 0.5), (0.25, INF)):
        with pytest.raises(ArtefactError, match="dynamic"):
            Dynamic(edges, (4, 1, 2), WIDE)
    for nodes in ([[1]], [[0], [0]], [[0, 0]], [[0], [0, 1]], [[]], [[-1]]):
        with pytest.raises(ArtefactError, match="'drafted'"):
            policy_from_json("dynamic", policy.to_json() | {"drafted": nodes}, 1)
    assert policy_from_json("dynamic", policy.to_json(), 1) == policy  # bins are not trees of the bank


@pytest.mark.parametrize("kind", ["", "Static", "tau", "none"])
def test_an_unknown_policy_is_refused_by_name(kind: str) -> None:
    with pytest.raises(ArtefactError, match=f"'{kind}'"):
        policy_from_json(kind, {"index": 0}, 1)


@pytest.mark.parametrize("value", [None, [], 3, "static", {}])
def test_a_policy_that_is_no_object_of_fields_is_refused(value: object) -> None:
    with pytest.raises(ArtefactError, match="index"):
        policy_from_json("static", value, 1)


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e400])
def test_thresholds_in_a_file_must_be_finite(bad: float) -> None:
    assert not math.isfinite(bad)
    with pytest.raises(ArtefactError, match="finite"):
        policy_from_json("ladder", {"edges": [bad], "trees": [0, 1]}, 2)
    for name in ("on", "off"):
        with pytest.raises(ArtefactError, match="finite"):
            policy_from_json("hysteresis", {"on": 0.5, "off": 0.5, "low": 0, "high": 1} | {name: bad}, 2)


@pytest.mark.parametrize(
    ("kind", "change"), [("ladder", {"edges": [10**400]}), ("hysteresis", {"on": 10**400}), ("hysteresis", {"off": -(10**400)})]
)
def test_a_threshold_too_large_for_a_float_is_refused(kind: str, change: dict[str, object]) -> None:
    with pytest.raises(ArtefactError):
        policy_from_json(kind, dict(GOOD)[kind].to_json() | change, 2)


def test_the_index_outside_the_bank_is_named() -> None:
    with pytest.raises(ArtefactError, match="-1"):
        policy_from_json("hysteresis", {"on": 0.6, "off": 0.4, "low": -1, "high": 1}, 2)
