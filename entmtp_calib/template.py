"""From messages to token ids, once and the same everywhere: chat template, Vicuna's built-in one, or raw text.

Needs a tokenizer object and nothing else; imports neither torch nor transformers. A style is asked for by name or follows from
the tokenizer having a template; it is never guessed from a model's name or path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from entmtp_calib.errors import UsageError
from entmtp_calib.storage import digest

STYLES = ("auto", "chat", "raw", "vicuna")
RESOLVED = ("chat", "raw", "vicuna")
VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
_VICUNA_TURNS = {"user": "USER: {}", "assistant": " ASSISTANT: {}</s>"}


class TemplateRefusal(UsageError):
    """The chat template does not take these messages; other messages may pass.

    Attributes:
        reason: what the template said, without the prompt.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the chat template refuses this prompt: {reason}.", "Use --prompt-style raw.")
        self.reason = reason


def encode(messages: Sequence[tuple[str, str]], tokenizer: Any, style: str = "auto") -> list[int]:
    """Token ids of a conversation, ready for the model's answer.

    Args:
        messages: `(role, text)`, text kept byte for byte.
        style: "chat" uses the tokenizer's template, which writes its own start token; "vicuna" writes the turns as Vicuna v1.1
            does, "raw" joins the texts, and both add the tokenizer's usual special tokens; "auto" is chat where there is a
            template and raw elsewhere.

    Raises:
        UsageError: unknown style, or chat without a template. TemplateRefusal: the template does not take the messages.
    """
    resolved = resolve_style(tokenizer, style)
    if resolved == "chat":
        return _ids(tokenizer, _render(messages, tokenizer), add_special_tokens=False)
    return _ids(tokenizer, _vicuna(messages) if resolved == "vicuna" else "\n\n".join(text for _role, text in messages))


def resolve_style(tokenizer: Any, style: str) -> str:
    """Say "chat", "raw" or "vicuna" for a style that may be "auto".

    Raises:
        UsageError: unknown style, or chat without a template.
    """
    check_style(style)
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if style == "chat" and not has_template:
        raise UsageError("the tokenizer has no chat template.", "Use --prompt-style raw, or vicuna for a model of that family.")
    if style == "auto":
        return "chat" if has_template else "raw"
    return style


def check_style(style: str) -> None:
    """Refuse a style that is not known.

    Raises:
        UsageError: it is not.
    """
    if style not in STYLES:
        raise UsageError(f"unknown prompt style {style!r}.", f"Known: {', '.join(STYLES)}.")


def template_about(tokenizer: Any, style: str) -> dict[str, str]:
    """Resolved style and a hash of what it depends on, for files that must match."""
    resolved = resolve_style(tokenizer, style)
    text = {"chat": getattr(tokenizer, "chat_template", ""), "vicuna": [VICUNA_SYSTEM, _VICUNA_TURNS], "raw": ""}[resolved]
    return {"style": resolved, "hash": digest([resolved, text])}


def _ids(tokenizer: Any, text: str, **options: bool) -> list[int]:
    """Token ids; the tokenizer's own warning of long texts is off, since the model's limit counts and not the tokenizer's."""
    return list(tokenizer(text, verbose=False, **options)["input_ids"])


def _render(messages: Sequence[tuple[str, str]], tokenizer: Any) -> str:
    """The text that the tokenizer's template makes of the messages, with a place for the answer."""

    def render(more: str) -> str:
        rows = [{"role": role, "content": text} for role, text in messages]
        rows[-1]["content"] += more
        return str(tokenizer.apply_chat_template(rows, add_generation_prompt=True, tokenize=False))

    try:
        text, other = render(""), render("x")
    except Exception as error:  # templates raise whatever Jinja raises
        raise TemplateRefusal((str(error).splitlines() or [type(error).__name__])[0]) from error
    if text == other:  # loose templates pass over a role that they do not know
        raise TemplateRefusal("it leaves out the last message")
    return text


def _vicuna(messages: Sequence[tuple[str, str]]) -> str:
    """Turns as Vicuna v1.1 was trained on them; a conversation's own system text stands for the usual one."""
    system = "\n\n".join(text for role, text in messages if role == "system")
    turns = [_VICUNA_TURNS[role].replace("{}", text) for role, text in messages if role != "system"]
    return f"{system or VICUNA_SYSTEM} {''.join(turns)} ASSISTANT:"
