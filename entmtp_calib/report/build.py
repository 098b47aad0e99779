"""All figures of a run, in the order of the report. Computes and draws none itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from entmtp_calib.report.acceptance import frontier, hit_rates
from entmtp_calib.report.figure import Figure, Missing
from entmtp_calib.report.material import Material
from entmtp_calib.report.speed import cost_model, search_time, throughput
from entmtp_calib.report.switching import gain, reliability, signal
from entmtp_calib.report.timeline import timeline
from entmtp_calib.report.trees import trees


def figures(
    material: Material, tokenizer: Any = None, prompt: str | None = None, search_times: Path | None = None
) -> list[Figure | Missing]:
    """Every figure, or why it cannot be made.

    Args:
        tokenizer, prompt: of the timeline; search_times: CSV of a benchmark, see `search_time`.
    """
    return [
        throughput(material),
        frontier(material),
        gain(material),
        timeline(material, tokenizer, prompt),
        trees(material),
        hit_rates(material),
        signal(material),
        reliability(material),
        cost_model(material),
        search_time(search_times),
    ]
