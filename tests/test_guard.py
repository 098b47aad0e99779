"""The guard: what it may lose by replay on texts made to hurt it, and that it never changes the text."""

from __future__ import annotations

import random

import pytest
from conftest import ScriptedDrafter, plain, random_heads, table_target

from entmtp_calib.engine.decoder import HELD, Decoder
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.guard import OFF, Guard, guarded
from entmtp_calib.policy import Ladder, Static
from entmtp_calib.topology import Topology, chain, published_default

LONG = 24_000
DRAFT = 0.125  # of a plain step; a binary fraction, so that clocks and sums agree to the last bit


def blocks(bad: int, good: int, length: int = LONG) -> list[int]:
    """Nothing to accept, then everything, in turns."""
    return ([0] * bad + [4] * good) * (length // (bad + good) + 1)


def chances(*parts: tuple[float, int]) -> list[int]:
    """Drafts accepted one after another with a probability that changes from block to block."""
    rng = random.Random(0)
    found: list[int] = []
    while len(found) < LONG:
        for q, size in parts:
            found += [next((d for d in range(4) if rng.random() >= q), 4) for _ in range(size)]
    return found[:LONG]


TEXTS = {
    "never": [0] * LONG,
    "always": [4] * LONG,
    "good, then bad": [4] * (LONG // 2) + [0] * (LONG // 2),
    "bad, then good": [0] * (LONG // 10) + [4] * (9 * LONG // 10),
    "a third": chances((0.33, 1)),
    "a half": chances((0.5, 1)),
    "by chance, in blocks": chances((0.05, 200), (0.7, 200)),
    "by chance, in short blocks": chances((0.05, 20), (0.7, 50)),
} | {f"{bad} bad, {good} good": blocks(bad, good)[:LONG]
     for bad, good in ((5, 20), (20, 50), (50, 50), (50, 200), (200, 200), (200, 500), (500, 200), (200, 2000))}  # fmt: skip


@pytest.mark.parametrize("cost", [1.05, 1.2, 1.5, 2.0, 2.85])
@pytest.mark.parametrize("name", TEXTS)
def test_at_most_three_percent_are_lost_to_the_better_of_tree_and_plain(name: str, cost: float) -> None:
    text = TEXTS[name]
    tree, _held = guarded(text, 1.0, cost, DRAFT, None)
    seconds, _held = guarded(text, 1.0, cost, DRAFT, Guard())
    assert seconds <= 1.03 * min(tree, len(text))


@pytest.mark.parametrize("q", [0.0, 0.35, 0.65])
@pytest.mark.parametrize("cost", [1.25, 2.5])
def test_texts_of_a_thousand_tokens_are_long_enough_for_that(cost: float, q: float) -> None:
    """Over many texts, each with a guard that begins anew."""
    whole = chances((q, 1))
    parts = [whole[start : start + 1000] for start in range(0, LONG, 1000)]
    tree, seconds = (sum(guarded(part, 1.0, cost, DRAFT, guard)[0] for part in parts) for guard in (None, Guard()))
    assert seconds <= 1.03 * min(tree, len(whole))


def test_a_tree_that_does_not_pay_is_held_back_soon_and_tried_again() -> None:
    _seconds, held = guarded([0] * 3000, 1.0, 2.0, DRAFT, Guard())
    assert held[:4] == [True] * 4  # plain decoding is measured first
    assert sum(held[:200]) > 160
    assert not all(held[200:])
    assert sum(held) > 0.95 * len(held)


def test_a_tree_that_pays_is_kept_but_for_measuring() -> None:
    _seconds, held = guarded([4] * 30_000, 1.0, 1.5, DRAFT, Guard())
    assert sum(held) < 0.03 * len(held)


def test_states_are_values_and_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Guard().start()
    again = first.after(1, 0.02, False)
    assert first == Guard().start() != again
    assert OFF.after(1, 9.0, True) is OFF
    assert not OFF.held


class Clock:
    """Time that passes as a text says: a plain step takes 1, a step with a tree `cost`, whenever it is looked at."""

    def __init__(self, cost: float) -> None:
        self.cost, self.now, self.decoder = cost, 0.0, None

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("cost", [1.25, 3.0])
def test_the_decoder_does_what_the_replay_says(cost: float) -> None:
    """On a clock that is told the cost of every forward, the decoder holds back exactly the steps that the replay does."""
    table = [(token + 1) % 31 for token in range(31)]
    target = table_target(table, positions=4096)
    drafter = ScriptedDrafter(table, lambda last, _head: 0 if last < 8 else 30)
    clock = Clock(cost)
    decoder = Decoder(target, drafter, [chain(4)], Static(0), guard=Guard(), clock=clock)
    draft, verify = decoder.draft, decoder.verify

    def timed_draft(root, held=False):
        clock.now += 0.0 if held else DRAFT
        return draft(root, held)

    def timed_verify(index, *rest):
        clock.now += cost - DRAFT if index >= 0 else 1.0
        return verify(index, *rest)

    decoder.draft, decoder.verify = timed_draft, timed_verify  # type: ignore[method-assign]
    stop = StopRule(frozenset(), 1500)
    steps = list(decoder.steps([0], stop))
    assert [token for step in steps for token in step.tokens] == plain(target, [0], stop)
    accepts = [min(4, max(0, 8 - (1 + place) % 31)) for place in range(1500)]
    _seconds, held = guarded(accepts, 1.0, cost, DRAFT, Guard())
    assert [step.index == HELD for step in steps[:-5]] == held[: len(steps) - 5]
    assert {step.index for step in steps} == {0, HELD}


@pytest.mark.parametrize("architecture", ["hydra", "hydra++", "medusa"])
@pytest.mark.parametrize("seed", range(3))
def test_the_guard_never_changes_the_text(target: Target, architecture: str, seed: int) -> None:
    """On a clock without sense or reason, so that trees come and go at random."""
    rng = random.Random(seed)
    heads = random_heads(target, architecture)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += rng.expovariate(1)
        return now

    guard = Guard(window=1.0, probe=0.5, wait=2, samples=1, refresh=8, allowance=1e9)
    bank = [Topology(), chain(3), published_default()]
    decoder = Decoder(target, heads, bank, Ladder((1e-3, 1e-2), (0, 1, 2)), "path_value_2", guard=guard, clock=clock)
    stop = StopRule(frozenset(), 128)
    prompt = [rng.randrange(90) for _ in range(5)]
    steps = list(decoder.steps(prompt, stop))
    assert [token for step in steps for token in step.tokens] == plain(target, prompt, stop)
    indices = [step.index for step in steps]
    assert HELD in indices
    assert any(index >= 0 for index in indices)
