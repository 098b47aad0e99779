"""The study of a run's scheduler, `study.json`: what signals tell, and what other orders of drafting and choosing would give.

Computes by replay, with costs that were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from entmtp_calib.calibrate.dynamic import AtSizes
from entmtp_calib.calibrate.early_stop import Stopped, early_stop
from entmtp_calib.calibrate.fitting import STUDY_BINS, Fitted
from entmtp_calib.calibrate.switching_costs import SwitchingCosts
from entmtp_calib.calibrate.thresholds import Costs, Gain, best_static, evaluate, fit_ladder, gain
from entmtp_calib.provenance import provenance
from entmtp_calib.replay import Replayer

FORMAT, VERSION = "entmtp-study", 1
_SEED = 0


def other_orders(fitted: Fitted, costs: SwitchingCosts, fit: Replayer, test: Replayer) -> dict[str, Gain | Stopped | AtSizes]:
    """What other orders would give on this bank, empty where nothing is drafted.

    `union` drafts all trees and verifies one, as the decoder does; `chain_first` drafts the signal's chain, chooses, and drafts
    the chosen tree; `early_stop` stops drafting where the chain's path value ends to support it.

    Args:
        fit, test: replayers over the bank.
    """
    if not any(tree.size for tree in costs.trees):
        return {}
    return {
        "union": _ladder(fitted, fitted.costs, fit, test),
        "chain_first": _ladder(fitted, costs.chain_first(fitted.signal.name), fit, test),
        "early_stop": early_stop(fit, test, fitted.costs, costs.levels(), _SEED),
    }


def _ladder(fitted: Fitted, costs: Costs, fit: Replayer, test: Replayer) -> Gain:
    """What a ladder on the bank's signal gains over the best static tree on the test prompts, at these costs."""
    policies = [fit_ladder(fit.reading(fitted.signal), costs, STUDY_BINS).policy, best_static(fit, costs).policy]
    ladder, static = (evaluate(policy, test.reading(fitted.signal), costs) for policy in policies)
    return gain(ladder, static, _SEED)


def study_json(fitted: Fitted, orders: Mapping[str, Gain | Stopped | AtSizes]) -> dict[str, Any]:
    """The content of `study.json`."""
    document: dict[str, Any] = {
        "format": FORMAT, "version": VERSION, "provenance": provenance(), "chosen": fitted.signal.to_json(),
        "asked": fitted.asked, "signals": [row.to_json() for row in fitted.study],
    }  # fmt: skip
    for name, found in orders.items():
        document[name] = {"gain": asdict(found)} if isinstance(found, Gain) else found.to_json()
    return document
