"""Laws of held-out judging, the fitted signal, what is said of signals, and which policy is recommended."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from handmade import NEVER, trace

from entmtp_calib.calibrate.combined_signal import fit_combined, signal_for
from entmtp_calib.calibrate.fitting import Judged, fit_policies, recommend
from entmtp_calib.calibrate.held_out import folds, held_out
from entmtp_calib.calibrate.signal_study import choose_signal, pearson, rank_correlation, reliability, study
from entmtp_calib.calibrate.thresholds import Costs, Gain, Outcome, best_static, evaluate, fit_ladder, gain
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.evidence import Trace
from entmtp_calib.policy import Static
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import COMBINED, Signal, signal_names
from entmtp_calib.topology import Topology, chain

BANK = [Topology(), chain(4)]
COSTS = Costs(alone=(1.0, 1.6), draft=(0.0, 0.1), shared=(0.0, 0.1))


def told(rng: random.Random, texts: int, by_heads: bool = True) -> list[Trace]:
    """Texts of easy stretches and hard ones that the heads' confidence tells apart, while the target's tells nothing."""
    made = []
    for number in range(texts):
        easy = [kind for kind in rng.choices([True, False], k=10) for _ in range(6)]
        text = trace([[0] * 4 if kind else [NEVER] * 4 for kind in easy], [rng.uniform(0.2, 0.9) for _ in easy], f"t{number}")
        sure = [0.9 if kind == by_heads else 0.3 for kind in easy]
        heads = np.log(np.array([[p * rng.uniform(0.9, 1.1) for _ in range(4)] for p in sure], np.float32))
        made.append(replace(text, chain_logp=heads, entropy=np.array([rng.random() for _ in easy], np.float32)))
    return made


def parts() -> tuple[Replayer, Replayer]:
    rng = random.Random(0)
    return Replayer(BANK, told(rng, 10)), Replayer(BANK, told(rng, 8))


def test_folds_are_all_texts_once() -> None:
    for texts in range(1, 13):
        parts = folds(texts, 5)
        assert sorted(text for part in parts for text in part) == list(range(texts))
        assert len(parts) == min(5, texts)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_no_text_is_judged_by_what_saw_it() -> None:
    fit, _test = parts()
    seen: list[set[str]] = []

    def spy(replayer: Replayer, costs: Costs) -> Outcome:
        seen.append({text.prompt_id for text in replayer.traces})
        return best_static(replayer, costs)

    found = held_out("base_top1", spy, fit, COSTS)
    names = [text.prompt_id for text in fit.traces]
    assert [set(names) - others for others in seen] == [{names[text] for text in own} for own in folds(10)]
    assert found.tokens.tolist() == [len(text) for text in fit.traces]


def test_held_out_figures_are_those_of_the_folds_and_a_single_text_judges_itself() -> None:
    fit, _test = parts()
    constant = held_out("base_top1", lambda replayer, costs: evaluate(Static(1), replayer, costs), fit, COSTS)
    assert constant.seconds.tolist() == evaluate(Static(1), fit, COSTS).seconds.tolist()
    alone = held_out("base_top1", best_static, fit.part([0]), COSTS)
    assert alone.tokens_per_s == best_static(fit.part([0]), COSTS).tokens_per_s


def test_a_combined_signal_finds_the_heads_and_leaves_out_what_does_not_vary() -> None:
    fit, test = parts()
    signal = fit_combined(fit, COSTS)
    run = test.reading(signal).run(Static(0))
    assert pearson(run.signals, test.acceptance(run)[:, 1]) > 0.8
    flat = [replace(text, entropy=np.ones(len(text), np.float32)) for text in fit.traces]
    assert fit_combined(Replayer(BANK, flat), COSTS).weights[2] == 0
    assert signal_for("base_top1", fit, COSTS) == Signal("base_top1")
    assert signal_for(COMBINED, fit, COSTS) == signal


def test_the_study_finds_the_signal_that_tells_and_says_of_the_others_that_they_do_not() -> None:
    fit, test = parts()
    rows = study(signal_names(4), lambda _name: COSTS, fit, test, 2, 0)
    by_name = {row.name: row for row in rows}
    assert by_name["expected_chain_4"].cross_validated.measurable
    assert by_name["expected_chain_4"].test.ratio > 1.1
    assert by_name["expected_chain_4"].tree[0] > 0.7
    assert by_name["expected_chain_4"].steady
    for name in ("base_top1", "entropy"):
        assert abs(by_name[name].tree[0]) < 0.3
        assert by_name[name].test.ratio < 1.02
    assert choose_signal(rows) not in ("base_top1", "entropy", "entropy_ema_4", "entropy_ema_16")
    assert choose_signal([rows[0], replace(rows[0], name="later")]) == rows[0].name


def test_where_no_ladder_gains_the_signal_that_follows_acceptance_is_chosen() -> None:
    fit, test = parts()
    rows = study(signal_names(4), lambda _name: COSTS, fit, test, 2, 0)
    flat = [replace(row, cross_validated=replace(row.cross_validated, ratio=1.0)) for row in rows]
    chosen = next(row for row in flat if row.name == choose_signal(flat))
    assert chosen.fit_rank > 0.5
    assert all(abs(row.fit_rank) <= chosen.fit_rank for row in flat if row.name != "combined")
    assert np.isnan(next(row.fit_rank for row in rows if row.name == "combined"))


def test_a_studied_signals_figures_are_those_of_its_ladder() -> None:
    fit, test = parts()
    row = study(["expected_chain_2"], lambda _name: COSTS, fit, test, 2, 3)[0]
    ladder = fit_ladder(fit.reading("expected_chain_2"), COSTS, 2)
    static = best_static(fit, COSTS)
    judged = evaluate(ladder.policy, test.reading("expected_chain_2"), COSTS)
    assert row.test == gain(judged, evaluate(static.policy, test, COSTS), 3)
    base = held_out("expected_chain_2", best_static, fit, COSTS)
    apart = held_out("expected_chain_2", partial(fit_ladder, bins=2), fit, COSTS)
    assert row.cross_validated == gain(apart, base, 3)
    assert sum(part.steps for part in row.reliability) == len(test.run(static.policy).index)
    assert row.to_json()["name"] == "expected_chain_2"


def test_correlations_by_hand() -> None:
    rising = np.array([1.0, 2.0, 3.0, 10.0])
    assert rank_correlation(rising, rising**3) == pytest.approx(1)
    assert rank_correlation(rising, -rising) == pytest.approx(-1)
    assert rank_correlation(np.array([1.0, 1.0, 2.0]), np.array([0.0, 1.0, 2.0])) == pytest.approx(3**0.5 / 2)
    assert np.isnan(pearson(np.ones(4), rising))
    assert np.isnan(rank_correlation(rising, np.ones(4)))
    assert np.isnan(pearson(np.zeros(0), np.zeros(0)))


def test_reliability_is_counted_in_bins_of_the_signal() -> None:
    signals = np.repeat([0.1, 0.5, 0.9], 20)
    accepted = np.stack([np.repeat([0, 1, 2], 20), np.repeat([0, 2, 4], 20)], 1)
    bins, steady = reliability(signals, accepted)
    assert [(part.steps, round(part.signal, 6), part.chain, part.tree) for part in bins] == [
        (20, 0.1, 0, 0), (20, 0.5, 1, 2), (20, 0.9, 2, 4),
    ]  # fmt: skip
    assert steady
    assert reliability(signals, accepted[::-1])[1]
    assert not reliability(signals, np.repeat([[0, 0], [4, 4], [0, 0]], 20, 0))[1]
    assert len(reliability(np.ones(5), np.zeros((5, 2)))[0]) == 1


def timed(label: str, tree: Topology) -> Timed:
    return Timed(label, tree, 1, 1, 1, 0.1, 1, 1, 1, 1, 0)


def test_what_gains_is_recommended_and_its_figures_stand_between_floor_and_ceiling() -> None:
    fit, test = parts()
    kept = [timed("ar", BANK[0]), timed("n4", BANK[1])]
    found = fit_policies("auto", kept, {}, lambda _name: COSTS, fit, test, 0)
    assert found.recommended in ("ladder", "hysteresis")
    assert found.asked == "auto"
    assert found.signal.name == choose_signal(found.study)
    assert found.oracle_shared <= found.oracle_test
    static = found.policies[0]
    assert (static.gain.ratio, static.cross_validated.ratio, static.headroom) == (1, 1, 0)
    chosen = next(judged for judged in found.policies if judged.name == found.recommended)
    assert chosen.floor < chosen.test.tokens_per_s < found.oracle_test
    assert 0 < chosen.headroom < 1
    named = fit_policies("expected_chain_4", kept, {}, lambda _name: COSTS, fit, test, 0)
    assert (list(named.study), named.signal) == ([], Signal("expected_chain_4"))


def test_where_the_signal_tells_nothing_static_is_recommended() -> None:
    fit, test = parts()
    kept = [timed("ar", BANK[0]), timed("n4", BANK[1])]
    dear = Costs(COSTS.alone, COSTS.draft, (0.0, 0.8))
    for name, costs in (("base_top1", COSTS), ("expected_chain_4", dear)):
        assert fit_policies(name, kept, {}, lambda _name, costs=costs: costs, fit, test, 0).recommended == "static"


def test_a_policy_is_recommended_only_if_both_judgements_are_for_it() -> None:
    fit, _test = parts()
    outcome = best_static(fit, COSTS)

    def judged(name: str, seen: float, low: float) -> Judged:
        return Judged(name, outcome, outcome, Gain(seen, 0.9, 1.2), Gain(1.1, low, 1.2), 0.0, 0.0)

    static = judged("static", 1.0, 1.0)
    assert recommend([static, judged("ladder", 1.05, 1.01), judged("hysteresis", 1.05, 1.01)]) == "ladder"
    assert recommend([static, judged("ladder", 1.02, 1.01), judged("hysteresis", 1.05, 1.01)]) == "hysteresis"
    assert recommend([static, judged("ladder", 1.05, 0.99), judged("hysteresis", 0.99, 1.01)]) == "static"
