"""Figures of arms from their rows, also where some arms ran in fewer rounds than others."""

from __future__ import annotations

import pytest
from timed_worlds import arms_of, copies, timing_rows

from entmtp_calib.calibrate.timing import AR, AR_AGAIN, Timed, summarise
from entmtp_calib.errors import EntmtpError


def figures(rows: list[dict], *labels: str) -> dict[str, Timed]:
    return {arm.label: arm for arm in summarise(arms_of(labels), rows)}


def test_figures_are_ratios_of_sums_without_warm_ups() -> None:
    rows = timing_rows({"n1": 0.5}, 3, 2, 0.01, 0)
    rows += [row | {"round": -1, "seconds": 1e6} for row in rows[:4]]
    own = [row for row in rows if row["arm"] == "n1" and row["round"] >= 0]
    found = figures(rows, "n1")["n1"]
    tokens, seconds = sum(row["tokens"] for row in own), sum(row["seconds"] for row in own)
    assert found.tokens_per_s == pytest.approx(tokens / seconds)
    assert found.decode_tokens_per_s == pytest.approx(tokens / (seconds - len(own)))
    assert found.seconds_per_step == pytest.approx((seconds - len(own)) / sum(row["steps"] for row in own))
    assert (found.tokens_per_step, found.rounds, len(found.runs)) == (1, 2, 6)


def test_plain_decoding_is_once_as_fast_as_itself() -> None:
    found = figures(timing_rows({}, 3, 2, 0.01, 0))
    assert (found[AR].speedup, found[AR].speedup_low, found[AR].speedup_high) == (1, 1, 1)
    assert found[AR_AGAIN].speedup_low < 1 < found[AR_AGAIN].speedup_high


def test_a_draft_by_itself_is_a_figure_and_no_run() -> None:
    rows = [*timing_rows({"n1": 0.5}, 3, 2, 0.01, 0), {"arm": "n1", "prompt": "", "round": 0, "draft_seconds": 0.25}]
    found = figures(rows, "n1")
    assert (found["n1"].draft_seconds, found[AR].draft_seconds) == (0.25, 0)


def test_an_arm_that_stopped_early_is_compared_where_both_ran() -> None:
    """All rounds but the first are three times slower; the arm that ran in the first alone looks no faster for it."""
    rows = [
        row | {"seconds": row["seconds"] * (3 if row["round"] else 1), "prefill_seconds": 3.0 if row["round"] else 1.0}
        for row in timing_rows({"n1": 0.5, "n2": 0.5}, 4, 4, 0.0, 0)
    ]
    short = [row for row in rows if row["arm"] != "n2" or not row["round"]]
    found = figures(short, "n1", "n2")
    assert (found["n1"].rounds, found["n2"].rounds) == (4, 1)
    assert found["n2"].speedup == pytest.approx(found["n1"].speedup, rel=0.02)
    assert found["n2"].seconds_per_step == pytest.approx(found["n1"].seconds_per_step, rel=0.03)
    assert found["n2"].tokens_per_s == pytest.approx(found["n1"].tokens_per_s, rel=0.03)


def test_an_arm_is_not_judged_by_other_trees() -> None:
    rows = timing_rows({"n1": 0.5, "n2": 0.7}, 4, 3, 0.01, 0)
    alone = [row for row in rows if row["arm"] != "n2"]
    assert figures(rows, "n1", "n2")["n1"] == figures(alone, "n1")["n1"]


def test_different_tokens_in_two_rounds_void_a_timing() -> None:
    rows = timing_rows(copies(2), 2, 2, 0.01, 0)
    next(row for row in rows if row["round"] == 1 and row["arm"] == "copy01")["ids"] = "something else"
    with pytest.raises(EntmtpError, match=r"copy01 wrote different tokens for p0 .* void"):
        figures(rows, "copy00", "copy01")


def test_the_variation_is_that_of_rounds() -> None:
    rows = timing_rows({"n1": 0.5}, 2, 2, 0.0, 0)
    for row in rows:
        row["seconds"] = row["tokens"] * (1.0 if row["round"] else 1.5)
    assert figures(rows, "n1")["n1"].cv == pytest.approx(0.2828, abs=1e-3)
    assert figures([row for row in rows if row["round"] == 0], "n1")["n1"].cv == 0
