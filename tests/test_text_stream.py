"""Laws of streamed text: the pieces joined are the text of all ids, and no piece ends inside a character."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from conftest import byte_tokenizer
from transformers import PreTrainedTokenizerFast

from entmtp_calib.text_stream import TextStream

TEXT = "Zürich 雪 naïve — 👩‍👩‍👧 e\u0301 \u2028\n\tx  y\r\n🏳️‍🌈."


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer()


def pieces(tokenizer: Any, ids: list[int], cuts: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    bounds = [0, *sorted(cuts), len(ids)]
    return [*(stream.push(ids[a:b]) for a, b in itertools.pairwise(bounds)), stream.finish()]


def whole(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def test_a_character_appears_when_its_last_byte_does(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer("é雪👧")["input_ids"]
    assert pieces(tokenizer, ids, list(range(1, len(ids)))) == ["", "é", "", "", "雪", "", "", "", "👧", ""]


def test_pieces_join_to_the_text_however_it_is_cut(tokenizer: PreTrainedTokenizerFast) -> None:
    rng = random.Random(0)
    ids = tokenizer(TEXT)["input_ids"]
    for _ in range(60):
        found = pieces(tokenizer, ids, [rng.randrange(len(ids) + 1) for _ in range(rng.randrange(len(ids)))])
        assert "".join(found) == TEXT
        assert not any("\ufffd" in piece for piece in found)


def test_pieces_of_any_bytes_join_to_what_the_tokenizer_writes(tokenizer: PreTrainedTokenizerFast) -> None:
    rng = random.Random(1)
    every = list(range(len(tokenizer)))
    for _ in range(200):
        ids = rng.choices(every, k=rng.randrange(12)) + tokenizer(rng.choice(["é", "雪", "a\ufffdb", ""]))["input_ids"]
        cuts = [rng.randrange(len(ids) + 1) for _ in range(rng.randrange(6))]
        assert "".join(pieces(tokenizer, ids, cuts)) == whole(tokenizer, ids)


def test_an_unfinished_character_is_held_back_and_shown_at_the_end(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer("a雪")["input_ids"][:-1]
    stream = TextStream(tokenizer)
    assert [stream.push([token]) for token in ids] == ["a", "", ""]
    assert stream.finish() == whole(tokenizer, ids)[1:] != ""
    assert stream.finish() == ""


def test_end_tokens_are_not_text(tokenizer: PreTrainedTokenizerFast) -> None:
    end = tokenizer.eos_token_id
    ids = [end, *tokenizer("a雪")["input_ids"], end]
    assert "".join(pieces(tokenizer, ids, list(range(len(ids))))) == "a雪"


def test_nothing_gives_nothing(tokenizer: PreTrainedTokenizerFast) -> None:
    assert pieces(tokenizer, [], []) == ["", ""]


class Words:
    """A tokenizer of words that, like sentence-piece ones, drops the space before the first of what it decodes."""

    words = ("the", "cat", "", "sat")

    def decode(self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert skip_special_tokens
        assert not clean_up_tokenization_spaces
        return "".join(" " + self.words[token] for token in ids if self.words[token]).removeprefix(" ")


def test_spaces_between_words_survive_a_tokenizer_that_drops_the_first() -> None:
    rng = random.Random(2)
    for _ in range(60):
        ids = rng.choices(range(4), k=rng.randrange(8))
        assert "".join(pieces(Words(), ids, list(range(len(ids))))) == whole(Words(), ids)


def test_a_long_text_is_decoded_in_short_windows() -> None:
    longest = 0

    class Counting(Words):
        def decode(self, ids: list[int], **options: bool) -> str:  # type: ignore[override]
            nonlocal longest
            longest = max(longest, len(ids))
            return super().decode(ids, **options)

    stream = TextStream(Counting())
    for _ in range(500):
        stream.push([1])
    assert longest <= 3
