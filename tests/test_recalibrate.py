"""What recalibration says about the order of the trees."""

from __future__ import annotations

from math import nan

from entmtp_calib.calibrate.candidates import Candidate
from entmtp_calib.calibrate.recalibrate import Recalibrated, changed_places
from entmtp_calib.topology import chain


def row(label: str, searched: float, own: float) -> Recalibrated:
    return Recalibrated(Candidate(label, chain(1), searched, searched), searched, own, own, 10, 0)


def test_pairs_that_changed_places_are_named_the_worse_of_the_search_first() -> None:
    found = [row("a", 0.5, 0.6), row("published", nan, 9.0), row("b", 1.0, 0.55), row("c", 1.5, 1.4), row("d", 1.2, 1.5)]
    assert changed_places(found) == [("a", "b"), ("d", "c")]


def test_equal_trees_and_an_unchanged_order_give_no_pair() -> None:
    assert changed_places([row("a", 0.5, 0.6), row("b", 0.5, 0.3), row("c", 1.0, 0.6)]) == []
