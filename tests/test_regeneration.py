"""What `run --check` says of runs that came out differently."""

from __future__ import annotations

from entmtp_calib.calibrate.regeneration import differing_banks, differing_frontiers, differing_rollouts
from entmtp_calib.calibrate.search import Frontier, Growth
from entmtp_calib.topology import Topology


def frontier(*nodes: tuple[int, ...], scores: tuple[float, ...] = ()) -> Frontier:
    order = Topology(nodes)
    return Frontier((Growth(2, order, scores or tuple(range(len(nodes))), "reached"),))


def test_the_first_node_that_differs_is_named() -> None:
    old, new = frontier((0,), (0, 0), (1,)), frontier((0,), (1,), (0, 0))
    assert differing_frontiers(old, new) == ["depth at most 2: node 2 of the growth is [1] and was [0, 0]"]
    assert differing_frontiers(old, frontier((0,), (0, 0))) == ["depth at most 2: 2 nodes grew and 3 had"]
    assert differing_frontiers(old, old) == []


def test_the_same_trees_with_other_acceptance_differ() -> None:
    found = differing_frontiers(frontier((0,), (1,), scores=(0.5, 0.75)), frontier((0,), (1,), scores=(0.5, 0.8)))
    assert found == ["depth at most 2: with 2 nodes 0.8000 drafts are accepted, not 0.7500"]


def test_rollouts_are_named_and_many_are_counted() -> None:
    old = {("a", str(n)): {"accepted": n, "steps": 9} for n in range(8)}
    new = {key: row | {"accepted": row["accepted"] + 1} for key, row in old.items()}
    found = differing_rollouts(old, new)
    assert found[0] == "a on 0: 1 drafts in 9 steps, and 0 drafts in 9 steps before"
    assert found[-1] == "and 3 more rollouts"
    assert len(found) == 6
    assert differing_rollouts(old, dict(list(old.items())[1:])) == ["a on 0: no rollout, and 0 drafts in 9 steps before"]
    assert differing_rollouts(old, old) == []


def test_banks_differ_by_trees_policies_and_fields_but_not_by_provenance() -> None:
    old = {"trees": [{"label": "a", "nodes": []}, {"label": "b", "nodes": [[0]]}], "policies": {"static": {"index": 0}},
           "recommended": "static", "provenance": {"command": "x"}}  # fmt: skip
    assert differing_banks(old, old | {"provenance": {"command": "y"}}) == []
    new = old | {"trees": [{"label": "a", "nodes": [[1]]}, {"label": "c", "nodes": []}], "policies": {"static": {"index": 1}},
                 "recommended": "ladder"}  # fmt: skip
    assert differing_banks(old, new) == [
        "tree a: nodes is [[1]] and was []",
        "tree b is no longer in the bank",
        "tree c is newly in the bank",
        "policy static is {'index': 1} and was {'index': 0}",
        "field recommended differs",
    ]
    evaluations = ({"evaluation": {"rule": rule, "same": 1}} for rule in ("hull", "conditional"))
    assert differing_banks(*(old | evaluation for evaluation in evaluations)) == ["field evaluation differs in rule"]
