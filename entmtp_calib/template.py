"""From messages to token ids, once and the same everywhere: chat template or raw text.

Needs a tokenizer object and nothing else; imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from entmtp_calib.errors import UsageError
from entmtp_calib.storage import digest

STYLES = ("auto", "chat", "raw")


def encode(messages: Sequence[tuple[str, str]], tokenizer: Any, style: str = "auto") -> list[int]:
    """Token ids of a conversation, ready for the model's answer.

    Args:
        messages: `(role, text)`, text kept byte for byte.
        style: "chat" uses the tokenizer's template, which writes its own start token; "raw" joins the texts and adds the
            tokenizer's usual special tokens; "auto" is chat where there is a template.

    Raises:
        UsageError: unknown style, chat without a template, or a template that refuses the messages.
    """
    if resolve_style(tokenizer, style) == "raw":
        return list(tokenizer("\n\n".join(text for _role, text in messages))["input_ids"])
    rows = [{"role": role, "content": text} for role, text in messages]
    try:
        return list(tokenizer.apply_chat_template(rows, add_generation_prompt=True, tokenize=True, return_dict=False))
    except Exception as error:  # templates raise whatever Jinja raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"the chat template refuses this prompt: {reason}.", "Use --prompt-style raw.") from error


def resolve_style(tokenizer: Any, style: str) -> str:
    """Say "chat" or "raw" for a style that may be "auto"."""
    if style not in STYLES:
        raise UsageError(f"unknown prompt style {style!r}.", f"Known: {', '.join(STYLES)}.")
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if style == "chat" and not has_template:
        raise UsageError("the tokenizer has no chat template.", "Use --prompt-style raw.")
    return "chat" if has_template and style != "raw" else "raw"


def template_about(tokenizer: Any, style: str) -> dict[str, str]:
    """Resolved style and a hash of what it depends on, for files that must match."""
    resolved = resolve_style(tokenizer, style)
    return {"style": resolved, "hash": digest([resolved, tokenizer.chat_template if resolved == "chat" else ""])}
