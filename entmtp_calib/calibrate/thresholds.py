"""Choosing the bank and fitting policies: which trees stay, and when to switch between them.

Everything is replayed over traces with measured step costs, and maximises committed tokens per second, a ratio of sums. Numpy
only; runs no model.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.evidence import Replayer, Trace
from entmtp_calib.policy import Hysteresis, Ladder, Policy, Static

_LADDER_BINS = 12
_HYSTERESIS_BINS = 8
_ROUNDS = 10
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one step with each tree of the bank.

    alone: drafting only that tree; draft: what drafting it takes alone; shared: what drafting the union for a switching policy
    takes.
    """

    alone: tuple[float, ...]
    draft: tuple[float, ...]
    shared: float

    def of(self, policy: Policy) -> list[float]:
        """Seconds per step of every tree under a policy: one that switches must draft for all trees and the signal."""
        if len(policy.members) == 1:
            return list(self.alone)
        return [total - own + self.shared for total, own in zip(self.alone, self.draft, strict=True)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A policy over some traces.

    tokens, seconds: per text, float64 `[texts]`; shares: fraction of steps per tree of the bank; switches: per 100 steps.
    """

    policy: Policy
    tokens: np.ndarray
    seconds: np.ndarray
    mean_accept: float
    shares: tuple[float, ...]
    switches: float

    @property
    def tokens_per_s(self) -> float:
        """Pooled: all tokens over all modelled seconds, prefill left out."""
        return float(self.tokens.sum() / self.seconds.sum())


@dataclass(frozen=True, slots=True)
class Gain:
    """Tokens per second over those of another outcome, with a 95 % bootstrap interval over texts."""

    ratio: float
    low: float
    high: float

    @property
    def measurable(self) -> bool:
        """Whether the interval lies above 1."""
        return self.low > 1.0


def replayed_rates(timed: Sequence[Timed], traces: Sequence[Trace]) -> dict[str, float]:
    """Tokens per second of every arm: tokens per step by replay over all fit prompts, over the measured seconds per step.

    Acceptance is exact by replay, so the few timed prompts need only tell what a step costs, which varies far less.
    """
    replayer = Replayer([arm.topology for arm in timed], traces)
    runs = [replayer.run(Static(index)) for index in range(len(timed))]
    return {arm.label: run.tokens / len(run.accepted) / arm.seconds_per_step for arm, run in zip(timed, runs, strict=True)}


def evaluate(policy: Policy, replayer: Replayer, costs: Costs) -> Outcome:
    """Replay a policy and cost its steps."""
    run = replayer.run(policy)
    seconds = np.asarray(costs.of(policy))[run.index]
    texts = len(replayer.depths)
    return Outcome(
        policy,
        np.bincount(run.prompt, run.accepted + 1, texts),
        np.bincount(run.prompt, seconds, texts),
        run.mean_accept,
        tuple((np.bincount(run.index, minlength=len(costs.alone)) / len(run.index)).tolist()),
        100 * run.switches / len(run.index),
    )


def best_static(replayer: Replayer, costs: Costs) -> Outcome:
    """The single tree with the most tokens per second; ties go to the smaller."""
    return _best(evaluate(Static(index), replayer, costs) for index in range(len(costs.alone)))


def fit_ladder(replayer: Replayer, costs: Costs) -> Outcome:
    """Bins at quantiles of the signal, in each the tree that adds most at the going rate; the rate is what the ladder then gives.

    The objective is a ratio, so it is solved by Dinkelbach's iteration: with rate r, a bin takes the tree with the largest sum
    of `accepted + 1 - r · seconds` over its positions.
    """
    signals = np.concatenate(replayer.signals)
    depths = np.concatenate(replayer.depths)
    edges = _quantiles(signals, _LADDER_BINS)
    bins = np.searchsorted(edges, signals, side="right")
    ladder = Ladder((), (best_static(replayer, costs).policy.members[0],))
    seconds = np.asarray(costs.of(ladder))
    best = evaluate(ladder, replayer, costs)
    for _ in range(_ROUNDS):
        worth = depths + 1 - best.tokens_per_s * seconds
        sums = np.stack([np.bincount(bins, worth[:, tree], len(edges) + 1) for tree in range(depths.shape[1])])
        outcome = evaluate(_merge(edges, sums.argmax(0).tolist()), replayer, costs)
        if outcome.tokens_per_s <= best.tokens_per_s:
            break
        best = outcome
    return best


def fit_hysteresis(replayer: Replayer, costs: Costs) -> Outcome:
    """The best pair of trees and thresholds, by replay of every pair of quantiles with `off <= on`."""
    signals = np.concatenate(replayer.signals)
    above = float(np.nextafter(signals.max(), np.float32(np.inf)))  # a threshold that nothing reaches: always the low tree
    edges = [*_quantiles(signals, _HYSTERESIS_BINS).tolist(), above]
    trees = range(len(costs.alone))
    pairs = list(itertools.combinations(trees, 2)) or [(0, 0)]
    thresholds = [(on, off) for on in edges for off in edges if off <= on] or [(1.0, 1.0)]
    return _best(evaluate(Hysteresis(on, off, low, high), replayer, costs) for low, high in pairs for on, off in thresholds)


def gain(outcome: Outcome, base: Outcome, seed: int) -> Gain:
    """How much faster one outcome is than another over the same texts."""
    texts = len(outcome.tokens)
    picks = np.random.default_rng(seed).integers(0, texts, (_RESAMPLES, texts))
    rates = [part.tokens[picks].sum(1) / part.seconds[picks].sum(1) for part in (outcome, base)]
    low, high = np.quantile(rates[0] / rates[1], (0.025, 0.975))
    return Gain(outcome.tokens_per_s / base.tokens_per_s, float(low), float(high))


def oracle_tokens_per_s(replayer: Replayer, costs: Costs) -> float:
    """Tokens per second if every step knew its acceptance and drafted only its own tree: the ceiling of any policy."""
    tokens = sum(map(len, replayer.depths))
    return tokens / sum(replayer.oracle_seconds(costs.alone))


def correlation(replayer: Replayer, tree: int) -> float:
    """Pearson correlation of the signal with what a tree accepts, over all positions; NaN if either is constant."""
    signals = np.concatenate(replayer.signals)
    accepted = np.concatenate(replayer.depths)[:, tree]
    if signals.std() == 0 or accepted.std() == 0:
        return float("nan")
    return float(np.corrcoef(signals, accepted)[0, 1])


def _best(outcomes: Iterable[Outcome]) -> Outcome:
    """The first of the fastest."""
    return max(outcomes, key=lambda outcome: outcome.tokens_per_s)


def _quantiles(signals: np.ndarray, bins: int) -> np.ndarray:
    """Distinct inner quantiles of the signal, ascending."""
    return np.unique(np.quantile(signals, np.arange(1, bins) / bins))


def _merge(edges: np.ndarray, trees: list[int]) -> Ladder:
    """A ladder without edges between bins of the same tree."""
    kept = [place for place in range(1, len(trees)) if trees[place] != trees[place - 1]]
    return Ladder(tuple(float(edges[place - 1]) for place in kept), (trees[0], *(trees[place] for place in kept)))
