"""What a figure is: a frame of rows, a sentence about it, and what it rests on. Knows nothing of drawing or of pages."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import numpy as np

Row = Mapping[str, Any]
NONE = float("nan")
"""No number."""
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure before it is drawn.

    name: of its files; sentence: what to see, computed from the rows; columns: of the rows, in order; rests_on: stages or parts
    whose number of prompts says whether to trust it; facts: what the drawing needs beside the rows; notes: how it was made.
    """

    name: str
    title: str
    sentence: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    rests_on: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Missing:
    """A figure that cannot be made: why not, and what would make it possible."""

    name: str
    title: str
    reason: str
    hint: str = ""


def to_csv(figure: Figure) -> bytes:
    """The rows as CSV: the plotted frame, UTF-8, numbers in full, nothing where there is no value."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(figure.columns)
    for row in figure.rows:
        writer.writerow(["" if is_none(row.get(name)) else row[name] for name in figure.columns])
    return file.getvalue().encode()


def is_none(value: Any) -> bool:
    """Whether a cell is empty: no value, or not a number."""
    return value is None or (isinstance(value, float) and isnan(value))


def ratio_interval(tops: Sequence[float], bottoms: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """A ratio of sums with its 95 % bootstrap interval over prompts.

    Args:
        tops, bottoms: a pair for every prompt.

    Returns:
        Ratio, low, high; NaN where the bottoms sum to zero, and no interval for a single prompt.
    """
    top, bottom = np.asarray(tops, float), np.asarray(bottoms, float)
    if not bottom.sum():
        return NONE, NONE, NONE
    value = float(top.sum() / bottom.sum())
    if len(top) < 2:
        return value, NONE, NONE
    picks = np.random.default_rng(seed).integers(0, len(top), (_RESAMPLES, len(top)))
    below = bottom[picks].sum(1)
    ratios = top[picks].sum(1)[below > 0] / below[below > 0]
    low, high = np.quantile(ratios, (0.025, 0.975))
    return value, float(low), float(high)


def span(low: float, high: float, form: str = ".2f") -> str:
    """An interval in words; empty where there is none."""
    return "" if isnan(low) or isnan(high) else f" (95 % interval {low:{form}} to {high:{form}})"
