"""What recalibration says about the order of the trees."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

from entmtp_calib.calibrate.candidates import Candidate
from entmtp_calib.calibrate.recalibrate import Recalibrated, changed_places, recalibrate
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.storage import Journal
from entmtp_calib.topology import chain


def row(label: str, searched: float, own: float) -> Recalibrated:
    return Recalibrated(Candidate(label, chain(1), searched, searched), searched, own, own, 10, 0)


def test_pairs_that_changed_places_are_named_the_worse_of_the_search_first() -> None:
    found = [row("a", 0.5, 0.6), row("published", nan, 9.0), row("b", 1.0, 0.55), row("c", 1.5, 1.4), row("d", 1.2, 1.5)]
    assert changed_places(found) == [("a", "b"), ("d", "c")]


def test_equal_trees_and_an_unchanged_order_give_no_pair() -> None:
    assert changed_places([row("a", 0.5, 0.6), row("b", 0.5, 0.3), row("c", 1.0, 0.6)]) == []


def test_mean_accept_is_pooled_over_steps_and_the_mean_of_prompts_stands_beside_it(tmp_path: Path) -> None:
    """A short and a long text: by the one figure a is the better tree, by the other b is."""
    counted = {"a": ((2, 0), (398, 398)), "b": ((2, 2), (398, 300))}
    rows: list[dict[str, Any]] = [
        {"tree": label, "prompt": prompt, "steps": steps, "accepted": accepted, "tokens": steps + accepted, "looped": 4,
         "near_ties": 1}
        for label, counts in counted.items()
        for prompt, (steps, accepted) in zip(("short", "long"), counts, strict=True)
    ]  # fmt: skip
    trees = [Candidate(label, chain(2), nan, 0.5) for label in counted]
    prompts = [("short", [1]), ("long", [2])]
    nothing: Any = None  # everything is in the journal, so no model is asked
    a, b = recalibrate(nothing, nothing, trees, prompts, StopRule(frozenset(), 9), Journal(tmp_path / "j"), rows)
    assert (a.mean_accept, a.prompt_mean) == (398 / 400, 0.5)
    assert (b.mean_accept, b.prompt_mean) == (302 / 400, (1 + 300 / 398) / 2)
    assert (a.steps, a.near_ties, a.looped) == (400, 2, 8 / 798)
    assert not (tmp_path / "j").exists()
