"""The study of a run's scheduler, `study.json`: what signals tell, and what other orders of drafting and choosing would give.

Dynamic trees run the heads over a few texts again; the rest is replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from entmtp_calib.calibrate.dynamic import Dynamic, compare_dynamic, many_places
from entmtp_calib.calibrate.early_stop import Stopped, early_stop
from entmtp_calib.calibrate.fitting import STUDY_BINS, Fitted
from entmtp_calib.calibrate.splits import Splits
from entmtp_calib.calibrate.switching_costs import SwitchingCosts
from entmtp_calib.calibrate.thresholds import Costs, Gain, best_static, evaluate, fit_ladder, gain
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.provenance import provenance
from entmtp_calib.replay import Replayer

FORMAT, VERSION = "entmtp-study", 1
_SEED = 0
_TEXTS = 8  # of each part, over which dynamic trees are tried


def other_orders(
    fitted: Fitted, arms: Sequence[Timed], costs: SwitchingCosts, fit: Replayer, test: Replayer, splits: Splits,
    tick: Callable[[str, int, int], None],
) -> dict[str, Gain | Stopped | Dynamic]:  # fmt: skip
    """What other orders and dynamic trees would give on this bank, empty where nothing is drafted.

    `union` drafts all trees and verifies one, as the decoder does; `chain_first` drafts the signal's chain, chooses, and drafts
    the chosen tree; `early_stop` stops drafting where the chain's path value ends to support it.

    Args:
        arms: every timed tree; dynamic trees are chosen from the largest and compared with all.
        fit, test: replayers over the bank.
    """
    largest = max(arms, key=lambda arm: arm.topology.size)
    found: dict[str, Gain | Stopped | Dynamic] = {}
    if any(tree.size for tree in costs.trees):
        found["union"] = _ladder(fitted, fitted.costs, fit, test)
        found["chain_first"] = _ladder(fitted, costs.chain_first(fitted.signal.name), fit, test)
        found["early_stop"] = early_stop(fit, test, fitted.costs, costs.levels(), _SEED)
    if largest.topology.size:
        found["dynamic"] = _dynamic(fitted, arms, largest, costs, (fit, test), splits, tick)
    return found


def _ladder(fitted: Fitted, costs: Costs, fit: Replayer, test: Replayer) -> Gain:
    """What a ladder on the bank's signal gains over the best static tree on the test prompts, at these costs."""
    policies = [fit_ladder(fit.reading(fitted.signal), costs, STUDY_BINS).policy, best_static(fit, costs).policy]
    ladder, static = (evaluate(policy, test.reading(fitted.signal), costs) for policy in policies)
    return gain(ladder, static, _SEED)


def _dynamic(
    fitted: Fitted, arms: Sequence[Timed], largest: Timed, costs: SwitchingCosts, parts: tuple[Replayer, Replayer],
    splits: Splits, tick: Callable[[str, int, int], None],
) -> Dynamic:  # fmt: skip
    by_size = {arm.topology.size: arm for arm in arms}  # one of each size
    chosen = [by_size[size] for size in sorted(by_size)]
    draft = (largest.draft_seconds,) * len(chosen)
    prices = Costs(tuple(arm.seconds_per_step for arm in chosen), tuple(arm.draft_seconds for arm in chosen), draft)
    pair, placed = costs.pair, []
    for name, replayer, prompts in zip(("fit", "test"), parts, (splits.fit, splits.test), strict=True):
        traces = list(replayer.traces[:_TEXTS])
        told = partial(_tell, tick, f"dynamic trees ({name})", len(traces))
        found = many_places(pair.target, pair.heads, largest.topology, prompts[:_TEXTS], traces, costs.rule.ranking, told)
        placed.append((traces, found))
    return compare_dynamic(
        [arm.topology for arm in chosen], prices, largest.topology.size, largest.draft_seconds, fitted.signal, STUDY_BINS, _SEED,
        *placed,
    )  # fmt: skip


def _tell(tick: Callable[[str, int, int], None], what: str, total: int, done: int) -> None:
    tick(what, done, total)


def study_json(fitted: Fitted, orders: dict[str, Gain | Stopped | Dynamic]) -> dict[str, Any]:
    """The content of `study.json`."""
    document: dict[str, Any] = {
        "format": FORMAT, "version": VERSION, "provenance": provenance(), "chosen": fitted.signal.to_json(),
        "asked": fitted.asked, "signals": [row.to_json() for row in fitted.study],
    }  # fmt: skip
    for name, found in orders.items():
        document[name] = {"gain": asdict(found)} if isinstance(found, Gain) else found.to_json()
    return document
