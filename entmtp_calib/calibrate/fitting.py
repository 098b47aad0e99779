"""From timings to a bank: which trees stay, what the policies over them give on fresh prompts, and what is recommended.

Numpy only; policies are replayed, nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isnan, nan
from typing import Any

from entmtp_calib.bank import BankTree, TopologyBank
from entmtp_calib.calibrate.bank_rules import hull
from entmtp_calib.calibrate.recalibrate import Recalibrated
from entmtp_calib.calibrate.thresholds import (
    Costs,
    Gain,
    Outcome,
    best_static,
    correlation,
    evaluate,
    fit_hysteresis,
    fit_ladder,
    gain,
    oracle_tokens_per_s,
)  # fmt: skip
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.evidence import Replayer
from entmtp_calib.policy import Policy, Static
from entmtp_calib.provenance import machine, provenance
from entmtp_calib.trust import too_few


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy on the fit prompts and on the test prompts, with its gain there over the best static tree."""

    name: str
    fit: Outcome
    test: Outcome
    gain: Gain


@dataclass(frozen=True, slots=True)
class Fitted:
    """The bank's trees, tokens per second of every timed arm by replay, the policies over the bank, and the ceiling.

    measured: policies that rest on timings alone, where nothing can be replayed; the replayed figures are NaN then.
    """

    signal: str
    kept: list[Timed]
    rates: Mapping[str, float]
    costs: Costs
    policies: list[Judged]
    recommended: str
    oracle_fit: float
    oracle_test: float
    correlation: float
    measured: Mapping[str, Policy] = field(default_factory=dict)

    @property
    def rules(self) -> dict[str, Policy]:
        """The policies by name: those that were replayed, or else those that were only measured."""
        return {judged.name: judged.fit.policy for judged in self.policies} or dict(self.measured)


def fit_policies(
    signal: str, kept: list[Timed], rates: Mapping[str, float], costs: Costs, fit: Replayer, test: Replayer, seed: int
) -> Fitted:
    """Fit static, ladder and hysteresis on `fit` and judge them on `test`; the simplest that is surely faster is recommended."""
    static = best_static(fit, costs)
    base = evaluate(static.policy, test, costs)
    policies = []
    for name, outcome in (("static", static), ("ladder", fit_ladder(fit, costs)), ("hysteresis", fit_hysteresis(fit, costs))):
        judged = evaluate(outcome.policy, test, costs)
        policies.append(Judged(name, outcome, judged, gain(judged, base, seed)))
    better = [judged for judged in policies if judged.gain.measurable]
    recommended = max(better, key=lambda judged: judged.gain.ratio).name if better else "static"
    last = len(kept) - 1
    return Fitted(
        signal, kept, rates, costs, policies, recommended, oracle_tokens_per_s(fit, costs), oracle_tokens_per_s(test, costs),
        correlation(test, last),
    )  # fmt: skip


def fit_measured(signal: str, arms: Sequence[Timed]) -> Fitted:
    """The bank and its best tree by measured tokens per second alone, for acceptance that cannot be replayed.

    Policies that switch would need rollouts of their own; there are none.
    """
    rates = {arm.label: arm.tokens_per_s for arm in arms}
    kept = hull(arms, rates)
    costs = Costs(tuple(arm.seconds_per_step for arm in kept), tuple(arm.draft_seconds for arm in kept), 0.0)
    best = Static(len(kept) - 1)  # the hull's last member is its fastest
    return Fitted(signal, kept, rates, costs, [], "static", nan, nan, nan, {"static": best})


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
                      "shares": list(judged.test.shares), "gain": asdict(judged.gain)}
        for judged in fitted.policies
    }  # fmt: skip
    if not fitted.policies:
        return {"method": "measured end to end, prefill included; nothing is replayed", "policies": {},
                "arms_fit_tokens_per_s": dict(fitted.rates)}  # fmt: skip
    return {
        "method": "replay with measured step costs, prefill left out",
        "policies": rows,
        "arms_fit_tokens_per_s": dict(fitted.rates),
        "oracle_fit_tokens_per_s": fitted.oracle_fit,
        "oracle_test_tokens_per_s": fitted.oracle_test,
        "signal_correlation": None if isnan(fitted.correlation) else fitted.correlation,
        "shared_draft_seconds": fitted.costs.shared,
    }
