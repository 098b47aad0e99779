"""From a recorded conversation to the prompts that it holds: its first question, or every one.

Knows the spellings of roles and turns; what cannot be used is counted with its reason. Text is kept byte for byte.
"""

from __future__ import annotations

from typing import Any

from entmtp_calib.calibrate.tally import Tally

Messages = tuple[tuple[str, str], ...]
"""`(role, text)` in order; roles are system, user and assistant."""

TURNS = ("first", "all")
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
          "bing": "assistant", "bard": "assistant", "system": "system"}  # fmt: skip


def prompts_in(row: dict[str, Any], turns: str, found: Tally) -> list[Messages]:
    """Prompts of one row with `conversations` or `messages`.

    Turns of one person in a row are one turn. Answers before the first question are left out: what they answer is not there.

    Args:
        turns: "first" for what precedes the first answer; "all" for every question with all that was said before it.

    Returns:
        The prompts; none, and the reason is counted, if the row holds none. A fault behind a question ends the conversation
        there, and that is counted too.
    """
    conversation: Any = row.get("conversations") or row.get("messages", row.get("conversations"))
    reason, detail = _why_unusable(conversation), ""
    prompts: list[Messages] = []
    system = row.get("system")
    messages: list[tuple[str, str]] = [("system", system)] if isinstance(system, str) and system else []
    asked = False
    for turn in conversation if not reason else ():
        role, text = _read(turn)
        if role == "assistant":
            if asked:
                prompts.append(tuple(messages))
            asked = False
            if turns == "first":
                break
            if not prompts:
                continue
        reason, detail = _fault(turn, role, text)
        if reason:
            break
        _append(messages, str(role), text)
        asked = asked or (role == "user" and bool(text.strip()))
    if asked and not reason:
        prompts.append(tuple(messages))
    if not prompts:
        found.skip(reason or "no user turn before the first answer", detail)
    elif reason:
        found.skip(f"end of a conversation, {reason}", detail)
    return prompts


def _read(turn: dict[str, Any]) -> tuple[str | None, Any]:
    role = _ROLES.get(str(turn.get("from") or turn.get("role")).lower())
    return role, turn["value"] if turn.get("value") is not None else turn.get("content")


def _fault(turn: dict[str, Any], role: str | None, text: Any) -> tuple[str, str]:
    """Reason and detail why a turn cannot be used; two empty texts if it can."""
    if role is None:
        return "unknown role", str(turn.get("from") or turn.get("role") or "")[:20]
    return ("", "") if isinstance(text, str) else ("turn without text", "")


def _append(messages: list[tuple[str, str]], role: str, text: str) -> None:
    if messages and messages[-1][0] == role:
        messages[-1] = (role, messages[-1][1] + "\n\n" + text)
    else:
        messages.append((role, text))


def _why_unusable(turns: object) -> str:
    if not isinstance(turns, list):
        return "no list of turns"
    if not turns:
        return "empty conversation"
    return "" if all(isinstance(turn, dict) for turn in turns) else "turn that is not an object"
