"""Laws of narration: on scripted heads every guess, choice and ending is known, and the telling changes nothing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import ScriptedDrafter, plain, table_target
from small_banks import small_bank, tree

from entmtp_calib.calibrate.narration import Narration, explain_choice, guesses_along, narrate
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.policy import Dynamic, Hysteresis, Ladder, Static
from entmtp_calib.topology import Topology

TABLE = [(3 * token + 1) % 7 for token in range(7)]  # 0 → 1 → 4 → 6 → 5 → 2 → 0
SMALL = Topology(((0,), (1,), (0, 0)))


def told(rank: object, policy: object, limit: int = 20, cap: int = 9, **bank: object) -> Narration:
    """A text of the table after token 0, guessed by heads that put the true token at a dictated rank."""
    target = table_target(TABLE)
    pair = SimpleNamespace(target=target, heads=ScriptedDrafter(TABLE, rank),  # type: ignore[arg-type]
                           tokenizer=SimpleNamespace(decode=lambda ids, **_more: "".join(map(str, ids))))  # fmt: skip
    found = replace(
        small_bank(),
        trees=(tree("ar", Topology(), *[1] * 8), tree("small", SMALL, *[1] * 8)),
        policies={"static": policy},
        recommended="static",
        **bank,
    )
    narration = narrate(pair, found, "auto", [0], StopRule(frozenset(), cap), limit)  # type: ignore[arg-type]
    assert narration.text == "".join(map(str, plain(target, [0], StopRule(frozenset(), cap))))
    return narration


def test_guesses_that_are_always_right_are_accepted_to_the_end_of_the_tree() -> None:
    narration = told(lambda _last, _level: 0, Static(1))
    first = narration.told[0]
    assert (first.number, first.tree, first.nodes, first.signal, first.why) == (1, "small", 3, None, "")
    assert (first.root, first.text, first.next) == ("1", "146", "5")
    assert [(guess.node, guess.text, guess.accepted) for guess in first.guesses] == [
        ((0,), "4", True), ((1,), "0", False), ((0, 0), "6", True),
    ]  # fmt: skip
    assert first.ending == "the tree ends here"
    assert [step.accepted for step in narration.told] == [2, 2, 2]
    assert (narration.steps, narration.tokens, narration.reason) == (3, 9, "length")
    assert (narration.told[-1].next, narration.told[-1].ending) == (None, "the text may not be longer")


def test_a_right_guess_of_second_rank_is_found_and_the_branch_ends_there() -> None:
    step = told(lambda _last, level: 1 if level == 0 else 0, Static(1)).told[0]
    assert [guess.accepted for guess in step.guesses] == [False, True, False]
    assert [[guess.node for guess in level] for level in guesses_along(step)] == [[(0,), (1,)]]
    assert (step.accepted, step.text, step.ending) == (1, "14", "the tree ends here")


def test_guesses_that_are_wrong_are_told_with_what_came_instead() -> None:
    step = told(lambda _last, _level: 6, Static(1)).told[0]
    assert (step.accepted, step.next, step.ending) == (0, "4", "none of 2 guesses was that")
    step = told(lambda _last, level: 6 * level, Static(1)).told[0]
    assert (step.accepted, step.next, step.ending) == (1, "6", "the only guess was wrong")


def test_plain_steps_have_no_guesses() -> None:
    step = told(lambda _last, _level: 0, Static(0)).told[0]
    assert (step.tree, step.guesses, step.accepted, step.ending) == ("ar", (), 0, "")


def test_only_a_policy_with_a_choice_reads_the_signal() -> None:
    signals = [
        told(lambda _last, _level: 0, policy).signal for policy in (Static(1), Hysteresis(0, 0, 1, 1), Hysteresis(1, 0, 0, 1))
    ]
    assert signals == [None, None, "path_value_2"]


def test_only_so_many_steps_are_told_and_the_text_is_whole() -> None:
    whole, short = (told(lambda _last, _level: 0, Static(1), limit=limit) for limit in (20, 2))
    assert short.told == whole.told[:2]
    assert (short.text, short.steps) == (whole.text, whole.steps)


def test_a_switching_policy_says_what_the_signal_was() -> None:
    narration = told(lambda _last, _level: 0, Hysteresis(0.9, 0.5, 0, 1))
    assert explain_choice(Hysteresis(0.9, 0.5, 0, 1), 0.6, first=True).endswith("where a text begins with this tree")
    for step in narration.told[:-1]:
        assert step.signal is not None
        assert step.tree == ("small" if step.signal >= 0.9 else "ar")
        assert step.why.startswith(("at least", "below", "between"))


@pytest.mark.parametrize(
    ("policy", "signal", "why"),
    [
        (Hysteresis(0.5, 0.25, 0, 1), 0.5, "at least 0.5"),
        (Hysteresis(0.5, 0.25, 0, 1), 0.1, "below 0.25"),
        (Hysteresis(0.5, 0.25, 0, 1), 0.3, "between 0.25 and 0.5, so the tree stays"),
        (Ladder((0.2, 0.4), (0, 1, 2)), 0.1, "below 0.2"),
        (Ladder((0.2, 0.4), (0, 1, 2)), 0.2, "at least 0.2 and below 0.4"),
        (Ladder((0.2, 0.4), (0, 1, 2)), 0.9, "at least 0.4"),
        (Ladder((), (1,)), 0.9, ""),
        (Hysteresis(0.5, 0.25, 1, 1), float("nan"), ""),
        (Dynamic((), (2,), SMALL), float("nan"), ""),
        (Dynamic((0.5,), (2, 3), SMALL), 0.7, "at least 0.5"),
        (Static(1), float("nan"), ""),
    ],
)
def test_every_choice_has_its_words(policy: object, signal: float, why: str) -> None:
    assert explain_choice(policy, signal) == why  # type: ignore[arg-type]


@pytest.mark.parametrize("columns", [20, 40, 78])
def test_lines_bend_to_the_terminal_and_quotes_stay_whole(columns: int) -> None:
    from entmtp_calib.commands.explain import _folded, _lines

    narration = told(lambda _last, _level: 0, Hysteresis(0.9, 0.5, 0, 1))
    lines = [piece for step in narration.told for line in _lines(step, narration.signal) for piece in _folded(line, columns)]
    assert max(map(len, lines)) <= columns
    spaced = replace(narration.told[0], root=" a   b ", guesses=())
    assert '" a   b "' in "\n".join(piece for line in _lines(spaced, None) for piece in _folded(line, 40))
