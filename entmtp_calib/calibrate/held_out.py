"""Cross-validation over prompts: every text is judged by a policy, and where it is fitted by a signal, that did not see it.

Numpy only; knows nothing of how policies are fitted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from entmtp_calib.calibrate.combined_signal import signal_for
from entmtp_calib.calibrate.thresholds import Costs, Outcome, Speed, evaluate
from entmtp_calib.replay import Replayer

FOLDS = 5
Fit = Callable[[Replayer, Costs], Outcome]


def folds(texts: int, count: int = FOLDS) -> list[list[int]]:
    """Texts by their indices, each in one fold, neighbours apart."""
    count = min(count, texts)
    return [list(range(fold, texts, count)) for fold in range(count)]


def held_out(name: str, fit: Fit, replayer: Replayer, costs: Costs) -> Speed:
    """Tokens and seconds of every text under what was fitted to the other folds; to itself where there is only one text.

    Args:
        name: of the signal that policies read.
    """
    texts = len(replayer.traces)
    tokens, seconds = np.zeros(texts), np.zeros(texts)
    for own in folds(texts):
        others = replayer.part([text for text in range(texts) if text not in own] or own)
        signal = signal_for(name, others, costs)
        policy = fit(others.reading(signal), costs).policy
        judged = evaluate(policy, replayer.part(own).reading(signal), costs)
        tokens[own], seconds[own] = judged.tokens, judged.seconds
    return Speed(tokens, seconds)
