"""The fitted signal: a weighted sum of what a step shows and remembers, by least squares on accepted drafts.

The result is plain numbers that a bank holds. Numpy only; runs no model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.calibrate.thresholds import Costs, best_static
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import COMBINED, HISTORY, Signal, instant_terms

_SHRINK = 0.01  # of the steps: how many made-up steps say that a term has no effect


def signal_for(name: str, replayer: Replayer, costs: Costs) -> Signal:
    """The signal of a name; `combined` is fitted to the replayer's texts."""
    return fit_combined(replayer, costs) if name == COMBINED else Signal(name)


def fit_combined(replayer: Replayer, costs: Costs) -> Signal:
    """`combined`, fitted to what the largest tree accepts at the steps of the best static tree.

    Ridge regression on standardised terms; a term that does not vary gets the weight 0.
    """
    policy = best_static(replayer, costs).policy
    history = replayer.reading(HISTORY)
    run = history.run(policy)
    traces = replayer.traces
    root, entropy, chain = (
        replayer.pick(run, [getattr(trace, name) for trace in traces]) for name in ("root_logp", "entropy", "chain_logp")
    )
    _ones, top1, nats, *paths = instant_terms(root, entropy, chain, chain.shape[1])
    columns = np.stack([top1, nats, run.signals, *paths], 1).astype(np.float64)
    accepted = replayer.acceptance(run)[:, -1]
    intercept, weights = _ridge(columns, accepted.astype(np.float64))
    return Signal(COMBINED, (intercept, *weights))


def _ridge(columns: NDArray[np.float64], wanted: NDArray[np.float64]) -> tuple[float, list[float]]:
    mean, spread = columns.mean(0), columns.std(0)
    scaled = (columns - mean) / np.where(spread > 0, spread, 1)
    shrink = _SHRINK * len(scaled) * np.eye(scaled.shape[1])
    found = np.linalg.solve(scaled.T @ scaled + shrink, scaled.T @ (wanted - wanted.mean()))
    weights = np.where(spread > 0, found / np.where(spread > 0, spread, 1), 0.0)
    return float(wanted.mean() - mean @ weights), weights.tolist()
