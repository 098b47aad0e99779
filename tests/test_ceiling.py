"""Laws of the ceiling and the floor: the oracle against all ways through a text, and chance at a policy's own shares."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from conftest import random_tree
from handmade import NEVER, random_trace, trace

from entmtp_calib.calibrate.ceiling import headroom_share, oracle, random_switching
from entmtp_calib.calibrate.thresholds import Costs, Speed, best_static, evaluate, fit_hysteresis, fit_ladder
from entmtp_calib.evidence import accepted_depths
from entmtp_calib.policy import Hysteresis, Ladder, Policy, Static
from entmtp_calib.replay import Replayer
from entmtp_calib.topology import Topology, chain

POLICIES: list[Policy] = [Static(0), Static(2), Ladder((0.3, 0.6), (0, 2, 1)), Hysteresis(0.6, 0.4, 1, 2)]


def brute(depths: Sequence[Sequence[int]], seconds: Sequence[float], here: int = 0) -> float:
    if here >= len(depths):
        return 0.0
    return min(cost + brute(depths, seconds, here + 1 + depths[here][tree]) for tree, cost in enumerate(seconds))


def test_the_oracle_is_the_cheapest_of_all_ways_through_the_text() -> None:
    rng = random.Random(4)
    for _ in range(30):
        trees = [Topology(), random_tree(rng, 3), random_tree(rng, 15)]
        seconds = [rng.uniform(0.5, 1.5) for _ in trees]
        texts = [random_trace(rng, rng.randrange(1, 8)) for _ in range(2)]
        depths = [list(zip(*(accepted_depths(tree, text).tolist() for tree in trees), strict=True)) for text in texts]
        found = oracle(Replayer(trees, texts), seconds)
        assert found.seconds.tolist() == pytest.approx([brute(rows, seconds) for rows in depths])
        assert found.tokens.tolist() == [len(text) for text in texts]


def test_no_policy_is_faster_than_the_oracle() -> None:
    rng = random.Random(5)
    for _ in range(20):
        replayer = Replayer([Topology(), random_tree(rng, 5), random_tree(rng, 20)],
                            [random_trace(rng, 40) for _ in range(3)], "base_top1")  # fmt: skip
        seconds = np.array([rng.uniform(0.5, 2) for _ in range(3)])
        costs = Costs(tuple(seconds), (0.0,) * 3, (0.0,) * 3)
        best = oracle(replayer, seconds.tolist()).tokens_per_s
        found = [evaluate(policy, replayer, costs) for policy in POLICIES]
        found += [fit_ladder(replayer, costs, 3), fit_hysteresis(replayer, costs), best_static(replayer, costs)]
        assert max(outcome.tokens_per_s for outcome in found) <= best + 1e-9


def test_the_oracle_pays_only_for_what_each_step_uses() -> None:
    replayer = Replayer([Topology(), chain(4)], [trace([[0] * 4] * 5 + [[NEVER] * 4] * 2)], "base_top1")
    assert oracle(replayer, (1.0, 1.6)).tokens_per_s == pytest.approx(7 / (1.6 + 1.0 + 1.0))


def test_random_switching_keeps_the_shares_and_pays_what_the_policy_pays() -> None:
    rng = random.Random(6)
    texts = [trace([[NEVER]] * 50, [rng.random() for _ in range(50)]) for _ in range(8)]
    replayer = Replayer([Topology(), chain(1)], texts, "base_top1")
    costs = Costs((1.0, 3.0), (0.0, 1.0), (0.0, 1.0))
    outcome = evaluate(Ladder((0.25,), (0, 1)), replayer, costs)
    # Nothing is accepted, so every way of spending the same shares takes the same time in the long run.
    assert random_switching(outcome, replayer, costs, 0) == pytest.approx(outcome.tokens_per_s, rel=0.05)
    assert random_switching(outcome, replayer, costs, 0) == random_switching(outcome, replayer, costs, 0)
    static = best_static(replayer, costs)
    assert random_switching(static, replayer, costs, 0) == pytest.approx(static.tokens_per_s)


def test_a_signal_that_tells_something_beats_chance() -> None:
    rng = random.Random(7)
    easy = [rng.random() < 0.5 for _ in range(300)]
    replayer = Replayer([Topology(), chain(1)], [trace([[0] if kind else [NEVER] for kind in easy],
                                                       [0.9 if kind else 0.1 for kind in easy])], "base_top1")  # fmt: skip
    costs = Costs((1.0, 1.5), (0.0, 0.1), (0.0, 0.1))
    outcome = evaluate(Ladder((0.5,), (0, 1)), replayer, costs)
    assert outcome.tokens_per_s > 1.05 * random_switching(outcome, replayer, costs, 1)


def test_the_share_of_the_headroom_is_none_for_static_and_all_for_the_oracle() -> None:
    speeds = [Speed(np.array([100.0]), np.array([seconds])) for seconds in (10.0, 8.0, 5.0)]
    static, policy, ceiling = speeds
    assert headroom_share(static, static, ceiling) == 0
    assert headroom_share(ceiling, static, ceiling) == 1
    assert headroom_share(policy, static, ceiling) == pytest.approx((12.5 - 10) / (20 - 10))
    assert np.isnan(headroom_share(policy, static, static))
