"""Policies where the text depends on the tree: fitted on recorded steps, judged by rollouts of their own.

A first pass records the steps of the bank's static tree. If a policy fitted to them switches, a second pass records the steps of
that policy, whose text is another, and the policies are fitted to both. The test prompts are decoded by every policy by itself.
Computes with step costs that were measured; knows no files and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from entmtp_calib.calibrate.ceiling import headroom_share
from entmtp_calib.calibrate.combined_signal import signal_for
from entmtp_calib.calibrate.fitting import STUDY_BINS, Fitted, Judged, kinds_of_policy, recommend
from entmtp_calib.calibrate.held_out import Fit, held_out
from entmtp_calib.calibrate.signal_study import pearson
from entmtp_calib.calibrate.thresholds import Costs, Gain, best_static, fit_ladder, gain
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.calibrate.typical_rollouts import Evidence
from entmtp_calib.calibrate.typical_steps import RecordedSteps, at_random, best_choices, outcome_of
from entmtp_calib.policy import Policy, Static
from entmtp_calib.signals import AUTO, Signal, signal_names

METHOD = "rollouts with measured step costs, prefill left out; typical acceptance, not lossless"


def fit_recorded(
    asked: str, kept: list[Timed], rates: Mapping[str, float], costs_of: Callable[[str], Costs], evidence: Evidence, seed: int,
    tick: Callable[[int, int], None] = lambda _done, _total: None,
) -> Fitted:  # fmt: skip
    """Fit static, ladder and hysteresis, judge and recommend.

    Args:
        asked: name of a signal, or "auto": the one whose ladder gains most on fit prompts that it did not see.
        kept: the bank's trees, of which the last is the fastest by itself.
        rates: measured tokens per second of every timed arm.
        costs_of: step costs under a policy that reads a signal.
        tick: told how many signals are done, of how many.
    """
    trees = [arm.topology for arm in kept]
    recorded = evidence.record("fit", Static(len(kept) - 1), None)
    first = RecordedSteps.of(trees, recorded)
    name = choose(costs_of, first, min(STUDY_BINS, len(kept)), seed, tick) if asked == AUTO else asked
    costs = costs_of(name)
    signal = signal_for(name, first, costs)
    kinds = kinds_of_policy(name, costs, first, seed)
    switching = switching_policy(kinds, first.reading(signal), costs)
    if switching is not None:
        recorded = [*recorded, *evidence.record("fit", switching, signal)]
    fit = RecordedSteps.of(trees, recorded).reading(signal)
    test = RecordedSteps.of(trees, evidence.record("test", Static(len(kept) - 1), None)).reading(signal)
    policies = _judge(kinds, costs, fit, test, evidence, signal, seed)
    run = test.run(policies[0].fit.policy)
    return Fitted(
        signal, asked, kept, rates, costs, policies, recommend(policies), best_choices(fit, costs.alone).tokens_per_s,
        best_choices(test, costs.alone).tokens_per_s, best_choices(test, costs.among(range(len(kept))).tolist()).tokens_per_s,
        pearson(run.signals, run.accepted), method=METHOD,
    )  # fmt: skip


def choose(costs_of: Callable[[str], Costs], steps: RecordedSteps, bins: int, seed: int, tick: Callable[[int, int], None]) -> str:
    """The signal whose ladder gains most over the static tree on prompts that it did not see; the first of equals."""
    names = signal_names(steps.traces[0].heads)
    gains = {}
    for done, name in enumerate(names, 1):
        costs = costs_of(name)
        base = held_out("base_top1", best_static, steps, costs)
        gains[name] = gain(held_out(name, partial(fit_ladder, bins=bins), steps, costs), base, seed).ratio
        tick(done, len(names))
    return max(names, key=lambda name: gains[name])


def switching_policy(kinds: Mapping[str, tuple[Fit, Gain]], steps: RecordedSteps, costs: Costs) -> Policy | None:
    """The first kind's policy that uses more than one tree; None where all end as the static tree."""
    fitted = (fitter(steps, costs).policy for fitter, _gain in kinds.values())
    return next((policy for policy in fitted if len(policy.members) > 1), None)


def _judge(
    kinds: Mapping[str, tuple[Fit, Gain]], costs: Costs, fit: RecordedSteps, test: RecordedSteps, evidence: Evidence,
    signal: Signal, seed: int,
) -> list[Judged]:  # fmt: skip
    """Every kind of policy, fitted to all recorded steps and run by itself on the test prompts."""
    ceiling, judged = best_choices(test, costs.alone), list[Judged]()
    for kind, (fitter, apart) in kinds.items():
        outcome = fitter(fit, costs)
        there = outcome_of(outcome.policy, costs, *evidence.decode("test", outcome.policy, signal))
        static = judged[0].test if judged else there
        floor = at_random(there.shares, test, costs.of(outcome.policy))
        judged.append(
            Judged(kind, outcome, there, apart, gain(there, static, seed), floor, headroom_share(there, static, ceiling))
        )
    return judged
