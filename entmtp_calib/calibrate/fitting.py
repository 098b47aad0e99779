"""From timings to a bank: which trees stay, what the policies over them give on fresh prompts, and what is recommended.

Policies are replayed; runs no model and knows no files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import isnan
from typing import Any

from entmtp_calib.bank import BankTree, TopologyBank
from entmtp_calib.calibrate.ceiling import headroom_share, oracle, random_switching
from entmtp_calib.calibrate.combined_signal import signal_for
from entmtp_calib.calibrate.held_out import Fit, held_out
from entmtp_calib.calibrate.recalibrate import Recalibrated
from entmtp_calib.calibrate.signal_study import Studied, choose_signal, pearson, study
from entmtp_calib.calibrate.thresholds import (
    Costs,
    Gain,
    Outcome,
    Speed,
    best_static,
    evaluate,
    fit_hysteresis,
    fit_ladder,
    gain,
)  # fmt: skip
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.policy import Policy
from entmtp_calib.provenance import machine, provenance
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import AUTO, Signal, signal_names
from entmtp_calib.trust import too_few

STUDY_BINS = 3
"""Bins of the ladders by which signals are compared: more follow the noise of a few hundred steps."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy on the fit prompts and on the test prompts.

    cross_validated, gain: over the best static tree, of the fit prompts each judged by what did not see it, and of the test
    prompts; floor: tokens per second of random switching at its shares, headroom: share of the way to the oracle, both on the
    test prompts.
    """

    name: str
    fit: Outcome
    test: Outcome
    cross_validated: Gain
    gain: Gain
    floor: float
    headroom: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """The bank's trees, tokens per second of every timed arm by replay, the policies over the bank, and their ceiling.

    asked: the signal that was asked for; oracle_fit, oracle_test: tokens per second of the oracle, which drafts only what it
    uses; oracle_shared: of one that drafts as a switching policy does, on the test prompts; study: what each signal tells, if it
    was asked; method: how the policies were judged; conditional: labels of the trees that the conditional bank rule would keep,
    if it was tried. Where the text depends on the tree, rates are measured and not replayed.
    """

    signal: Signal
    asked: str
    kept: list[Timed]
    rates: Mapping[str, float]
    costs: Costs
    policies: list[Judged]
    recommended: str
    oracle_fit: float
    oracle_test: float
    oracle_shared: float
    correlation: float
    study: Sequence[Studied] = ()
    method: str = "replay with measured step costs, prefill left out"
    conditional: Sequence[str] = ()

    @property
    def rules(self) -> dict[str, Policy]:
        """The policies by name."""
        return {judged.name: judged.fit.policy for judged in self.policies}


def fit_policies(
    asked: str, kept: list[Timed], rates: Mapping[str, float], costs_of: Callable[[str], Costs], fit: Replayer, test: Replayer,
    seed: int, studied: bool = False, tick: Callable[[int, int], None] | None = None,
) -> Fitted:  # fmt: skip
    """Fit static, ladder and hysteresis on `fit`, judge them on `test`, and recommend.

    Args:
        asked: name of a signal, or "auto": the one whose ladder gains most on prompts that it did not see.
        costs_of: step costs under a policy that reads a signal.
        studied: whether all signals are looked at though one is given.
        tick: told how many signals are done, of how many.
    """
    names = signal_names(fit.traces[0].heads) if asked == AUTO or studied else []
    bins = min(STUDY_BINS, len(kept))
    rows = study(names, costs_of, fit, test, bins, seed, partial(_tell, tick, len(names)))
    name = choose_signal(rows) if asked == AUTO else asked
    costs = costs_of(name)
    signal = signal_for(name, fit, costs)
    test, ceiling = test.reading(signal), oracle(test, costs.alone)
    policies = _judge(name, costs, fit, test, ceiling, signal, seed)
    run = test.run(policies[0].fit.policy)
    shared = oracle(test, costs.among(range(len(kept))).tolist())
    return Fitted(
        signal, asked, kept, rates, costs, policies, recommend(policies), oracle(fit, costs.alone).tokens_per_s,
        ceiling.tokens_per_s, shared.tokens_per_s, pearson(run.signals, run.accepted), rows,
    )  # fmt: skip


def _tell(tick: Callable[[int, int], None] | None, total: int, done: int) -> None:
    if tick:
        tick(done, total)


def _judge(name: str, costs: Costs, fit: Replayer, test: Replayer, ceiling: Speed, signal: Signal, seed: int) -> list[Judged]:
    """Every kind of policy."""
    judged: list[Judged] = []
    for kind, (fitter, apart) in kinds_of_policy(name, costs, fit, seed).items():
        outcome = fitter(fit.reading(signal), costs)
        there = evaluate(outcome.policy, test, costs)
        static = judged[0].test if judged else there
        floor = random_switching(there, test, costs, seed)
        judged.append(
            Judged(kind, outcome, there, apart, gain(there, static, seed), floor, headroom_share(there, static, ceiling))
        )
    return judged


def kinds_of_policy(name: str, costs: Costs, fit: Replayer, seed: int) -> dict[str, tuple[Fit, Gain]]:
    """How every kind of policy on a signal is fitted, and what it gains in cross-validation.

    A ladder has the number of bins that gains most in cross-validation, of equals the fewest, which flatters that figure a
    little; the test prompts have no part in any choice.
    """
    base = held_out("base_top1", best_static, fit, costs)  # a static tree reads no signal

    def seen(fitter: Fit) -> tuple[Fit, Gain]:
        return fitter, gain(held_out(name, fitter, fit, costs), base, seed)

    ladders = [seen(partial(fit_ladder, bins=bins)) for bins in range(2, max(2, len(costs.alone)) + 1)]
    return {
        "static": (best_static, gain(base, base, seed)),
        "ladder": max(ladders, key=lambda pair: pair[1].ratio),
        "hysteresis": seen(fit_hysteresis),
    }


def recommend(policies: Sequence[Judged]) -> str:
    """The switching policy that gains most in cross-validation, if its gain on the test prompts has an interval above 1 too; else
    static. Of equals the first, which is the simpler."""
    better = [judged for judged in policies if judged.gain.measurable and judged.cross_validated.ratio > 1]
    return max(better, key=lambda judged: judged.cross_validated.ratio).name if better else "static"


def make_bank(
    config: Mapping[str, Any], inputs: Mapping[str, Any], end_ids: Sequence[int], device: str, acceptance: Mapping[str, Any],
    fitted: Fitted, recalibrated: Sequence[Recalibrated], prompts: Mapping[str, Any],
) -> TopologyBank:  # fmt: skip
    """The bank file's content.

    Args:
        config, inputs: as in `run.json`.
        end_ids: ids that ended texts.
        device: where the timings were taken; acceptance: the rule of the run.
        prompts: what became of the prompts; "prompts_used" has the counts that the figures rest on.
    """
    accept = {item.candidate.label: item.mean_accept for item in recalibrated}
    return TopologyBank(
        task=config["task"],
        target=inputs["target"],
        heads=inputs["heads"],
        acceptance=acceptance,
        template=inputs["template"],
        signal=fitted.signal,
        trees=tuple(_bank_tree(arm, accept.get(arm.label, 0.0)) for arm in fitted.kept),
        policies=fitted.rules,
        recommended=fitted.recommended,
        measured=machine() | {"device": device, "dtype": config["dtype"]},
        evaluation=_evaluation(fitted),
        splits=inputs["splits"],
        limits={"max_new_tokens": config["max_new_tokens"], "end_ids": sorted(end_ids), "stop": list(config["stop"])},
        provenance=provenance(),
        prompts=prompts,
        too_small_to_trust=bool(too_few(prompts["prompts_used"])),
    )


def _bank_tree(arm: Timed, accept: float) -> BankTree:
    names = ("tokens_per_step", "tokens_per_s", "seconds_per_step", "draft_seconds", "speedup", "speedup_low", "speedup_high")
    return BankTree(arm.label, arm.topology, {"mean_accept": accept} | {name: getattr(arm, name) for name in names})


def _evaluation(fitted: Fitted) -> dict[str, Any]:
    rows = {
        judged.name: {"fit_tokens_per_s": judged.fit.tokens_per_s, "test_tokens_per_s": judged.test.tokens_per_s,
                      "test_mean_accept": judged.test.mean_accept, "switches_per_100_steps": judged.test.switches,
                      "shares": list(judged.test.shares), "cross_validated_gain": asdict(judged.cross_validated),
                      "gain": asdict(judged.gain), "random_tokens_per_s": judged.floor, "headroom": number(judged.headroom)}
        for judged in fitted.policies
    }  # fmt: skip
    return {
        "method": fitted.method,
        "policies": rows,
        "arms_fit_tokens_per_s": dict(fitted.rates),
        "oracle_fit_tokens_per_s": fitted.oracle_fit,
        "oracle_test_tokens_per_s": fitted.oracle_test,
        "oracle_shared_draft_test_tokens_per_s": fitted.oracle_shared,
        "signal_asked": fitted.asked,
        "signal_correlation": number(fitted.correlation),
        "shared_draft_seconds": list(fitted.costs.shared),
    } | ({"conditional_trees": list(fitted.conditional)} if fitted.conditional else {})


def number(value: float) -> float | None:
    """A value for JSON, which has no NaN."""
    return None if isnan(value) else value
