"""The data of the picture of `entmtp bench`: every way to decode beside plain decoding. Measures and draws nothing."""

from __future__ import annotations

from collections.abc import Sequence

from entmtp_calib.calibrate.timing import AR, AR_AGAIN
from entmtp_calib.report.figure import Figure, Row, span

BENCH = "bench"
ORACLE = "oracle (replay)"
"""The ceiling: not run, so without an interval."""
_COLUMNS = (
    "arm",
    "nodes",
    "tokens_per_s",
    "tokens_per_step",
    "speedup",
    "speedup_low",
    "speedup_high",
    "over_static",
    "over_static_low",
    "over_static_high",
    "cv",
    "same_text",
    "logp",
)


def bench(title: str, rows: Sequence[Row]) -> Figure:
    """The figure of a bench table.

    Args:
        rows: of its arms, plain decoding among them, the fastest first; before them the oracle, if there is one.
    """
    found = [{**row, "low": row.get("speedup_low"), "high": row.get("speedup_high")} for row in rows]
    plain = next(row for row in found if row["arm"] == AR)
    best = next((row for row in found if row["arm"] not in (AR, AR_AGAIN, ORACLE)), None)
    sentence = f"Plain decoding writes {plain['tokens_per_s']:.1f} tokens/s."
    if best is not None:
        sentence = (
            f"{best['arm']} is the fastest: {best['tokens_per_s']:.1f} tokens/s, {best['speedup']:.2f} times plain decoding"
            f"{span(best['low'], best['high'])}, which writes {plain['tokens_per_s']:.1f}."
        )
    return Figure(BENCH, title, sentence, _COLUMNS, found, ())
