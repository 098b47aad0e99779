"""Rows of JSON files as a stream: arrays, JSON Lines, gzip, byte order marks, and files that are damaged.

Knows JSON and nothing of prompts. What cannot be used is counted, never raised.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from entmtp_calib.calibrate.tally import Tally
from entmtp_calib.errors import ArtefactError


def json_rows(path: Path, found: Tally) -> Iterator[dict[str, Any]]:
    """Objects of a JSON Lines file or of a JSON array, read as a stream; gzip by content; what is not an object is counted."""
    with open_text(path, found) as file:
        head = file.read(1)
        while head.isspace():
            head = file.read(1)
        for row in _array_then_lines(file, found) if head == "[" else _lines(head, file, found):
            if isinstance(row, dict):
                yield row
            else:
                found.skip("row that is not an object")


_FOREIGN = {b"PK\x03\x04": "ZIP", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "Zstandard", b"PAR1": "Parquet",
            b"ARROW1": "Arrow", b"SQLite format 3": "SQLite", b"%PDF": "PDF", b"\x89HDF": "HDF5"}  # fmt: skip
"""First bytes of files that hold no text."""
_MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
"""Byte order marks of other encodings, longest first."""


def _encoding(head: bytes, path: Path) -> str:
    """The encoding that a text's first bytes tell; UTF-8 without a mark of another.

    Raises:
        ArtefactError: they are those of another kind of file.
    """
    for mark, kind in _FOREIGN.items():
        if head.startswith(mark):
            raise ArtefactError(f"{path} is a {kind} file.", "Unpack or save it as JSON, JSONL or CSV; gzip may stay.")
    return next((encoding for mark, encoding in _MARKS.items() if head.startswith(mark)), "utf-8-sig")


codecs.register_error("entmtp-half", lambda error: ("\udcff", error.end))  # type: ignore[attr-defined]


@contextmanager
def open_text(path: Path, found: Tally, newline: str | None = None) -> Iterator[IO[str]]:
    """A text file in UTF-8, or what its byte order mark says, unzipped if need be; what is no text becomes half a surrogate pair.

    Args:
        newline: as for `open`.

    Raises:
        ArtefactError: there is no such file, or one of another kind.
    """
    if not path.is_file():
        raise ArtefactError(f"there is no file {path}.", "Give the path of a JSON, JSONL or CSV file.")
    with path.open("rb") as raw:
        zipped = raw.peek(2)[:2] == b"\x1f\x8b"
        source = io.BufferedReader(_Unzipped(raw, found)) if zipped else raw
        with io.TextIOWrapper(source, _encoding(source.peek(16)[:16], path), "entmtp-half", newline) as file:
            yield file


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
        found.row += 1
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            found.skip("line that is not JSON")
            continue
        yield row


def _array_then_lines(file: IO[str], found: Tally) -> Iterator[Any]:
    """Items of an array, then what may follow it as lines."""
    rest = yield from _array_items(file, found)
    if rest is None:
        return
    yield from _lines("", (rest + file.readline()).split("\n"), found)
    yield from _lines("", file, found)


def _array_items(file: IO[str], found: Tally, chunk: int = 1 << 20) -> Generator[Any, None, str | None]:
    """Items of a JSON array whose `[` was read; a damaged file gives all whole records before the damage and one note.

    Returns:
        What was read beyond the array; None if it is damaged, and then what follows means nothing.
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
        except (ValueError, RecursionError) as error:
            # Reading twice as much each time keeps a long record from being tried once for every chunk.
            more = file.read(max(chunk, len(buffer) - start)) if _may_go_on(error, len(buffer)) else ""
            if not more:
                found.damaged("the file stops inside a record or is damaged there; all whole records before it are used")
                return None
            buffer, start = buffer[start:] + more, 0
            continue
        found.row += 1
        yield item


def _may_go_on(error: Exception, length: int) -> bool:
    """Whether a record fails only because its end was not read yet: an open string, or a fault at the end of what was read.

    Otherwise it is damaged, and reading on would only gather the rest of the file in memory.
    """
    return isinstance(error, json.JSONDecodeError) and (
        error.msg.startswith("Unterminated string") or error.pos >= length - len("-Infinity")
    )
