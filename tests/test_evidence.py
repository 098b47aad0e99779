"""Laws of replay: what a trace tells about every tree and every policy, checked by hand and by brute force."""

from __future__ import annotations

import random

import numpy as np
import pytest
from conftest import random_tree
from handmade import NEVER, random_trace, trace

from entmtp_calib.evidence import NodeTable, Trace, accepted_depths, mean_accept, walk
from entmtp_calib.policy import Hysteresis, Ladder, Policy, Static
from entmtp_calib.replay import Replayer
from entmtp_calib.topology import Topology, chain, published_default

SMALL = Topology(((0,), (1,), (0, 0), (1, 0), (1, 1), (1, 1, 0)))
HAND = trace(
    [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 0, 0], [NEVER, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
    [0.9, 0.1, 0.9, 0.1, 0.9, 0.1, 0.9, 0.1, 0.9, 0.9, 0.9],
)


def naive(tree: Topology, text: Trace) -> list[int]:
    """Longest prefix of the rank path that is a node, at every position."""
    nodes = set(tree.nodes)
    found = []
    for row in text.ranks.tolist():
        depth = 0
        while depth < len(row) and tuple(row[: depth + 1]) in nodes:
            depth += 1
        found.append(depth)
    return found


@pytest.mark.parametrize(
    ("tree", "wanted"),
    [
        (Topology(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (chain(1), [1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0]),
        (chain(3), [3, 1, 0, 0, 0, 0, 0, 0, 2, 1, 0]),
        (SMALL, [2, 1, 2, 3, 2, 0, 0, 3, 2, 1, 0]),
    ],
    ids=str,
)
def test_accepted_depths_are_those_of_the_table(tree: Topology, wanted: list[int]) -> None:
    assert accepted_depths(tree, HAND).tolist() == wanted


def test_accepted_depth_is_the_longest_prefix_of_the_rank_path_in_the_tree() -> None:
    rng = random.Random(0)
    for _ in range(60):
        tree = random_tree(rng, rng.randrange(20)) if rng.random() < 0.9 else published_default()
        text = random_trace(rng, rng.randrange(1, 30), heads=rng.randrange(1, 6))
        assert accepted_depths(tree, text).tolist() == naive(tree, text)


def test_the_last_accepted_node_is_named_whatever_the_order_of_the_tree() -> None:
    rng = random.Random(1)
    for _ in range(20):
        tree, text = random_tree(rng, 12), random_trace(rng, 25)
        for order in (tree, tree.sorted()):
            table = NodeTable(order)
            depths, rows = table.follow(text.ranks)
            paths = [tuple(row[:depth]) for row, depth in zip(text.ranks.tolist(), depths.tolist(), strict=True)]
            assert [table.nodes[row] for row in rows.tolist()] == paths


def test_nothing_is_accepted_past_the_end_of_the_text() -> None:
    rng = random.Random(2)
    for n in range(1, 8):
        depths = accepted_depths(published_default(), trace([[0] * 4] * n))
        assert depths.tolist() == [min(4, n - 1 - position) for position in range(n)]
        assert (accepted_depths(random_tree(rng, 20), random_trace(rng, n)) < n - np.arange(n)).all()


def test_a_walk_goes_on_after_what_was_accepted() -> None:
    assert walk(np.array([2, 0, 1, 0, 1, 0], np.int32)).tolist() == [0, 3, 4]
    assert walk(np.zeros(4, np.int32)).tolist() == [0, 1, 2, 3]
    assert walk(np.zeros(0, np.int32)).tolist() == []


def test_mean_accept_is_pooled_over_steps_not_averaged_over_texts() -> None:
    short, long = trace([[0]] * 4), trace([[NEVER]] * 8)
    assert [mean_accept(chain(1), [text]) for text in (short, long)] == [1.0, 0.0]
    assert mean_accept(chain(1), [short, long]) == Replayer([chain(1)], [short, long]).run(Static(0)).mean_accept == 2 / 10
    assert mean_accept(Topology(), [short, long]) == 0.0
    assert mean_accept(chain(1), []) == 0.0


def test_a_static_replay_is_the_walk_of_its_tree() -> None:
    run = Replayer([Topology(), SMALL], [HAND, HAND]).run(Static(1))
    assert run.positions.tolist() == [0, 3, 7] * 2
    assert run.accepted.tolist() == [2, 3, 3] * 2
    assert run.index.tolist() == [1] * 6
    assert run.prompt.tolist() == [0] * 3 + [1] * 3
    assert (run.tokens, run.mean_accept, run.switches) == (22, 16 / 6, 0)


def test_a_ladder_replay_reads_the_signal_of_each_steps_own_position() -> None:
    run = Replayer([Topology(), SMALL], [HAND, HAND], "base_top1").run(Ladder((0.5,), (0, 1)))
    assert run.positions.tolist() == [0, 3, 4, 7, 8] * 2
    assert run.index.tolist() == [1, 0, 1, 0, 1] * 2
    assert run.accepted.tolist() == [2, 0, 2, 0, 2] * 2
    assert (run.tokens, run.switches) == (22, 8)


def test_a_hysteresis_replay_starts_anew_in_every_text() -> None:
    signals = [0.9, 0.5, 0.5, 0.1, 0.5, 0.9]
    texts = [trace([[NEVER]] * 6, signals), trace([[NEVER]] * 3, [0.5] * 3)]
    run = Replayer([Topology(), chain(1)], texts, "base_top1").run(Hysteresis(0.8, 0.3, 0, 1))
    assert run.index.tolist() == [1, 1, 1, 0, 0, 1, 0, 0, 0]
    assert run.switches == 2


POLICIES: list[Policy] = [Static(0), Static(2), Ladder((0.3, 0.6), (0, 2, 1)), Hysteresis(0.6, 0.4, 1, 2)]


def test_every_policy_writes_every_text_once_and_in_order() -> None:
    rng = random.Random(3)
    for policy in POLICIES:
        texts = [random_trace(rng, rng.randrange(1, 30)) for _ in range(4)]
        run = Replayer([Topology(), random_tree(rng, 6), random_tree(rng, 20)], texts, "base_top1").run(policy)
        assert run.tokens == sum(map(len, texts))
        for number, text in enumerate(texts):
            own = run.prompt == number
            ends = run.positions[own] + 1 + run.accepted[own]
            assert [0, *ends.tolist()] == [*run.positions[own].tolist(), len(text)]


def test_a_replay_without_texts_is_empty() -> None:
    run = Replayer([Topology()], []).run(Static(0))
    assert (len(run.positions), run.mean_accept, run.tokens, run.switches) == (0, 0.0, 0, 0)
