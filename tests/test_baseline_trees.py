"""The trees of other methods against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from entmtp_calib.calibrate.baseline_trees import hit_rates, marginal_tree, sequoia_tree
from entmtp_calib.calibrate.generalisation import generalisation
from entmtp_calib.calibrate.search import search
from entmtp_calib.evidence import Trace
from entmtp_calib.topology import Topology

CASES = list(itertools.product(range(3), (1, 4, 6), (1, 2, 3)))


def trace(ranks: np.ndarray) -> Trace:
    n, heads = ranks.shape
    zeros = np.zeros(n, np.float32)
    wide = np.zeros((n, heads), np.float32)
    return Trace("", np.zeros(n, np.int32), ranks.astype(np.int32), wide, zeros, zeros, wide, np.zeros(n, np.int32))


def evidence(seed: int, heads: int = 3) -> Trace:
    rng = np.random.default_rng(seed)
    return trace(np.stack([rng.geometric(share, 400) - 1 for share in rng.uniform(0.2, 0.7, heads)], 1))


def trees(size: int, depth: int) -> list[Topology]:
    """Every topology of some size and bounded depth."""
    found = {Topology()}
    for _ in range(size):
        found = {Topology((*tree.nodes, node)).sorted() for tree in found for node in tree.candidates(depth)}
    return list(found)


def worth(tree: Topology, rates: np.ndarray) -> float:
    """Expected accepted drafts if heads were independent."""
    return sum(float(np.prod([rates[d, rank] for d, rank in enumerate(node)])) for node in tree.nodes)


@pytest.mark.parametrize(("seed", "size", "depth"), CASES)
def test_the_closed_form_is_the_best_tree_of_independent_heads(seed: int, size: int, depth: int) -> None:
    mine = evidence(seed)
    rates = hit_rates([mine])
    found = marginal_tree([mine], size, depth)
    assert found.size == size
    assert worth(found, rates) == pytest.approx(max(worth(tree, rates) for tree in trees(size, depth)))


@pytest.mark.parametrize(("seed", "size", "depth"), CASES)
def test_the_dynamic_programme_is_the_best_tree_where_ranks_alone_decide(seed: int, size: int, depth: int) -> None:
    mine = evidence(seed)
    chance = np.tile(hit_rates([mine]).mean(0), (3, 1))
    found = sequoia_tree([mine], size, depth)
    assert (found.size, found.depth <= depth) == (size, True)
    assert worth(found, chance) == pytest.approx(max(worth(tree, chance) for tree in trees(size, depth)))


def test_rates_are_shares_of_the_positions_of_their_own_head() -> None:
    rates = hit_rates([trace(np.array([[0, 0], [0, 3], [1, -1], [900, -1]]))])
    assert rates[0, :3].tolist() == [0.5, 0.25, 0.0]
    assert rates[1, :4].tolist() == [0.5, 0.0, 0.0, 0.5]


def test_nothing_is_grown_from_heads_that_never_hit() -> None:
    assert marginal_tree([trace(np.full((9, 2), 5000))], 10, 2).size == 0


def test_a_level_that_holds_no_more_ends_the_tree() -> None:
    assert sequoia_tree([evidence(0)], 89, 1).size == 64


def test_the_frontier_is_judged_beside_the_others_on_prompts_that_none_has_seen() -> None:
    """Ranks that follow each other: after a second guess the next first guess is right, which hit rates cannot tell."""
    rng = np.random.default_rng(1)

    def linked(count: int) -> list[Trace]:
        first = (rng.random((count, 200)) < 0.5).astype(np.int32)
        return [trace(np.stack([row, 1 - row], 1)) for row in first]

    seen, unseen = linked(5), linked(5)
    rows = generalisation(search(seen, 4, 2), seen, unseen)
    assert [row.size for row in rows] == [1, 2, 3]
    best = rows[-1]
    assert best.gap == pytest.approx(best.fitted / best.held_out - 1)
    assert abs(best.gap) < 0.1
    assert best.held_out > best.marginal + 0.1
    assert best.held_out > best.sequoia + 0.1
