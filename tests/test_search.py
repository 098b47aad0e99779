"""Laws of growth: the best next node by counted steps, fixed ties, and the same bytes for the same evidence."""

from __future__ import annotations

import json
import random

import pytest
from handmade import NEVER, one_step, random_trace, trace

from entmtp_calib.calibrate.search import Frontier, Growth, frontier_from_json, grow, search
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.evidence import Trace, accepted_depths, mean_accept, walk
from entmtp_calib.storage import to_json
from entmtp_calib.topology import Node, Topology, tie_break


def evidence(*counted: tuple[Node, int]) -> list[Trace]:
    """Texts in which exactly these paths are met, each as often as it says."""
    return [one_step(*path, *[NEVER] * (3 - len(path))) for path, count in counted for _ in range(count)]


def grown(*counted: tuple[Node, int], depth: int = 3) -> list[Node]:
    return list(grow(evidence(*counted), 64, depth).order.nodes)


def score_of(tree: Topology, smaller: Topology, traces: list[Trace]) -> float:
    """Mean accept of `tree` at the steps of `smaller`."""
    accepted = steps = 0
    for text in traces:
        at = walk(accepted_depths(smaller, text))
        accepted += int(accepted_depths(tree, text)[at].sum())
        steps += len(at)
    return accepted / steps


def test_growth_starts_with_the_first_guess_and_takes_the_larger_gain() -> None:
    assert grown(((0, 0), 3), ((1,), 2)) == [(0,), (0, 0), (1,)]
    assert grown(((0, 0), 2), ((1,), 3)) == [(0,), (1,), (0, 0)]


def test_ties_go_to_the_shallower_node() -> None:
    assert grown(((0, 0), 2), ((1,), 2)) == [(0,), (1,), (0, 0)]
    assert grown(((0, 0, 0), 2), ((1, 0), 2)) == [(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]


def test_ties_of_one_depth_go_to_the_smaller_rank_sum() -> None:
    order = grown(((0, 0), 5), ((0, 1), 4), ((1,), 6), ((0, 2), 1), ((1, 0), 1))
    assert order == [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 2)]


def test_ties_of_one_depth_and_rank_sum_go_to_the_lexicographically_smaller_node() -> None:
    order = grown(((0, 0), 5), ((1,), 6), ((0, 1), 1), ((1, 0), 1))
    assert order == [(0,), (1,), (0, 0), (0, 1), (1, 0)]


def test_a_gap_is_not_jumped_over() -> None:
    assert grown(((1,), 1), ((2,), 5)) == [(0,), (1,), (2,)]
    assert grown(((2,), 5)) == [(0,)]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_node_is_deeper_than_the_bound(depth: int) -> None:
    traces = [random_trace(random.Random(0), 60, heads=3)]
    growth = grow(traces, 12, depth)
    assert growth.order.depth == growth.max_depth == depth


def test_growth_ends_when_nothing_gains_or_the_size_is_reached_and_says_which() -> None:
    traces = evidence(((0, 0), 2), ((1,), 1))
    assert grow(traces, 64, 3).stopped == "no node gains anything"
    assert grow(traces, 64, 3).order.size == 3
    assert grow(traces, 2, 3).stopped == "reached 2 nodes"
    assert grow(traces, 1, 3).order == Topology(((0,),))
    hopeless = grow([trace([[NEVER] * 3] * 5)], 64, 3)
    assert (hopeless.order.nodes, hopeless.scores, hopeless.stopped) == (((0,),), (0.0,), "no node gains anything")


def test_a_text_shorter_than_the_heads_see_is_evidence_like_any_other() -> None:
    assert grow([trace([[0, 0, 0, 0]])], 8, 4).order.nodes == ((0,),)
    assert grow([trace([[0, 0, 0, 0]] * 2), trace([[0, 0, 0, 0]] * 3)], 8, 4).order.nodes == ((0,), (0, 0))


def test_each_node_is_the_one_that_gains_most_by_brute_force() -> None:
    rng = random.Random(1)
    for _ in range(6):
        traces = [random_trace(rng, rng.randrange(1, 40), heads=3) for _ in range(4)]
        growth = grow(traces, 14, 3)
        for size in range(1, growth.order.size):
            smaller = growth.order.prefix(size)
            scores = {node: score_of(Topology((*smaller.nodes, node)), smaller, traces) for node in smaller.candidates(3)}
            assert growth.order.nodes[size] == min(scores, key=lambda node: (-scores[node], *tie_break(node)))


