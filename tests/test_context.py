"""Caches that are kept from text to text: what follows is what decoding from scratch gives."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from conftest import VOCAB, plain

from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.rehearsal import cache_error
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Static
from entmtp_calib.topology import Topology, published_default


@pytest.fixture
def decoder(target: Target, heads: DraftHeads) -> Decoder:
    return Decoder(target, heads, [published_default()], Static(0))


def test_every_turn_of_a_conversation_is_what_decoding_it_from_scratch_gives(target: Target, decoder: Decoder) -> None:
    rng, context, said = random.Random(0), decoder.new_context(), list[int]()
    for _turn in range(5):
        said += [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 9))]
        stop = StopRule(target.end_ids, rng.randrange(1, 14))
        held = context.shared(said)
        steps = list(decoder.steps(said, stop, context))
        fresh = list(decoder.steps(said, stop))
        assert [step.tokens for step in steps] == [step.tokens for step in fresh]
        assert [step.accepted for step in steps] == [step.accepted for step in fresh]  # the heads' memory is right too
        said += [token for step in steps for token in step.tokens]
        assert cache_error(target, context) < 1e-4
        assert held > 0 or _turn == 0


def test_what_is_held_is_not_computed_again(target: Target, decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    sound = Target.forward

    def forward(self: Target, ids: torch.Tensor, *rest: object, **more: object) -> object:
        rows.append(ids.shape[1])
        return sound(self, ids, *rest, **more)  # type: ignore[arg-type]

    context, prompt, stop = decoder.new_context(), list(range(6, 46)), StopRule(frozenset(), 8)
    text = [token for step in decoder.steps(prompt, stop, context) for token in step.tokens]
    monkeypatch.setattr(Target, "forward", forward)
    more = [*prompt, *text, 7, 8]
    decoder.reopen(context, more, stop)
    assert sum(rows) in (2, 3)  # the two new ones, and the answer's last if nothing was verified behind it


@pytest.mark.parametrize("change", [0, 3, 11])
def test_a_beginning_that_changes_is_forgotten_from_there_on(target: Target, decoder: Decoder, change: int) -> None:
    context, prompt, stop = decoder.new_context(), list(range(6, 26)), StopRule(frozenset(), 12)
    list(decoder.steps(prompt, stop, context))
    other = [*prompt]
    other[change] = 90
    assert context.shared(other) == change
    assert [token for step in decoder.steps(other, stop, context) for token in step.tokens] == plain(target, other, stop)
    assert context.shared(prompt) == change


def test_the_same_prompt_again_gives_the_same_answer(target: Target, decoder: Decoder) -> None:
    context, prompt, stop = decoder.new_context(), [9, 8, 7], StopRule(frozenset(), 20)
    texts = [[step.tokens for step in decoder.steps(prompt, stop, context)] for _ in range(3)]
    assert texts[0] == texts[1] == texts[2]
    assert context.shared([9]) == context.shared([1, 2]) == 0


@pytest.mark.parametrize("left_after", [0, 1, 4])
@pytest.mark.parametrize("place", ["between steps", "verify", "commit", "draft"])
def test_a_step_that_is_cut_short_does_no_harm(target: Target, decoder: Decoder, left_after: int, place: str) -> None:
    """Ctrl-C anywhere: what the context says it holds is right, and the conversation goes on from it."""
    context, prompt, stop = decoder.new_context(), [3, 1, 4, 1, 5], StopRule(frozenset(), 40)
    steps: Iterator = decoder.steps(prompt, stop, context)
    written = [token for _ in range(left_after) for token in next(steps).tokens]
    if place != "between steps":
        owner = context.cache if place == "commit" else decoder
        sound = getattr(owner, place)

        def cut(*words: object, **more: object) -> None:
            sound(*words, **more)
            raise KeyboardInterrupt

        setattr(owner, place, cut)
        with pytest.raises(KeyboardInterrupt):
            list(steps)
        setattr(owner, place, sound)
    if left_after:
        assert cache_error(target, context) < 1e-4
    more = [*prompt, *written, 60]
    assert [token for step in decoder.steps(more, stop, context) for token in step.tokens] == plain(target, more, stop)


def test_the_context_near_its_limit_goes_on_without_a_tree(target: Target, decoder: Decoder) -> None:
    context, stop = decoder.new_context(), StopRule(frozenset(), 64)
    prompt = [(7 * place) % VOCAB for place in range(100)]
    for size in (100, 110, 122, 127):
        wanted = plain(target, prompt[:size] if size <= 100 else [*prompt, *range(size - 100)], stop)
        ids = prompt[:size] if size <= 100 else [*prompt, *range(size - 100)]
        assert [token for step in decoder.steps(ids, stop, context) for token in step.tokens] == wanted
        assert len(wanted) == min(64, 128 - size)


def test_decoding_without_heads_keeps_its_cache_too(target: Target) -> None:
    decoder = Decoder(target, None, [Topology()], Static(0))
    context, said, stop = decoder.new_context(), [5, 6], StopRule(frozenset(), 9)
    for word in (11, 12, 13):
        said.append(word)
        text = [token for step in decoder.steps(said, stop, context) for token in step.tokens]
        assert text == plain(target, said, stop)
        said += text
