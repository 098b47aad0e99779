"""The fitting stage of a run: its bank and policies, by replay where acceptance is exact and by rollouts where it is not.

Joins the run's prompts, timings and files with the fits; decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from entmtp_calib.calibrate.bank_rules import choose_bank, hull
from entmtp_calib.calibrate.fitting import Fitted, fit_policies
from entmtp_calib.calibrate.scheduler_study import other_orders, study_json
from entmtp_calib.calibrate.switching_costs import SwitchingCosts
from entmtp_calib.calibrate.thresholds import replayed_rates
from entmtp_calib.calibrate.timing import AR_AGAIN, Timed
from entmtp_calib.calibrate.typical_fitting import fit_recorded
from entmtp_calib.calibrate.typical_rollouts import Rollouts
from entmtp_calib.replay import Replayer
from entmtp_calib.storage import Journal, to_json, write_atomically

if TYPE_CHECKING:
    from entmtp_calib.calibrate.pipeline import Calibration


def by_replay(stage: Calibration, signal: str, timed: Sequence[Timed], studied: bool, rule: str) -> Fitted:
    """Fit to traces of the fit prompts, judge on those of the test prompts; what was looked at beside goes to `study.json`."""
    fit_traces, test_traces = stage.traces("fit"), stage.traces("test")
    arms = [arm for arm in timed if arm.label != AR_AGAIN]
    rates = replayed_rates(arms, fit_traces)
    kept = choose_bank(rule, signal, timed, rates, fit_traces)
    costs = _costs(stage, kept)
    fit, test = (Replayer(costs.trees, traces) for traces in (fit_traces, test_traces))
    fitted = fit_policies(signal, kept, rates, costs.of, fit, test, stage.config.seed, studied, partial(stage.tick, "signals"))
    path = stage.run.file("study.json")
    path.unlink(missing_ok=True)
    if fitted.study:
        orders = other_orders(fitted, arms, costs, fit, test, stage.splits, stage.tick) if studied else {}
        write_atomically(path, to_json(study_json(fitted, orders)))
    return fitted


def by_rollouts(stage: Calibration, signal: str, timed: Sequence[Timed]) -> Fitted:
    """Fit to recorded rollouts over the fit prompts, judge by the policies' own rollouts over the test prompts."""
    rates = {arm.label: arm.tokens_per_s for arm in timed if arm.label != AR_AGAIN}
    kept = hull(timed, rates)
    costs = _costs(stage, kept)
    rollouts = Rollouts(
        stage.pair, costs.trees, stage.splits.parts, stage.stop, stage.config.rule, stage.run.file("rollouts/typical"), stage.tick
    )
    return fit_recorded(signal, kept, rates, costs.of, rollouts, stage.config.seed, partial(stage.tick, "signals"))


def _costs(stage: Calibration, kept: Sequence[Timed]) -> SwitchingCosts:
    return SwitchingCosts(stage.pair, kept, stage.config.rule, Journal(stage.run.file("timings.jsonl")))
