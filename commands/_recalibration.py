"""How recalibration speaks: its table, the order of the trees, and how likely texts are that are not those of plain decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._output import Column, Output, Table
from ._tables import marked, recalibration_table

if TYPE_CHECKING:
    from entmtp_calib.calibrate.pipeline import Calibration


def report_recalibration(
    screen: Output, calibration: Calibration, recalibrated: Sequence[Any], counts: Mapping[str, int]
) -> None:
    """Show every tree's own rollouts beside what the search said."""
    from entmtp_calib.calibrate.recalibrate import changed_places

    screen.table(marked(recalibration_table(recalibrated), counts))
    pairs = changed_places(recalibrated)
    screen.keep(changed_places=pairs)
    if len(recalibrated) > 1:
        screen.say("order of the trees: " + ("; ".join(f"{a} now before {b}" for a, b in pairs) or "unchanged on new prompts"))
    if not calibration.config.rule.lossless and all(item.logp is not None for item in recalibrated):
        screen.table(marked(_quality_table(calibration, recalibrated), counts))


def _quality_table(calibration: Calibration, recalibrated: Sequence[Any]) -> Table:
    """Log probability of texts under the target, those of greedy decoding first."""
    from entmtp_calib.calibrate.likelihood import greedy_logp

    rows: list[dict[str, Any]] = [{"text": "greedy decoding", "logp": greedy_logp(calibration.traces("search"))}]
    rows += [{"text": item.candidate.label, "logp": item.logp} for item in recalibrated]
    columns = (Column("text", "text of"), Column("logp", "log p/token, search prompts", ".3f"))
    return Table("quality", "Not lossless: likelihood of the texts, in nats", columns, rows)
