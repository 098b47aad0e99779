"""Rows of JSON files as a stream: arrays, JSON Lines, gzip, byte order marks, and files that are damaged.

Knows JSON and nothing of prompts. What cannot be used is counted, never raised.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from entmtp_calib.errors import ArtefactError


@dataclass(slots=True)
class Tally:
    """What was skipped, by reason, and what is to be said of a file."""

    skipped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def damaged(self, note: str) -> None:
        """Say once that the file is damaged."""
        if not self.notes:
            self.notes.append(note)


def json_rows(path: Path, found: Tally) -> Iterator[dict[str, Any]]:
    """Objects of a JSON Lines file or of a JSON array, read as a stream; gzip by content; what is not an object is counted."""
    if not path.is_file():
        raise ArtefactError(f"there is no file {path}.", "Give the path of a JSON or JSONL file.")
    with path.open("rb") as raw:
        zipped = raw.peek(2)[:2] == b"\x1f\x8b"
        source = io.BufferedReader(_Unzipped(raw, found)) if zipped else raw
        with io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape") as file:
            head = file.read(1)
            while head.isspace():
                head = file.read(1)
            for row in _array_then_lines(file, found) if head == "[" else _lines(head, file, found):
                if isinstance(row, dict):
                    yield row
                else:
                    found.skipped["row that is not an object"] += 1


class _Unzipped(io.RawIOBase):
    """A gzip stream that ends where it is damaged, with a note, instead of raising."""

    def __init__(self, raw: IO[bytes], found: Tally) -> None:
        self._zip = gzip.GzipFile(fileobj=raw)
        self._found = found

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._zip.read1(min(len(buffer), 1 << 16))
        except (EOFError, OSError, zlib.error):
            self._found.damaged("the compressed file is damaged; all whole records before the damage are used")
            return 0
        buffer[: len(data)] = data
        return len(data)


def _lines(head: str, file: Iterable[str], found: Tally) -> Iterator[Any]:
    for line in file:
        line, head = head + line, ""
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            found.skipped["line that is not JSON"] += 1


def _array_then_lines(file: IO[str], found: Tally) -> Iterator[Any]:
    """Items of an array, then what may follow it as lines."""
    rest = yield from _array_items(file, found)
    yield from _lines("", (rest + file.readline()).splitlines(), found)
    yield from _lines("", file, found)


def _array_items(file: IO[str], found: Tally, chunk: int = 1 << 20) -> Generator[Any, None, str]:
    """Items of a JSON array whose `[` was read; a damaged file gives all whole records before the damage and one note.

    Returns:
        What was read beyond the array.
    """
    decoder = json.JSONDecoder()
    buffer, start = "", 0
    while True:
        while start < len(buffer) and buffer[start] in " \t\r\n,":
            start += 1
        if start < len(buffer) and buffer[start] == "]":
            return buffer[start + 1 :]
        try:
            item, start = decoder.raw_decode(buffer, start)
        except (ValueError, RecursionError):
            more = file.read(chunk)
            if not more:
                found.damaged("the file stops inside a record or is damaged there; all whole records before it are used")
                return ""
            buffer, start = buffer[start:] + more, 0
            continue
        yield item
