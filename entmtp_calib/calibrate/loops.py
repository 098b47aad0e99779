"""Texts that repeat themselves: their acceptance says little about other text, whether it is high or low.

Numpy only; knows token ids and nothing of trees.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LONGEST, TIMES = 32, 4


def looped_tokens(text: Sequence[int], longest: int = LONGEST, times: int = TIMES) -> int:
    """How many tokens of a text stand in a piece that comes at least `times` times in a row.

    Args:
        longest: longest piece that is looked for, in tokens.
    """
    tokens = np.asarray(text)
    inside = np.zeros(len(tokens), bool)
    for period in range(1, min(longest, len(tokens) // times) + 1):
        same = np.concatenate(([False], tokens[period:] == tokens[:-period], [False])).astype(np.int8)
        turns = np.diff(same).nonzero()[0]
        for start, end in zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True):
            if end - start >= period * (times - 1):
                inside[start : end + period] = True
    return int(inside.sum())
