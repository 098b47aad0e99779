"""The stop rule: the earliest event wins, at every offset, in every loop."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from conftest import ScriptedDrafter, plain, table_target

from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.writer import write
from entmtp_calib.policy import Static
from entmtp_calib.topology import chain

CYCLE = [*range(1, 20), 0]
CASES = list(itertools.product(("f", "ef", "cef", "ijkl", "tab"), range(0, 20, 3)))


def letters(ids: Sequence[int]) -> str:
    """Token n as the n-th letter; token 3 is half of a two-token sign and shows as nothing."""
    return "".join("" if token == 3 else chr(ord("a") + token) for token in ids)


@pytest.mark.parametrize(("string", "start"), CASES)
def test_a_stop_string_ends_the_text_wherever_it_completes(string: str, start: int) -> None:
    target = table_target(CYCLE)
    stop = StopRule(frozenset(), 60, (string,), letters)
    text, token = [], CYCLE[start]
    while string not in letters(text):
        text.append(token)
        token = CYCLE[token]
    assert plain(target, [start], stop) == text
    assert dict(write(target, [[start], [start]], stop)) == {0: text, 1: text}
    for rank in (0, 1, 9):
        drafter = ScriptedDrafter(CYCLE, lambda _last, head, rank=rank: 0 if head < rank else 99)
        steps = list(Decoder(target, drafter, [chain(4)], Static(0)).steps([start], stop))
        assert [token for step in steps for token in step.tokens] == text
        assert steps[-1].reason == "stop"


def test_the_earliest_of_three_events_wins() -> None:
    rule = StopRule(frozenset([7]), 5, ("de",), letters)
    assert rule.cut([], [1, 2, 7, 4]) == ([1, 2, 7], "end")
    assert rule.cut([], [1, 4, 7]) == ([1, 4, 7], "end")
    assert rule.cut([0, 1], [2, 8, 9, 9]) == ([2, 8, 9], "length")
    assert rule.cut([0, 1], [2, 8, 7, 9]) == ([2, 8, 7], "end")
    other = StopRule(frozenset([7]), 5, ("ce",), letters)
    assert other.cut([2], [3, 4, 7]) == ([3, 4], "stop")
    assert other.cut([2, 3], [4, 7]) == ([4], "stop")
    assert other.cut([2], [8]) == ([8], "")


def test_a_long_stop_string_is_found_however_many_tokens_it_takes() -> None:
    string = letters([number % 19 + 4 for number in range(90)])
    ids = [ord(letter) - ord("a") for letter in string]
    rule = StopRule(frozenset(), 200, (string,), letters)
    for place in range(len(ids) - 1):
        assert rule.cut(ids[:place], ids[place : place + 1]) == (ids[place : place + 1], "")
    assert rule.cut([1, *ids[:-1]], [ids[-1], 1]) == ([ids[-1]], "stop")


def test_a_string_that_came_before_the_text_does_not_count() -> None:
    assert StopRule(frozenset(), 9, ("ab",), letters).cut([], [1, 2]) == ([1, 2], "")
