"""Laws of prompts as token ids: the template writes its own start, raw text gets the tokenizer's, and nothing is guessed."""

from __future__ import annotations

import pytest

from entmtp_calib.errors import UsageError
from entmtp_calib.template import STYLES, encode, resolve_style, template_about

START, ASK = 1000, 1001


class Fake:
    """A tokenizer of characters that adds a start id to plain text, and whose template writes one itself."""

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [START, *map(ord, text)]}

    def apply_chat_template(self, rows: list[dict[str, str]], add_generation_prompt: bool, **more: bool) -> list[int]:
        assert more == {"tokenize": True, "return_dict": False}
        if self.chat_template == "strict" and rows[0]["role"] != "user":
            raise ValueError("Conversation roles must alternate\nand more")
        if self.chat_template == "silent":
            raise KeyError
        text = "".join(f"<{row['role']}>{row['content']}" for row in rows)
        return [START, *map(ord, text), *([ASK] if add_generation_prompt else [])]


MESSAGES = (("system", "s "), ("user", "\n a\r\n\t"))


def test_chat_is_the_template_with_a_place_for_the_answer_and_one_start() -> None:
    ids = encode(MESSAGES, Fake("any"), "chat")
    assert ids == [START, *map(ord, "<system>s <user>\n a\r\n\t"), ASK]
    assert encode(MESSAGES, Fake("any")) == ids


def test_raw_is_the_text_byte_for_byte_with_the_tokenizers_own_start() -> None:
    for tokenizer in (Fake("any"), Fake(None)):
        assert encode(MESSAGES[1:], tokenizer, "raw") == [START, *map(ord, "\n a\r\n\t")]
        assert encode(MESSAGES, tokenizer, "raw") == [START, *map(ord, "s \n\n\n a\r\n\t")]


def test_auto_is_chat_exactly_where_there_is_a_template() -> None:
    assert [resolve_style(Fake("any"), style) for style in STYLES] == ["chat", "chat", "raw"]
    assert [resolve_style(Fake(None), style) for style in ("auto", "raw")] == ["raw", "raw"]
    assert resolve_style(Fake(""), "auto") == resolve_style(object(), "auto") == "raw"
    assert encode(MESSAGES, Fake(None)) == encode(MESSAGES, Fake(None), "raw")


def test_chat_without_a_template_is_refused_with_the_way_out() -> None:
    for use in (lambda: encode(MESSAGES, Fake(None), "chat"), lambda: template_about(Fake(None), "chat")):
        with pytest.raises(UsageError, match="no chat template") as error:
            use()
        assert "raw" in error.value.hint


@pytest.mark.parametrize("style", ["", "Chat", "stripped", "vicuna"])
def test_an_unknown_style_is_refused_by_name(style: str) -> None:
    with pytest.raises(UsageError, match=f"'{style}'") as error:
        encode(MESSAGES, Fake("any"), style)
    assert all(known in error.value.hint for known in STYLES)


def test_a_template_that_refuses_is_told_in_its_own_first_line() -> None:
    with pytest.raises(UsageError, match=r"Conversation roles must alternate\.$") as error:
        encode(MESSAGES, Fake("strict"))
    assert "raw" in error.value.hint
    assert encode(MESSAGES[1:], Fake("strict"))[-1] == ASK


def test_a_template_that_fails_without_a_word_is_told_by_its_kind() -> None:
    with pytest.raises(UsageError, match="KeyError"):
        encode(MESSAGES, Fake("silent"))


def test_the_hash_tells_styles_and_templates_apart_and_nothing_else() -> None:
    hashes = [template_about(Fake(template), style)["hash"] for template, style in (("a", "chat"), ("b", "chat"), ("a", "raw"))]
    assert len(set(hashes)) == 3
    assert template_about(Fake("a"), "auto") == template_about(Fake("a"), "chat") == {"style": "chat", "hash": hashes[0]}
    assert template_about(Fake("b"), "raw") == template_about(Fake(None), "auto") == {"style": "raw", "hash": hashes[2]}
