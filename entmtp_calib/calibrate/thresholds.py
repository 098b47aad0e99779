"""What a policy is worth on traces, and the fitting of static trees, ladders and hystereses.

Everything is replayed with measured step costs and maximises committed tokens per second, a ratio of sums. Deterministic. Numpy
only; runs no model, and knows nothing of where signals come from or which prompts were held out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.evidence import Trace
from entmtp_calib.policy import Hysteresis, Ladder, Policy, Static, hysteresis
from entmtp_calib.replay import Chooser, Replay, Replayer

_GROUPS = 64  # quantile groups of the signal between which a ladder's edges are sought
_LEVELS = 16  # quantiles that a hysteresis' thresholds are sought among
_ROUNDS = 8
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one step with each tree of the bank.

    alone: drafting only that tree; draft: what drafting it takes alone; shared: what drafting and choosing take under a policy
    that switches and whose deepest tree is this one, that is the union of the trees that are no deeper, and the signal.
    """

    alone: tuple[float, ...]
    draft: tuple[float, ...]
    shared: tuple[float, ...]

    def of(self, policy: Policy) -> NDArray[np.float64]:
        """Seconds per step of every tree under a policy, float64 `[trees]`."""
        return self.among(policy.members)

    def among(self, members: Sequence[int]) -> NDArray[np.float64]:
        """The same for a policy that chooses among these: one that switches must draft for all of them and read the signal."""
        if len(members) == 1:
            return np.asarray(self.alone)
        return np.asarray(self.alone) - self.draft + max(self.shared[member] for member in members)


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens and modelled seconds, prefill left out, of every text, float64 `[texts]`."""

    tokens: NDArray[np.float64]
    seconds: NDArray[np.float64]

    @property
    def tokens_per_s(self) -> float:
        """Pooled: all tokens over all seconds."""
        return float(self.tokens.sum() / self.seconds.sum())


@dataclass(frozen=True, slots=True)
class Outcome(Speed):
    """A policy over some traces; shares: fraction of steps per tree of the bank; switches: per 100 steps."""

    policy: Policy
    mean_accept: float
    shares: tuple[float, ...]
    switches: float


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
    return Outcome(
        *speed(run, costs.of(policy)[run.index], len(replayer.traces)),
        policy,
        run.mean_accept,
        tuple((np.bincount(run.index, minlength=len(costs.alone)) / len(run.index)).tolist()),
        100 * run.switches / len(run.index),
    )


def best_static(replayer: Replayer, costs: Costs) -> Outcome:
    """The single tree with the most tokens per second; ties go to the smaller."""
    return best(evaluate(Static(index), replayer, costs) for index in range(len(costs.alone)))


def fit_ladder(replayer: Replayer, costs: Costs, bins: int) -> Outcome:
    """The ladder of at most so many bins with the most tokens per second; the one of the best static tree where none is faster.

    The objective is a ratio, so it is sought by Dinkelbach's iteration: at rate r a step with tree t is worth
    `accepted + 1 - r · seconds`, and `best_bins` finds the edges and trees with the greatest sum over a sample of steps, exactly.
    Which steps there are depends on the ladder, so every answer is replayed, and the iteration ends with the first that is no
    faster. It is done once for every depth to which a policy may draft, since that decides what its steps cost.
    """
    static = best_static(replayer, costs)
    static = replace(static, policy=Ladder((), static.policy.members))
    found = [static]
    for level in sorted(set(costs.shared)):
        trees = [tree for tree, shared in enumerate(costs.shared) if shared <= level]
        if len(trees) > 1 and bins > 1:
            found.append(ladder_over(replayer, costs, trees, bins, static))
    return best(found)


def ladder_over(replayer: Replayer, costs: Costs, trees: list[int], bins: int, start: Outcome) -> Outcome:
    """The best ladder over some of the trees by Dinkelbach's iteration from `start`, or `start`."""
    fastest, policy = start, start.policy
    seconds = costs.among(trees)[trees]
    for _ in range(_ROUNDS):
        signals, accepted = _sample(replayer, policy)
        edges = quantiles(signals, _GROUPS)
        worth = accepted[:, trees] + 1 - fastest.tokens_per_s * seconds
        group = np.searchsorted(edges, signals, side="right")
        sums = np.stack([np.bincount(group, column, len(edges) + 1) for column in worth.T], 1).astype(np.float64)
        chosen = best_bins(sums, bins)
        policy = merge(edges, [trees[tree] for tree in chosen])
        outcome = evaluate(policy, replayer, costs)
        if outcome.tokens_per_s <= fastest.tokens_per_s:
            break
        fastest = outcome
    return fastest


