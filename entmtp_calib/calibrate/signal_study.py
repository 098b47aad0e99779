"""What each signal tells: correlation with accepted drafts, reliability, and what a ladder on it gains.

Correlations and reliability are of steps on prompts that nothing was fitted to, but for one correlation that a choice rests on;
gains are cross-validated on the fit prompts and replayed on the others. Numpy only; runs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.calibrate.combined_signal import signal_for
from entmtp_calib.calibrate.held_out import held_out
from entmtp_calib.calibrate.thresholds import Costs, Gain, Speed, best_static, evaluate, fit_ladder, gain, quantiles
from entmtp_calib.policy import Static
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import COMBINED, Signal
from entmtp_calib.topology import chain

_BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Steps with about the same signal: how many, its mean, and the drafts that the chain and the static tree accepted."""

    steps: int
    signal: float
    chain: float
    tree: float


@dataclass(frozen=True, slots=True)
class Studied:
    """A signal on the test prompts.

    chain, tree: correlation (Pearson, rank) with what the greedy chain and the best static tree accept, at the steps of each by
    itself, NaN where one of them is constant; reliability: steps in bins of rising signal; steady: whether acceptance only rises
    or only falls over them, within two standard errors; cross_validated: gain over static of a ladder, every fit prompt judged by
    one that did not see it; test: gain on the test prompts of a ladder that is fitted to all fit prompts; fit_rank: rank
    correlation with what the chain accepts on the fit prompts, NaN for a signal that is fitted to them.
    """

    name: str
    chain: tuple[float, float]
    tree: tuple[float, float]
    reliability: tuple[Bin, ...]
    steady: bool
    cross_validated: Gain
    test: Gain
    fit_rank: float = float("nan")

    def to_json(self) -> dict[str, Any]:
        """Plain values; null for what is not a number."""
        pairs = {name: [_number(x) for x in getattr(self, name)] for name in ("chain", "tree")}
        return asdict(self) | pairs | {"fit_rank": _number(self.fit_rank)}


def study(
    names: Sequence[str], costs_of: Callable[[str], Costs], fit: Replayer, test: Replayer, bins: int, seed: int,
    on_signal: Callable[[int], None] | None = None,
) -> list[Studied]:  # fmt: skip
    """Look at every signal.

    Args:
        costs_of: step costs under a policy that reads a signal; bins: of the ladders; on_signal: called with how many are done.
    """
    rows: list[Studied] = []
    for name in names:
        costs = costs_of(name)
        base = held_out("base_top1", best_static, fit, costs)  # a static tree reads no signal
        rows.append(_study(name, costs, fit, test, bins, base, seed))
        if on_signal:
            on_signal(len(rows))
    return rows


def choose_signal(rows: Sequence[Studied]) -> str:
    """The signal whose ladder gains most on prompts that it did not see; the first of equals.

    If none gains, the one that follows most closely what the chain accepts on the fit prompts.
    """
    best = max(rows, key=lambda row: row.cross_validated.ratio)
    return best.name if best.cross_validated.ratio > 1 else max(rows, key=lambda row: abs(_number(row.fit_rank) or 0.0)).name


def _study(name: str, costs: Costs, fit: Replayer, test: Replayer, bins: int, base: Speed, seed: int) -> Studied:
    signal = signal_for(name, fit, costs)
    static = best_static(fit, costs)
    apart = held_out(name, lambda texts, prices: fit_ladder(texts, prices, bins), fit, costs)
    ladder = fit_ladder(fit.reading(signal), costs, bins)
    judged = evaluate(ladder.policy, test.reading(signal), costs)
    found = _correlations(signal, test, static.policy.members[0])
    gains = gain(apart, base, seed), gain(judged, evaluate(static.policy, test, costs), seed)
    return Studied(name, *found, *gains, float("nan") if name == COMBINED else _fit_rank(signal, fit))


def _fit_rank(signal: Signal, fit: Replayer) -> float:
    run = Replayer([chain(fit.traces[0].heads)], fit.traces, signal).run(Static(0))
    return rank_correlation(run.signals, run.accepted)


def _correlations(
    signal: Signal, test: Replayer, tree: int
) -> tuple[tuple[float, float], tuple[float, float], tuple[Bin, ...], bool]:
    """Of `Studied`: chain, tree, reliability, steady."""
    heads = test.traces[0].heads
    pair = Replayer([chain(heads), test.topologies[tree]], test.traces, signal)
    runs = [pair.run(Static(index)) for index in (0, 1)]
    both = tuple((pearson(run.signals, run.accepted), rank_correlation(run.signals, run.accepted)) for run in runs)
    bins, steady = reliability(runs[1].signals, pair.acceptance(runs[1]))
    return both[0], both[1], bins, steady


def reliability(signals: NDArray[np.float64], accepted: NDArray[Any]) -> tuple[tuple[Bin, ...], bool]:
    """Steps in up to ten bins of the signal with about as many steps each, and whether acceptance is steady over them.

    Args:
        accepted: `[steps, 2]`, drafts that the chain and the static tree accept there.
    """
    group = np.searchsorted(quantiles(signals, _BINS), signals, side="right")
    bins, errors = [], []
    for place in range(int(group.max(initial=-1)) + 1):
        own = accepted[group == place]
        bins.append(Bin(len(own), float(signals[group == place].mean()), *own.mean(0).tolist()))
        errors.append(float(own[:, 1].std()) / len(own) ** 0.5)
    steps = np.diff([part.tree for part in bins])
    slack = 2 * np.hypot(errors[1:], errors[:-1])
    return tuple(bins), bool((steps >= -slack).all() or (steps <= slack).all())


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def pearson(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Pearson correlation; NaN if either is constant or there is nothing."""
    if len(a) == 0 or a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's rank correlation, equal values sharing their mean rank; NaN if either is constant."""
    return pearson(_ranks(a), _ranks(b))


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return ranks
