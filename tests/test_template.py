"""Laws of prompts as token ids: the template writes its own start, other text gets the tokenizer's, and nothing is guessed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from entmtp_calib.errors import UsageError
from entmtp_calib.template import STYLES, TemplateRefusal, encode, resolve_style, template_about

START, ASK = 1000, 1001


class Fake:
    """A tokenizer of characters that adds a start id to plain text, and whose template writes one itself."""

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def __call__(self, text: str, verbose: bool, add_special_tokens: bool = True) -> dict[str, list[int]]:
        assert not verbose
        return {"input_ids": [START] * add_special_tokens + [*map(ord, text)]}

    def apply_chat_template(self, rows: list[dict[str, str]], add_generation_prompt: bool, tokenize: bool) -> str:
        assert not tokenize
        if self.chat_template == "strict" and rows[0]["role"] != "user":
            raise ValueError("Conversation roles must alternate\nand more")
        if self.chat_template == "silent":
            raise KeyError
        known = ("assistant",) if self.chat_template == "loose" else ("system", "user", "assistant")
        text = "".join(f"<{row['role']}>{row['content'].strip()}" for row in rows if row["role"] in known)
        return chr(START) + text + chr(ASK) * add_generation_prompt


def bos_tokenizer(template: str | None = None, **more: Any) -> PreTrainedTokenizerFast:
    """A real tokenizer of bytes that adds `<s>` to plain text, as Llama's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(["<s>", "</s>", *alphabet])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", **more)
    made.chat_template = template
    return made


MESSAGES = (("system", "s"), ("user", "\n a\r\n\t."))
WRITES_START = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]"
ALTERNATES = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}{{ m['content'] }}{% endfor %}"
)


def test_chat_is_the_template_with_a_place_for_the_answer_and_one_start() -> None:
    messages = (("system", "s"), ("user", "a"))
    ids = encode(messages, Fake("any"), "chat")
    assert ids == [START, *map(ord, "<system>s<user>a"), ASK]
    assert encode(messages, Fake("any")) == ids


def test_raw_is_the_text_byte_for_byte_with_the_tokenizers_own_start() -> None:
    for tokenizer in (Fake("any"), Fake(None)):
        assert encode(MESSAGES[1:], tokenizer, "raw") == [START, *map(ord, "\n a\r\n\t.")]
        assert encode(MESSAGES, tokenizer, "raw") == [START, *map(ord, "s\n\n\n a\r\n\t.")]


