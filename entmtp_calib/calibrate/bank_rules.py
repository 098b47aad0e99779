"""Which of the timed trees the bank keeps, when differences inside the noise of timing do not count.

Reads figures; measures nothing and fits no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.calibrate.paired import Noise, Row, noise_of, seconds_per_step, seconds_per_token
from entmtp_calib.calibrate.racing import by_size
from entmtp_calib.calibrate.timing import AR_AGAIN, Timed, aa_slack
from entmtp_calib.errors import UsageError
from entmtp_calib.evidence import Trace, accepted_depths
from entmtp_calib.signals import AUTO, COMBINED, Signal

HULL, CONDITIONAL = "hull", "conditional"
RULES = (HULL, CONDITIONAL)
_BINS = 8


def check_rule(rule: str, lossless: bool = True) -> None:
    """Refuse an unknown rule, and one that needs replay where nothing can be replayed.

    Raises:
        UsageError: it is one of these.
    """
    if rule not in RULES:
        raise UsageError(f"unknown bank rule {rule!r}.", f"Known: {', '.join(RULES)}.")
    if rule == CONDITIONAL and not lossless:
        raise UsageError("the rule conditional replays texts, which typical acceptance does not allow.", "Use hull.")


def choose_bank(
    rule: str, asked: str, timed: Sequence[Timed], rates: Mapping[str, float], traces: Sequence[Trace]
) -> list[Timed]:
    """The trees that the bank keeps, by size.

    Args:
        asked: the signal that was asked for; one that is fitted or remembers steps tells no bins of a position, and the expected
            length of the heads' chain takes its place.
        timed: every arm.
        rates: tokens per second of every arm, by replay of `traces` with the measured seconds per step.
    """
    kept = hull(timed, rates, seconds_per_step)
    if rule == HULL:
        return kept
    signal = Signal(f"expected_chain_{min(9, traces[0].heads)}")
    if asked not in (AUTO, COMBINED) and not Signal(asked).remembers:
        signal = Signal(asked)
    values = np.concatenate([signal.at(trace.root_logp, trace.entropy, trace.chain_logp) for trace in traces])
    accepted = [np.stack([accepted_depths(arm.topology, trace) for arm in timed], 1) for trace in traces]
    return conditional(timed, kept, max(rates[arm.label] for arm in kept), values, np.concatenate(accepted))


def timing_noise(timed: Sequence[Timed], cost: Callable[[Row], float]) -> Noise:
    """By how much the costs of timed arms differ by chance, for as many comparisons as there are trees."""
    runs = {arm.label: arm.runs for arm in timed if arm.runs}
    trees = sum(arm.label != AR_AGAIN for arm in timed)
    return noise_of(runs, cost, trees - 1, aa_slack(runs))


def hull(timed: Sequence[Timed], rates: Mapping[str, float], cost: Callable[[Row], float] = seconds_per_token) -> list[Timed]:
    """The throughput-Pareto bank: a tree stays only if it is faster than every smaller one (EntMTP, section 3.2).

    Faster means by more than the noise of the timing; ties go to the smaller tree. Plain decoding, the smallest, always stays.

    Args:
        timed: every arm; the repeat of plain decoding is no candidate and helps to judge the noise.
        rates: tokens per second of every arm, by label.
        cost: what the rates rest on that was timed: seconds per token, or per step where tokens per step are replayed.
    """
    noise = timing_noise(timed, cost)
    kept: list[Timed] = []
    for arm in sorted((arm for arm in timed if arm.label != AR_AGAIN), key=by_size):
        if not kept or rates[arm.label] > rates[kept[-1].label] * noise.margin(arm.label, kept[-1].label):
            kept.append(arm)
    return kept


def conditional(
    timed: Sequence[Timed], kept: Sequence[Timed], rate: float, signal: NDArray[np.floating], accepted: NDArray[np.integer]
) -> list[Timed]:
    """The trees of the hull and those that are best somewhere: in some bin of the signal they add more than all kept ones.

    At a going rate r a step is worth `accepted + 1 - r · seconds`, as in Dinkelbach's iteration; bins are quantiles of the
    signal. A tree is added if its lead over the best kept tree of a bin is more than the noise of the timing; smaller trees are
    asked first.

    Args:
        timed: every arm.
        kept: those of the hull.
        rate: tokens per second of the fastest of them.
        signal: of every position, `[positions]`.
        accepted: what every arm of `timed` would accept there, `[positions, arms]`.
    """
    noise = timing_noise(timed, seconds_per_step)
    edges = np.unique(np.quantile(signal, np.arange(1, _BINS) / _BINS))
    bins = np.searchsorted(edges, signal, side="right")
    seconds = np.array([arm.seconds_per_step for arm in timed])
    worth = accepted + 1 - rate * seconds
    worth = np.stack([worth[bins == number].mean(0) for number in np.unique(bins)])
    labels = [arm.label for arm in timed]
    chosen = [labels.index(arm.label) for arm in kept]
    for tree in sorted(set(range(len(timed))) - set(chosen), key=lambda tree: by_size(timed[tree])):
        best = np.array(chosen)[worth[:, chosen].argmax(1)]  # of every bin
        unsure = np.array([rate * seconds[tree] * (noise.margin(labels[tree], labels[other]) - 1) for other in best])
        lead = worth[:, tree] - worth[np.arange(len(worth)), best]
        if labels[tree] != AR_AGAIN and (lead > unsure).any():
            chosen.append(tree)
    return sorted((timed[tree] for tree in chosen), key=by_size)