def _sample(replayer: Replayer, policy: Policy) -> tuple[NDArray[np.float64], NDArray[np.integer]]:
    """Signals `[steps]` and what every tree would accept `[steps, trees]`.

    A step at every position where the signal needs no history: twice as many as a policy makes, and so less of what is fitted is
    noise. Else the steps of the policy, which alone have a history.
    """
    if replayer.signal is None or not replayer.signal.remembers:
        return np.concatenate(replayer.values).astype(np.float64), np.concatenate(replayer.depths)
    run = replayer.run(policy)
    return run.signals, replayer.acceptance(run)


def best_bins(worth: NDArray[np.float64], bins: int) -> list[int]:
    """Cut a row of groups into at most so many runs, one tree each, with the greatest total worth, by dynamic programming.

    Args:
        worth: `[groups, trees]`, what each tree would add in each group.

    Returns:
        The tree of every group; of equals the one with fewer bins, then the smaller tree.
    """
    groups, trees = worth.shape
    total = np.full((bins, trees), -np.inf)  # of the groups so far, by number of cuts and tree of the last run
    total[0] = worth[0]
    origin = np.tile(np.arange(trees), (groups, bins, 1))  # tree of the group before
    cut = np.zeros((groups, bins, trees), bool)
    for group in range(1, groups):
        before = total.argmax(1)
        opened = np.concatenate((np.full((1, 1), -np.inf), total.max(1, keepdims=True)[:-1]))
        cut[group] = opened > total
        origin[group] = np.where(cut[group], np.concatenate(([0], before[:-1]))[:, None], origin[group])
        total = np.where(cut[group], opened, total) + worth[group]
    cuts, tree = np.unravel_index(total.argmax(), total.shape)
    chosen = [int(tree)]
    for group in range(groups - 1, 0, -1):
        before_tree = origin[group, cuts, tree]
        cuts, tree = cuts - cut[group, cuts, tree], before_tree
        chosen.append(int(tree))
    return chosen[::-1]


def fit_hysteresis(replayer: Replayer, costs: Costs) -> Outcome:
    """The best pair of trees and of thresholds `off <= on` among the signal's quantiles: every one is replayed.

    Two equal trees, the best static one, where none is faster.
    """
    static = best_static(replayer, costs)
    static = replace(static, policy=Hysteresis(0.0, 0.0, static.policy.members[0], static.policy.members[0]))
    signals = replayer.run(static.policy).signals
    levels = quantiles(signals, _LEVELS)
    pairs = [(on, off) for on in levels for off in levels if off <= on]
    found = [static]
    for low, high in itertools.permutations(range(len(costs.alone)), 2) if pairs else ():
        counts = replayer.counts(_many(pairs, low, high, len(replayer.traces)), len(pairs), min(low, high))
        seconds = counts.steps.sum(1) @ costs.among((low, high))
        on, off = pairs[int((counts.tokens.sum(1) / seconds).argmax())]
        found.append(evaluate(Hysteresis(float(on), float(off), low, high), replayer, costs))
    return best(found)


def _many(pairs: Sequence[tuple[float, float]], low: int, high: int, texts: int) -> Chooser:
    """Hystereses of all pairs of thresholds at once."""
    on, off = (np.repeat(column, texts) for column in np.asarray(pairs).T)
    return lambda index, signal: hysteresis(on, off, low, high, index, signal)


def speed(run: Replay, seconds: NDArray[np.float64], texts: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Tokens and seconds of every text, float64 `[texts]` each.

    Args:
        seconds: of every step of the replay.
    """
    tokens, spent = np.bincount(run.prompt, run.accepted + 1.0, texts), np.bincount(run.prompt, seconds, texts)
    return tokens.astype(np.float64), spent.astype(np.float64)


def gain(outcome: Speed, base: Speed, seed: int) -> Gain:
    """How much faster one outcome is than another over the same texts."""
    texts = len(outcome.tokens)
    picks = np.random.default_rng(seed).integers(0, texts, (_RESAMPLES, texts))
    rates = [part.tokens[picks].sum(1) / part.seconds[picks].sum(1) for part in (outcome, base)]
    low, high = np.quantile(rates[0] / rates[1], (0.025, 0.975))
    return Gain(outcome.tokens_per_s / base.tokens_per_s, float(low), float(high))


def best(outcomes: Iterable[Outcome]) -> Outcome:
    """The first of the fastest."""
    return max(outcomes, key=lambda outcome: outcome.tokens_per_s)


def quantiles(signals: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    """Distinct inner quantiles of a signal above its least value, ascending; values that occur, so nothing is rounded."""
    if not len(signals):
        return np.zeros(0)
    found = np.unique(np.quantile(signals, np.arange(1, groups) / groups, method="higher"))
    return found[found > signals.min()]


def merge(edges: NDArray[np.float64], trees: Sequence[int]) -> Ladder:
    """A ladder without edges between groups of the same tree."""
    kept = [place for place in range(1, len(trees)) if trees[place] != trees[place - 1]]
    return Ladder(tuple(float(edges[place - 1]) for place in kept), (trees[0], *(trees[place] for place in kept)))
