"""When figures rest on too few prompts to be trusted. Knows counts, and nothing of what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entmtp_calib.errors import ArtefactError
from entmtp_calib.rundir import STAGES, RunDir
from entmtp_calib.storage import Journal

SMALL = 20
"""Prompts below which a figure is marked."""


def too_few(counts: Mapping[str, int]) -> dict[str, int]:
    """The parts of a run that have fewer than `SMALL` prompts, with their counts."""
    return {name: count for name, count in counts.items() if count < SMALL}


def prompts_used(run: RunDir, planned: Mapping[str, int] | None = None) -> dict[str, int]:
    """Prompts that a run's figures rest on: those of each part, and those of the fit part that recalibration and timing take.

    Args:
        planned: prompts asked for by stages that are still to come; stages that have begun know their own.

    Raises:
        ArtefactError: a journal or the run does not say how many.
    """
    counts = {name: _count(part, f"split {name}") for name, part in _mapping(run.about["inputs"].get("splits")).items()}
    asked = dict(planned or {})
    for stage in ("recalibrate", "time"):
        rows = Journal(run.file(STAGES[stage][0])).rows()
        if rows:  # a stage that was killed at once has none
            asked[stage] = _count(rows[0].get("options"), f"stage {stage}")
    return counts | {stage: min(count, counts.get("fit", 0)) for stage, count in asked.items()}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any, what: str) -> int:
    count = _mapping(value).get("prompts")
    if type(count) is not int:
        raise ArtefactError(f"the run does not say how many prompts its {what} has.", "Make it again with --fresh.")
    return count
