"""When figures rest on too few prompts to be trusted. Knows counts, and nothing of what was measured."""

from __future__ import annotations

from collections.abc import Mapping

SMALL = 20
"""Prompts below which a figure is marked."""


def too_few(counts: Mapping[str, int]) -> dict[str, int]:
    """The parts of a run that have fewer than `SMALL` prompts, with their counts."""
    return {name: count for name, count in counts.items() if count < SMALL}
