"""A profile accounts for every moment of a step and changes nothing that the decoder does."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from conftest import table_target
from entmtp_calib.commands._timing import profile_sentences, profile_table
from torch import Tensor

from entmtp_calib.calibrate.step_profile import (
    ACCEPTANCE,
    COMMIT,
    DRAFTING,
    FORWARD,
    PARTS,
    ROW_COUNTS,
    SCHEDULING,
    TRANSFER,
    BareForward,
    Profile,
    Spread,
    Stopwatch,
    _steps_of,
    profile_steps,
    spread,
)
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Output, Target
from entmtp_calib.errors import UsageError
from entmtp_calib.policy import Static
from entmtp_calib.topology import Topology, chain, published_default

PROMPTS = [("a", [1, 2, 3]), ("b", [3, 9, 9, 1])]


def ticking() -> Callable[[], float]:
    """A clock that is a second later whenever it is asked."""
    return map(float, itertools.count()).__next__


def test_time_of_a_part_inside_another_counts_once() -> None:
    watch = Stopwatch(iter([0.0, 1.0, 3.0, 7.0, 15.0, 20.0]).__next__)
    inner = watch.timed("inner", lambda: "done")
    outer = watch.timed("outer", lambda: (inner(), inner()))
    assert outer() == ("done", "done")
    assert watch.take() == {"outer": 1.0 + 4.0 + 5.0, "inner": 2.0 + 8.0}
    assert watch.take() == {}


def test_a_part_that_fails_is_closed() -> None:
    watch = Stopwatch(iter([0.0, 1.0, 5.0, 7.0]).__next__)

    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        watch.timed("bad", fail)()
    watch.timed("good", int)()
    assert watch.take() == {"bad": 1.0, "good": 2.0}


@pytest.mark.parametrize("tree", [Topology(), chain(3), published_default()])
def test_the_parts_of_a_step_add_up_to_it_and_each_is_there(target: Target, heads: DraftHeads, tree: Topology) -> None:
    stop = StopRule(target.end_ids, 40)
    for _name, ids in PROMPTS:
        plain = list(Decoder(target, heads, [tree], Static(0)).steps(ids, stop))
        rows, length = _steps_of(Decoder(target, heads, [tree], Static(0)), ids, stop, ticking())
        assert len(rows) == len(plain) - 2
        assert length >= len(ids) + sum(len(step.tokens) for step in plain[:-1])
        for row in rows:
            assert row.keys() == {*PARTS, "step", "bare"}
            assert row["step"] == pytest.approx(sum(row[part] for part in PARTS))
            assert (row["bare"], row[FORWARD], row[COMMIT], row[TRANSFER], row[ACCEPTANCE], row[SCHEDULING]) == (1, 1, 1, 1, 3, 2)


def test_the_ratio_is_of_each_step_to_its_own_bare_forward_and_drafting(target: Target, heads: DraftHeads) -> None:
    found = profile_steps(target, heads, chain(2), PROMPTS, StopRule(target.end_ids, 40), now=ticking())
    assert found.bare == found.choosing == Spread(1, 1, 1)
    assert found.ratio.median == pytest.approx(found.step.median / (1 + found.parts[DRAFTING].median))
    assert list(found.parts) == list(PARTS)
    assert list(found.rows) == list(ROW_COUNTS)


def test_a_bare_forward_runs_the_rows_of_the_tree_behind_the_text(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    forward = target.forward

    def watched(ids: Tensor, mask: Tensor, positions: Tensor, cache: KVCache) -> Output:
        seen.append((tuple(ids.shape), tuple(mask.shape), positions[0].tolist()))
        return forward(ids, mask, positions, cache)

    monkeypatch.setattr(target, "forward", watched)
    assert BareForward(target, TreeLayout(chain(2), target.device), 30).seconds(12, ticking()) == 1
    assert seen == [((1, 3), (1, 1, 3, 15), [12, 13, 14])]


def test_texts_without_a_middle_step_are_refused() -> None:
    with pytest.raises(UsageError, match="too short"):
        profile_steps(table_target([1, 2, 3, 0]), None, Topology(), [("a", [0])], StopRule(frozenset(), 2), now=ticking())


def test_a_spread_is_the_median_and_the_middle() -> None:
    assert spread([float(value) for value in range(11)]) == Spread(5, 1, 9)


def made(rows: dict[int, Spread]) -> Profile:
    parts = {part: Spread(0.002, 0.001, 0.004) for part in PARTS}
    return Profile(50, Spread(0.02, 0.01, 0.03), parts, Spread(0.016, 0.01, 0.02), Spread(1.12, 1.05, 1.3),
                   Spread(0.00005, 0.00004, 0.00006), rows)  # fmt: skip


def test_a_profile_is_told_in_milliseconds_and_says_whether_padding_would_help() -> None:
    flat = made({1: Spread(0.02, 0.019, 0.021), 2: Spread(0.0199, 0.019, 0.021)})
    text = " ".join(profile_sentences("n8", flat))
    assert "n8 takes 1.12 times" in text
    assert "0.050 ms" in text
    assert "would gain nothing by padding" in text
    text = " ".join(profile_sentences("n8", made({1: Spread(0.04, 0.039, 0.041), 2: Spread(0.02, 0.019, 0.021)})))
    assert "faster with its row padded to 2 (ms of a forward by rows: 1: 40.0, 2: 20.0)" in text
    table = profile_table("n8", flat)
    assert [row["part"] for row in table.rows] == [*PARTS, "whole step", "bare forward of the same rows"]
    assert table.rows[0]["ms"] == pytest.approx(2.0)
    assert table.rows[-2]["share"] == 1
