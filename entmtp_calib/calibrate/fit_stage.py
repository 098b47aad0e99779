"""The fitting stage of a run: its bank and policies, by replay where acceptance is exact and by rollouts where it is not.

Joins the run's prompts, timings and files with the fits; decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from entmtp_calib.calibrate.bank_rules import CONDITIONAL, choose_bank, hull
from entmtp_calib.calibrate.dynamic import KIND, SIZES, Drafts, Offer, compare_sizes, draftable, verify_seconds, with_dynamic
from entmtp_calib.calibrate.fitting import Fitted, fit_policies
from entmtp_calib.calibrate.path_values import stored_values
from entmtp_calib.calibrate.scheduler_study import other_orders, study_json
from entmtp_calib.calibrate.search import Frontier
from entmtp_calib.calibrate.splits import Encoded
from entmtp_calib.calibrate.switching_costs import SwitchingCosts
from entmtp_calib.calibrate.thresholds import replayed_rates
from entmtp_calib.calibrate.timing import AR_AGAIN, Timed
from entmtp_calib.calibrate.typical_fitting import fit_recorded
from entmtp_calib.calibrate.typical_rollouts import Rollouts
from entmtp_calib.evidence import Trace
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import Signal
from entmtp_calib.storage import Journal, to_json, write_atomically
from entmtp_calib.topology import chain, union

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
    offers = offers_of(stage.search(), stage.traces("search"), arms, costs, fitted.signal)
    drafts = _drafts(stage, offers)
    fitted, taken = with_dynamic(fitted, offers, drafts, (fit, test), stage.config.seed)
    path = stage.run.file("study.json")
    path.unlink(missing_ok=True)
    if fitted.study:
        orders = other_orders(fitted, costs, fit, test) if studied else {}
        orders |= {KIND: compare_sizes(arms, taken, drafts[1], stage.config.seed)} if studied else {}
        write_atomically(path, to_json(study_json(fitted, orders)))
    other = choose_bank(CONDITIONAL, signal, timed, rates, fit_traces)
    return replace(fitted, conditional=[arm.label for arm in other])


def by_rollouts(stage: Calibration, signal: str, timed: Sequence[Timed]) -> Fitted:
    """Fit to recorded rollouts over the fit prompts, judge by the policies' own rollouts over the test prompts."""
    rates = {arm.label: arm.tokens_per_s for arm in timed if arm.label != AR_AGAIN}
    kept = hull(timed, rates)
    costs = _costs(stage, kept)
    rollouts = Rollouts(
        stage.pair, costs.trees, stage.splits.parts, stage.stop, stage.config.rule, stage.run.file("rollouts/typical"), stage.tick
    )
    return fit_recorded(signal, kept, rates, costs.of, rollouts, stage.config.seed, partial(stage.tick, "signals"))


def offers_of(
    frontier: Frontier, traces: Sequence[Trace], arms: Sequence[Timed], costs: SwitchingCosts, signal: Signal
) -> list[Offer]:
    """What a dynamic policy may draft, and the costs: trees of the frontier with the chain that the signal reads.

    Args:
        traces: of the search prompts; arms: every timed tree.
    """
    found = []
    for best in draftable(frontier, traces):
        tree = union([best, chain(signal.depth)])
        sizes = tuple(size for size in SIZES if size <= tree.size)
        seconds = costs.best_nodes(tree), costs.best_nodes(tree, signal.name)
        found.append(Offer(tree, sizes, verify_seconds(arms, sizes), *seconds))
    return found


def _drafts(stage: Calibration, offers: Sequence[Offer]) -> tuple[Drafts, Drafts]:
    """Path values of all that is offered, over the fit and the test prompts."""
    pair, found = stage.pair, []
    drafted = union([*(offer.drafted for offer in offers), chain(pair.heads.depth)])
    for part in ("fit", "test"):
        prompts: Encoded = getattr(stage.splits, part)
        traces = stage.traces(part)
        folder = stage.run.file(f"rollouts/values/{part}")
        ranking = stage.config.rule.ranking
        tell = partial(stage.tick, f"path values ({part})")
        values = stored_values(pair.target, pair.heads, drafted, prompts, traces, ranking, folder, tell)
        found.append(Drafts(drafted, traces, values))
    return found[0], found[1]


def _costs(stage: Calibration, kept: Sequence[Timed]) -> SwitchingCosts:
    return SwitchingCosts(stage.pair, kept, stage.config.rule, Journal(stage.run.file("timings.jsonl")))