def test_a_score_is_accepted_drafts_over_counted_steps_never_over_a_constant() -> None:
    rng = random.Random(2)
    for count in (1, 3, 20):
        traces = [random_trace(rng, rng.randrange(2, 30)) for _ in range(count)]
        order, scores = (growth := grow(traces, 20, 4)).order, growth.scores
        wanted = [score_of(order.prefix(size), order.prefix(size - 1), traces) for size in range(1, order.size + 1)]
        assert list(scores) == pytest.approx(wanted)
        assert scores[-1] <= 4


def test_ten_copies_of_the_evidence_give_the_same_frontier() -> None:
    rng = random.Random(3)
    traces = [random_trace(rng, 30) for _ in range(4)]
    assert search(traces * 10, 24, 4) == search(traces, 24, 4)


def test_the_order_of_the_texts_does_not_matter() -> None:
    rng = random.Random(4)
    traces = [random_trace(rng, rng.randrange(1, 30)) for _ in range(8)]
    wanted = search(traces, 24, 4)
    for _ in range(3):
        rng.shuffle(traces)
        assert search(traces, 24, 4) == wanted


def test_a_frontier_has_one_growth_per_depth_and_every_prefix_is_a_tree() -> None:
    traces = [random_trace(random.Random(5), 80)]
    frontier = search(traces, 16, 3)
    assert [growth.max_depth for growth in frontier.growths] == [1, 2, 3]
    for growth in frontier.growths:
        assert len(growth.scores) == growth.order.size
        assert [growth.order.prefix(size).size for size in range(growth.order.size + 1)] == list(range(growth.order.size + 1))
        assert all(mean_accept(growth.order.prefix(size), traces) > 0 for size in range(1, growth.order.size))


def test_the_frontier_file_has_the_same_bytes_for_the_same_evidence_and_round_trips() -> None:
    traces = [random_trace(random.Random(6), 50) for _ in range(2)]
    frontier = search(traces, 20, 4)
    data = to_json(frontier.to_json())
    assert data == to_json(search(traces, 20, 4).to_json())
    back = frontier_from_json(json.loads(data))
    assert back == frontier
    assert to_json(back.to_json()) == data


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match=f"--max-nodes is {size}"):
        search([one_step(0, 0)], size, 1)


@pytest.mark.parametrize("depth", [0, -1, 3])
def test_a_depth_that_the_heads_do_not_have_is_refused_with_both_numbers(depth: int) -> None:
    with pytest.raises(UsageError, match=f"--max-depth is {depth} and there are 2 heads"):
        search([one_step(0, 0)], 8, depth)


GOOD = Frontier((Growth(2, Topology(((0,), (0, 0))), (0.5, 0.75), "reached 2 nodes"),)).to_json()


@pytest.mark.parametrize("name", ["format", "version", "growths"])
def test_a_frontier_without_a_field_or_of_another_kind_is_refused(name: str) -> None:
    with pytest.raises(ArtefactError, match="frontier"):
        frontier_from_json({key: value for key, value in GOOD.items() if key != name})
    with pytest.raises(ArtefactError, match="frontier"):
        frontier_from_json(GOOD | {name: 7})


@pytest.mark.parametrize("value", [None, [], 3, "frontier", {}, [GOOD]])
def test_what_is_no_frontier_is_refused(value: object) -> None:
    with pytest.raises(ArtefactError, match="frontier"):
        frontier_from_json(value)


@pytest.mark.parametrize("nodes", [None, "[[0]]", [[0.5]], [["0"]], [[1]], [[0], [0]], [[0, 0], [0]], [[0], [True]]])
def test_a_frontier_whose_order_is_no_growth_is_refused(nodes: object) -> None:
    with pytest.raises(ArtefactError):
        frontier_from_json(GOOD | {"growths": [GOOD["growths"][0] | {"nodes": nodes}]})


@pytest.mark.parametrize(
    "change",
    [{"scores": [0.5]}, {"scores": "ab"}, {"scores": [None, None]}, {"max_depth": "2"}, {"max_depth": 1}, {"stopped": 3},
     {"nodes": [], "scores": []}],
    ids=str,
)  # fmt: skip
def test_a_growth_with_a_field_that_cannot_be_right_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ArtefactError):
        frontier_from_json(GOOD | {"growths": [GOOD["growths"][0] | change]})
