"""What no policy can pass and what chance reaches: the oracle, random switching, and the share of the headroom between.

Replayed over traces with measured step costs. Numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from entmtp_calib.calibrate.thresholds import Costs, Outcome, Speed
from entmtp_calib.replay import Replayer

_DRAWS = 20


def oracle(replayer: Replayer, seconds: Sequence[float]) -> Speed:
    """The fastest way through every text, if each step knew what every tree would accept from there on: a shortest path.

    The text is given, so the tokens are the same for every policy and the best rate is the least time. That makes the ratio a
    plain sum: no iteration over rates is needed, and the answer is exact for every text, not only for the pooled ratio.

    Args:
        seconds: cost of one step with each tree.
    """
    least = [_shortest(depths.tolist(), list(map(float, seconds))) for depths in replayer.depths]
    return Speed(np.array([len(depths) for depths in replayer.depths], np.float64), np.array(least))


def _shortest(depths: list[list[int]], seconds: list[float]) -> float:
    least = [0.0] * (len(depths) + 1)
    for here in range(len(depths) - 1, -1, -1):
        row = depths[here]
        least[here] = min(cost + least[here + 1 + row[tree]] for tree, cost in enumerate(seconds))
    return least[0]


def random_switching(outcome: Outcome, replayer: Replayer, costs: Costs, seed: int) -> float:
    """Tokens per second of taking each tree as often as a policy does, at random and at the same costs; a mean of draws."""
    rng = np.random.default_rng(seed)
    shares = np.asarray(outcome.shares)
    trees = np.arange(len(shares))
    counts = replayer.counts(lambda index, _signal: rng.choice(trees, len(index), p=shares / shares.sum()), _DRAWS, 0)
    seconds = counts.steps.sum(1) @ costs.of(outcome.policy)
    return float((counts.tokens.sum(1) / seconds).mean())


def headroom_share(policy: Speed, static: Speed, ceiling: Speed) -> float:
    """How much of the way from the static tree to the ceiling a policy goes; NaN where there is no way to go."""
    room = ceiling.tokens_per_s - static.tokens_per_s
    return (policy.tokens_per_s - static.tokens_per_s) / room if room > 1e-9 * static.tokens_per_s else float("nan")