@pytest.mark.parametrize("style", ["chat", "raw", "vicuna"])
def test_there_is_exactly_one_start_whoever_writes_it_and_white_space_is_kept(style: str) -> None:
    tokenizer = bos_tokenizer(WRITES_START)
    ids = encode(MESSAGES, tokenizer, style)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id
    assert MESSAGES[1][1] in tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def test_chat_is_what_the_tokenizer_itself_makes_of_the_template() -> None:
    tokenizer = bos_tokenizer(WRITES_START)
    rows = [{"role": role, "content": text} for role, text in MESSAGES]
    whole = tokenizer.apply_chat_template(rows, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert encode(MESSAGES, tokenizer, "chat") == list(whole)


def test_vicuna_is_written_as_version_1_1_was_trained() -> None:
    tokenizer = bos_tokenizer()
    chat = (("user", "Hi "), ("assistant", "Yes?"), ("user", "Bye"))
    ids = encode(chat, tokenizer, "vicuna")
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == (
        "<s>A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and "
        "polite answers to the user's questions. USER: Hi  ASSISTANT: Yes?</s>USER: Bye ASSISTANT:"
    )
    assert ids.count(tokenizer.eos_token_id) == 1
    own = encode((("system", "Be brief."), ("user", "{} Hi")), tokenizer, "vicuna")
    assert tokenizer.decode(own, clean_up_tokenization_spaces=False) == "<s>Be brief. USER: {} Hi ASSISTANT:"


@pytest.mark.parametrize("name", ["lmsys/vicuna-7b-v1.5", "models/vicuna", "Llama2-chat", "plain"])
def test_no_style_is_read_from_a_name(name: str) -> None:
    tokenizer = bos_tokenizer(name_or_path=name)
    assert template_about(tokenizer, "auto") == template_about(bos_tokenizer(), "raw")
    assert encode(MESSAGES, tokenizer) == encode(MESSAGES, tokenizer, "raw")
    with pytest.raises(UsageError):
        encode(MESSAGES, tokenizer, "chat")


def test_auto_is_chat_exactly_where_there_is_a_template() -> None:
    assert [resolve_style(Fake("any"), style) for style in STYLES] == ["chat", "chat", "raw", "vicuna"]
    assert [resolve_style(Fake(None), style) for style in ("auto", "raw", "vicuna")] == ["raw", "raw", "vicuna"]
    assert resolve_style(Fake(""), "auto") == resolve_style(object(), "auto") == "raw"
    assert encode(MESSAGES, Fake(None)) == encode(MESSAGES, Fake(None), "raw")


def test_chat_without_a_template_is_refused_with_the_ways_out() -> None:
    for use in (lambda: encode(MESSAGES, Fake(None), "chat"), lambda: template_about(Fake(None), "chat")):
        with pytest.raises(UsageError, match="no chat template") as error:
            use()
        assert "raw" in error.value.hint
        assert "vicuna" in error.value.hint


@pytest.mark.parametrize("style", ["", "Chat", "stripped", "vicuna_v1.1"])
def test_an_unknown_style_is_refused_by_name(style: str) -> None:
    with pytest.raises(UsageError, match=f"'{style}'") as error:
        encode(MESSAGES, Fake("any"), style)
    assert all(known in error.value.hint for known in STYLES)


def test_a_template_that_refuses_is_told_in_its_own_first_line() -> None:
    with pytest.raises(TemplateRefusal, match=r"Conversation roles must alternate\.$") as error:
        encode(MESSAGES, Fake("strict"))
    assert "raw" in error.value.hint
    assert encode(MESSAGES[1:], Fake("strict"))[-1] == ASK


def test_a_real_template_that_insists_on_alternating_roles_refuses_and_accepts() -> None:
    tokenizer = bos_tokenizer(ALTERNATES)
    for bad in (MESSAGES, (("user", "a"), ("user", "b"))):
        with pytest.raises(TemplateRefusal, match="Conversation roles must alternate"):
            encode(bad, tokenizer)
    assert encode((("user", "a"), ("assistant", "b"), ("user", "c")), tokenizer)


def test_a_template_that_fails_without_a_word_is_told_by_its_kind() -> None:
    with pytest.raises(TemplateRefusal, match="KeyError"):
        encode(MESSAGES, Fake("silent"))


def test_a_template_that_passes_over_the_question_is_refused() -> None:
    with pytest.raises(TemplateRefusal, match="leaves out"):
        encode(MESSAGES, Fake("loose"))
    only_assistants = bos_tokenizer("{{ bos_token }}{% for m in messages if m['role'] == 'gpt' %}{{ m['content'] }}{% endfor %}")
    with pytest.raises(TemplateRefusal, match="leaves out"):
        encode(MESSAGES, only_assistants)


@pytest.mark.parametrize("style", ["raw", "chat", "vicuna"])
def test_the_tokenizers_own_limit_neither_cuts_nor_warns(style: str, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = bos_tokenizer(WRITES_START, model_max_length=16)
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)  # transformers keeps its records from the root logger
    try:
        ids = encode((("user", "long " * 100),), tokenizer, style)
    finally:
        logger.removeHandler(caplog.handler)
    assert len(ids) > 500
    assert caplog.records == []


def test_the_hash_tells_styles_and_templates_apart_and_nothing_else() -> None:
    uses = (("a", "chat"), ("b", "chat"), ("a", "raw"), ("a", "vicuna"))
    hashes = [template_about(Fake(template), style)["hash"] for template, style in uses]
    assert len(set(hashes)) == 4
    assert template_about(Fake("a"), "auto") == template_about(Fake("a"), "chat") == {"style": "chat", "hash": hashes[0]}
    assert template_about(Fake("b"), "raw") == template_about(Fake(None), "auto") == {"style": "raw", "hash": hashes[2]}
    assert template_about(object(), "vicuna") == {"style": "vicuna", "hash": hashes[3]}
