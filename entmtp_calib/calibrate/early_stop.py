"""Drafting that stops: another order of drafting and choosing, by replay.

The bank's policies draft the union of their trees and then choose. Here the heads go on only while the running path value of
their chain stays above a threshold; the tree is chosen among those that are no deeper than what was drafted. Replayed with
measured seconds per drafted level; on a GPU every level would wait for the host, which is not charged. Numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.calibrate.thresholds import Costs, Gain, Speed, best_static, evaluate, gain, speed
from entmtp_calib.evidence import Trace
from entmtp_calib.policy import Ladder
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import paths

_THRESHOLDS = 24
_ROUNDS = 6


class StopRule(NamedTuple):
    """Drafting goes on below a level while the chain's path value there is at least `threshold`; `ladder` maps the levels that it
    supported to trees."""

    threshold: float
    ladder: Ladder


@dataclass(frozen=True, slots=True)
class Stopped:
    """The best rule on the fit prompts, its gain over the best static tree on the test prompts, and levels drafted per step."""

    rule: StopRule
    gain: Gain
    levels: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"threshold": self.rule.threshold, "trees": list(self.rule.ladder.trees), "gain": asdict(self.gain),
                "levels_per_step": self.levels}  # fmt: skip


class _Supported(Replayer):
    """Reads how many levels of the chain the path values support."""

    def __init__(self, base: Replayer, threshold: float) -> None:
        self.threshold = threshold
        super().__init__(base.topologies, base.traces, None, base.depths)

    def _value(self, trace: Trace) -> NDArray[np.float32]:
        values = np.stack(paths(trace.chain_logp, trace.heads), 1)
        supported: NDArray[np.float32] = (values >= self.threshold).sum(1).astype(np.float32)
        return supported


def early_stop(fit: Replayer, test: Replayer, costs: Costs, levels: Sequence[float], seed: int) -> Stopped:
    """Fit the threshold and the trees, and judge them.

    Args:
        levels: seconds to draft the first 0, 1, … levels of the bank's union, confidence included.
    """
    values = np.concatenate([np.stack(paths(trace.chain_logp, trace.heads), 1) for trace in fit.traces])
    static = best_static(fit, costs)
    found = []
    for threshold in np.unique(np.quantile(values, np.arange(1, _THRESHOLDS) / _THRESHOLDS)):
        replayer = _Supported(fit, float(threshold))
        ladder, fitted = _trees(replayer, costs, levels, static.policy.members[0])
        found.append((fitted.tokens_per_s, StopRule(float(threshold), ladder)))
    rule = max(found, key=lambda pair: pair[0])[1]
    judged, drafted = _cost(_Supported(test, rule.threshold), rule.ladder, costs, levels)
    return Stopped(rule, gain(judged, evaluate(static.policy, test, costs), seed), drafted)


def _trees(replayer: _Supported, costs: Costs, levels: Sequence[float], start: int) -> tuple[Ladder, Speed]:
    """The tree for every number of supported levels, by Dinkelbach's iteration over the steps of the best so far."""
    deepest = len(levels) - 1
    depths = np.array([tree.depth for tree in replayer.topologies])
    usable = [depths <= min(supported + 1, deepest) for supported in range(deepest + 1)]
    chosen = [start if usable[supported][start] else 0 for supported in range(deepest + 1)]
    best = _ladder(chosen), _cost(replayer, _ladder(chosen), costs, levels)[0]
    for _ in range(_ROUNDS):
        run = replayer.run(best[0])
        worth = replayer.acceptance(run) + 1 - best[1].tokens_per_s * _seconds(run.signals, costs, levels)
        for supported in range(deepest + 1):
            own = worth[run.signals == supported].sum(0)
            chosen[supported] = int(np.where(usable[supported], own, -np.inf).argmax())
        ladder = _ladder(chosen)
        found = _cost(replayer, ladder, costs, levels)[0]
        if found.tokens_per_s <= best[1].tokens_per_s:
            break
        best = ladder, found
    return best


def _ladder(trees: Sequence[int]) -> Ladder:
    return Ladder(tuple(level + 0.5 for level in range(len(trees) - 1)), tuple(trees))


def _seconds(supported: NDArray[np.float64], costs: Costs, levels: Sequence[float]) -> NDArray[np.float64]:
    """Seconds of a step with every tree, `[steps, trees]`; the level behind the last supported one is drafted too."""
    drafted = np.minimum(supported.astype(int) + 1, len(levels) - 1)
    return (np.asarray(costs.alone) - costs.draft)[None] + np.asarray(levels)[drafted][:, None]


def _cost(replayer: _Supported, ladder: Ladder, costs: Costs, levels: Sequence[float]) -> tuple[Speed, float]:
    run = replayer.run(ladder)
    seconds = _seconds(run.signals, costs, levels)[np.arange(len(run.index)), run.index]
    return Speed(*speed(run, seconds, len(replayer.traces))), float(np.minimum(run.signals + 1, len(levels) - 1).mean())
