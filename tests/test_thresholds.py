"""Laws of fitting policies, on traces whose best answer is known."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from conftest import random_tree
from handmade import NEVER, random_trace, trace

from entmtp_calib.calibrate.thresholds import (
    Costs,
    Outcome,
    best_bins,
    best_static,
    evaluate,
    fit_hysteresis,
    fit_ladder,
    gain,
    quantiles,
    replayed_rates,
)
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.policy import Hysteresis, Ladder, Policy, Static
from entmtp_calib.replay import Replayer
from entmtp_calib.topology import Topology, chain

BANK = [Topology(), chain(4)]
COSTS = Costs(alone=(1.0, 1.6), draft=(0.0, 0.1), shared=(0.0, 0.1))


def timed(label: str, topology: Topology, rate: float) -> Timed:
    return Timed(label, topology, rate, rate, 0.1, 0.01, 1.5, 1.0, 0.9, 1.1, 0.01)


def ladder_of(replayer: Replayer, costs: Costs) -> Outcome:
    return fit_ladder(replayer, costs, 4)


def mixed(rng: random.Random, constant: bool = False) -> Replayer:
    """Texts of easy stretches (all guesses right, signal high) and hard ones (none right, signal low)."""
    texts = []
    for _ in range(6):
        easy = [kind for kind in rng.choices([True, False], k=12) for _ in range(5)]
        ranks = [[0] * 4 if kind else [NEVER] * 4 for kind in easy]
        signal = [0.5 if constant else rng.uniform(0.6, 0.9) if kind else rng.uniform(0.1, 0.4) for kind in easy]
        texts.append(trace(ranks, signal))
    return Replayer(BANK, texts, "base_top1")


def noisy(seed: int) -> tuple[Replayer, Costs]:
    """A random bank of rising cost over random texts; switching costs nothing."""
    rng = random.Random(seed)
    trees = [Topology(), *(random_tree(rng, size) for size in (2, 6, 16))]
    texts = [random_trace(rng, rng.randrange(5, 50)) for _ in range(5)]
    alone = tuple(1 + 0.02 * tree.size * rng.random() for tree in trees)
    return Replayer(trees, texts, "base_top1"), Costs(alone, (0.0,) * 4, (0.0,) * 4)


def test_rates_are_replayed_tokens_per_step_over_measured_seconds() -> None:
    traces = [trace([[0, 0], [0, -1], [-1, -1]])]  # a chain of two takes all three tokens in one step
    arms = [timed("ar", Topology(), 99.0), timed("n2", chain(2), 1.0)]
    assert replayed_rates(arms, traces) == pytest.approx({"ar": 1 / 0.1, "n2": 3 / 0.1})


def test_a_policy_that_switches_pays_for_the_shared_draft() -> None:
    costs = Costs(alone=(1.0, 2.5), draft=(0.0, 0.5), shared=(0.1, 0.75))
    assert costs.of(Static(1)).tolist() == [1.0, 2.5]
    for policy in (Ladder((0.5,), (0, 1)), Hysteresis(0.5, 0.5, 0, 1)):
        assert costs.of(policy).tolist() == [1.75, 2.75]


def test_a_policy_pays_for_drafting_to_the_depth_of_its_deepest_tree_and_no_deeper() -> None:
    costs = Costs(alone=(1.0, 2.0, 4.0), draft=(0.0, 0.5, 1.0), shared=(0.1, 0.6, 1.5))
    assert costs.of(Ladder((0.5,), (0, 1)))[:2].tolist() == pytest.approx([1.6, 2.1])
    assert costs.of(Ladder((0.5,), (1, 2)))[1:].tolist() == pytest.approx([3.0, 4.5])


def test_an_outcome_is_a_ratio_of_sums() -> None:
    texts = [trace([[0]] * 4, [0.9] * 4), trace([[NEVER]] * 6, [0.1] * 6)]
    costs = Costs((1.0, 3.0), (0.0, 1.0), (0.0, 1.5))
    replayer = Replayer([Topology(), chain(1)], texts, "base_top1")
    found = evaluate(Static(1), replayer, costs)
    assert (found.tokens.tolist(), found.seconds.tolist()) == ([4, 6], [6.0, 18.0])
    assert (found.tokens_per_s, found.mean_accept, found.shares, found.switches) == (10 / 24, 0.25, (0.0, 1.0), 0)
    found = evaluate(Ladder((0.5,), (0, 1)), replayer, costs)
    assert (found.tokens.tolist(), found.seconds.tolist()) == ([4, 6], [7.0, 15.0])
    assert (found.tokens_per_s, found.shares) == (10 / 22, (0.75, 0.25))


def test_switches_are_counted_per_hundred_steps_within_texts() -> None:
    texts = [trace([[NEVER]] * 4, [0.9, 0.1, 0.1, 0.9]), trace([[NEVER]] * 4, [0.1] * 4)]
    found = evaluate(Ladder((0.5,), (0, 1)), Replayer([Topology(), chain(1)], texts, "base_top1"), Costs((1, 1), (0, 0), (0, 0)))
    assert found.switches == 25.0


def test_every_outcome_accounts_for_every_token() -> None:
    for seed in range(10):
        replayer, costs = noisy(seed)
        for found in (best_static(replayer, costs), ladder_of(replayer, costs), fit_hysteresis(replayer, costs)):
            assert found.tokens.tolist() == [len(depths) for depths in replayer.depths]
            assert sum(found.shares) == pytest.approx(1)


def test_the_best_static_tree_is_the_fastest_and_of_equals_the_smaller() -> None:
    for seed in range(10):
        replayer, costs = noisy(seed)
        rates = [evaluate(Static(index), replayer, costs).tokens_per_s for index in range(4)]
        assert best_static(replayer, costs).policy == Static(rates.index(max(rates)))
    replayer = Replayer([Topology(), chain(1), chain(2)], [trace([[NEVER, NEVER]] * 5)], "base_top1")
    assert best_static(replayer, Costs((1, 1, 1), (0, 0, 0), (0, 0, 0))).policy == Static(0)


def test_where_the_signal_tells_easy_from_hard_switching_beats_every_static_tree() -> None:
    for seed in range(5):
        replayer = mixed(random.Random(seed))
        static, ladder, hysteresis = (fit(replayer, COSTS) for fit in (best_static, ladder_of, fit_hysteresis))
        assert ladder.tokens_per_s > 1.1 * static.tokens_per_s
        assert hysteresis.tokens_per_s > 1.1 * static.tokens_per_s
        assert [ladder.policy.next(0, signal) for signal in (0.2, 0.8)] == [0, 1]
        assert gain(ladder, static, 0).measurable


def test_a_ladder_weighs_what_a_tree_adds_against_what_it_costs() -> None:
    ranks = [[0] * 4] * 25 + [[0, NEVER, NEVER, NEVER]] * 25
    replayer = Replayer(BANK, [trace(ranks, [0.9] * 25 + [0.1] * 25)] * 2, "base_top1")
    ladder = ladder_of(replayer, Costs((1.0, 3.0), (0.0, 0.0), (0.0, 0.0)))
    assert [ladder.policy.next(0, signal) for signal in (0.1, 0.9)] == [0, 1]


def test_where_switching_is_free_no_fit_is_slower_than_the_best_static_tree() -> None:
    for seed in range(25):
        replayer, costs = noisy(seed)
        base = best_static(replayer, costs).tokens_per_s
        assert ladder_of(replayer, costs).tokens_per_s >= base
        assert fit_hysteresis(replayer, costs).tokens_per_s >= base


CHEAP, DEAR = Costs((1.0, 1.2), (0.0, 0.1), (0.0, 0.1)), Costs((1.0, 9.0), (0.0, 0.5), (0.0, 0.5))


def test_a_constant_signal_gives_the_static_tree() -> None:
    replayer = mixed(random.Random(0), constant=True)
    for costs, tree in ((CHEAP, 1), (DEAR, 0)):
        assert best_static(replayer, costs).policy == Static(tree)
        found = ladder_of(replayer, costs)
        assert [found.policy.next(index, 0.5) for index in (0, 1)] == [tree, tree]
        assert (found.switches, found.shares[tree]) == (0, 1)
    assert fit_hysteresis(replayer, CHEAP).shares == (0, 1)


def test_hysteresis_can_stay_low_all_the_time() -> None:
    assert fit_hysteresis(mixed(random.Random(0), constant=True), DEAR).shares == (1, 0)


def test_hysteresis_never_inverts_its_thresholds() -> None:
    for seed in range(10):
        replayer, costs = noisy(seed)
        policy = fit_hysteresis(replayer, costs).policy
        assert isinstance(policy, Hysteresis)
        assert policy.off <= policy.on


def test_a_ladder_has_rising_edges_between_different_trees() -> None:
    for seed in range(10):
        replayer, costs = noisy(seed)
        policy = ladder_of(replayer, costs).policy
        assert isinstance(policy, Ladder)
        assert list(policy.edges) == sorted(set(policy.edges))
        assert all(low != high for low, high in zip(policy.trees, policy.trees[1:], strict=False))


def test_a_bank_of_plain_decoding_alone_can_be_fitted() -> None:
    replayer = Replayer([Topology()], [trace([[0]] * 5)], "base_top1")
    costs = Costs((1.0,), (0.0,), (0.0,))
    for fit in (best_static, ladder_of, fit_hysteresis):
        found = fit(replayer, costs)
        assert (found.tokens_per_s, found.shares, found.switches) == (1.0, (1.0,), 0)


def test_an_outcome_gains_exactly_nothing_over_itself() -> None:
    for seed in range(5):
        replayer, costs = noisy(seed)
        for found in (best_static(replayer, costs), ladder_of(replayer, costs)):
            itself = gain(found, found, seed)
            assert (itself.ratio, itself.low, itself.high) == (1.0, 1.0, 1.0)
            assert not itself.measurable


def test_a_gain_is_a_ratio_of_pooled_rates_inside_its_interval_and_fixed_by_its_seed() -> None:
    replayer = mixed(random.Random(1))
    ladder, static = ladder_of(replayer, COSTS), best_static(replayer, COSTS)
    found = gain(ladder, static, 7)
    assert found.ratio == ladder.tokens_per_s / static.tokens_per_s
    assert found.low <= found.ratio <= found.high
    assert found == gain(ladder, static, 7)
    assert gain(static, ladder, 7).ratio == pytest.approx(1 / found.ratio)


def test_an_interval_is_of_pooled_rates_so_a_long_text_weighs_more() -> None:
    tokens = np.array([10.0] * 19 + [100_000.0])
    base = Outcome(tokens, tokens, Static(0), 0.0, (1.0,), 0.0)
    found = gain(Outcome(tokens, tokens / np.array([2.0] * 19 + [1.0]), Static(0), 0.0, (1.0,), 0.0), base, 0)
    assert found.ratio == pytest.approx(1, abs=0.01)
    assert (found.low, found.high) == (pytest.approx(1, abs=0.01), pytest.approx(2))


def test_bins_are_cut_where_the_worth_is_greatest_and_nowhere_for_nothing() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        worth = rng.integers(-3, 4, (int(rng.integers(1, 7)), int(rng.integers(1, 4)))).astype(float)
        groups, trees = worth.shape
        for bins in (1, 2, 3):
            ways = [way for way in itertools.product(range(trees), repeat=groups)
                    if sum(a != b for a, b in itertools.pairwise(way)) < bins]  # fmt: skip
            totals = [sum(worth[group, tree] for group, tree in enumerate(way)) for way in ways]
            found = best_bins(worth, bins)
            assert sum(worth[group, tree] for group, tree in enumerate(found)) == max(totals)
            cuts = [sum(a != b for a, b in itertools.pairwise(way)) for way, total in zip(ways, totals, strict=True)
                    if total == max(totals)]  # fmt: skip
            assert sum(a != b for a, b in itertools.pairwise(found)) == min(cuts)


def test_a_ladder_has_no_more_bins_than_it_may() -> None:
    for seed in range(10):
        replayer, costs = noisy(seed)
        for bins in (1, 2, 3):
            found = fit_ladder(replayer, costs, bins)
            assert isinstance(found.policy, Ladder)
            assert len(found.policy.trees) <= bins


def test_a_hysteresis_is_the_fastest_of_all_pairs_of_quantiles_and_trees() -> None:
    for seed in range(3):
        replayer, costs = noisy(seed)
        levels = quantiles(replayer.run(best_static(replayer, costs).policy).signals, 16)
        every: list[Policy] = [
            Hysteresis(float(on), float(off), low, high)
            for low, high in itertools.permutations(range(4), 2) for on in levels[::3] for off in levels[::3] if off <= on
        ]  # fmt: skip
        fastest = max(evaluate(policy, replayer, costs).tokens_per_s for policy in every)
        assert fit_hysteresis(replayer, costs).tokens_per_s >= fastest - 1e-12


def test_a_signal_that_falls_where_text_is_easy_serves_as_well() -> None:
    replayer = mixed(random.Random(3))
    upside_down = [trace(text.ranks.tolist(), (1 - np.exp(text.root_logp)).tolist()) for text in replayer.traces]
    turned = Replayer(BANK, upside_down, "base_top1")
    for fit in (ladder_of, fit_hysteresis):
        assert fit(turned, COSTS).tokens_per_s == pytest.approx(fit(replayer, COSTS).tokens_per_s, rel=0.03)


def test_fits_are_the_same_every_time() -> None:
    for fit in (best_static, ladder_of, fit_hysteresis):
        assert fit(*noisy(4)).policy == fit(*noisy(4)).policy


def test_quantiles_are_values_that_occur_above_the_least_and_rise() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        signals = rng.choice(rng.random(5), 30)
        found = quantiles(signals, 8)
        assert set(found) <= set(signals) - {signals.min()}
        assert (np.diff(found) > 0).all()
    assert quantiles(np.full(9, 0.5), 4).tolist() == quantiles(np.zeros(0), 4).tolist() == []
