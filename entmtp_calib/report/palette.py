"""Colours, width and labels of figures: each series is darker than the one before, so that they stay apart without colour."""

from __future__ import annotations

WIDTH = 4.2  # inches of every figure: on a phone its letters stay readable
INK, MUTED, FAINT, PAPER = "#1c1c1c", "#6b6b6b", "#d9d9d9", "#ffffff"
SERIES = ("#e0a030", "#c8553d", "#7b2d72", "#14213d")
"""From light to dark: amber, red, purple, navy."""
MARKS, DASHES = ("o", "s", "^", "D"), ("-", "--", "-.", ":")
DEPTHS = ("#ffffff", "#fbe3a3", "#eda94a", "#c8553d", "#7b2d72", "#14213d")
"""Background of a token by the depth of the draft that brought it: white for a root, darker with every level."""
DARK_FROM = 3  # depths from here on need white letters


def depth_colours(depth: int) -> tuple[str, str]:
    """Background and letters of a token."""
    return DEPTHS[min(depth, len(DEPTHS) - 1)], PAPER if depth >= DARK_FROM else INK


def short(label: str, most: int = 20) -> str:
    """A label that fits a figure; labels of imported trees may be of any length."""
    return label if len(label) <= most else label[: most - 1] + "…"
