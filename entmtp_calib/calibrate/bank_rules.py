"""Which of the timed trees the bank keeps.

Reads figures; measures nothing and knows nothing of policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from entmtp_calib.calibrate.timing import Timed


def hull(timed: Sequence[Timed], rates: Mapping[str, float]) -> list[Timed]:
    """The throughput-Pareto bank: a tree stays only if it is faster than every smaller one (EntMTP, section 3.2).

    Plain decoding, the smallest, always stays.

    Args:
        rates: tokens per second of every arm, by label.
    """
    kept: list[Timed] = []
    for arm in sorted(timed, key=lambda arm: (arm.topology.size, arm.topology.depth, arm.label)):
        if not kept or rates[arm.label] > max(rates[other.label] for other in kept):
            kept.append(arm)
    return kept
