"""Loops: pieces that come often in a row, and nothing else."""

from __future__ import annotations

import random

import pytest

from entmtp_calib.calibrate.loops import looped_tokens


@pytest.mark.parametrize(
    ("text", "looped"),
    [
        ([], 0),
        ([7], 0),
        ([7] * 3, 0),
        ([7] * 4, 4),
        ([1, 2, 3] * 4, 12),
        ([1, 2, 3] * 3 + [1, 2], 0),
        ([9, 8, *([1, 2, 3] * 5), 4, 5], 15),
        ([9, *([1, 2] * 4), 9, 5, *([6] * 6)], 14),
        (list(range(40)) * 4, 0),
        (list(range(32)) * 4, 128),
    ],
)
def test_pieces_that_come_four_times_in_a_row_are_counted(text: list[int], looped: int) -> None:
    assert looped_tokens(text) == looped


def test_random_text_has_none() -> None:
    rng = random.Random(0)
    assert looped_tokens([rng.randrange(500) for _ in range(400)]) == 0
