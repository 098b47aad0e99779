"""Files that are absent or complete, journals that forgive only a torn last line, and folders that one process writes at a time.

Knows nothing about what it stores.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entmtp_calib.errors import ArtefactError, EntmtpError

if TYPE_CHECKING:
    import numpy as np

try:
    import fcntl
except ImportError:  # Windows has other locks
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)
_held: dict[tuple[int, int], int] = {}  # folders of this process by device and inode, with what keeps their locks


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that `path` is either what it was or all of `data`, even after a crash.

    A link stays one, and what it points to is written. A device or a pipe is written to as it is: it is nothing to be replaced.
    """
    if path.is_dir():  # else the message would name the temporary file
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    place = path.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        if place.exists() and not place.is_file():
            place.write_bytes(data)
        else:
            _replace(place, data)
    except BaseException as error:
        raise _named(error, path) from None
    _log.info("wrote %s, %d bytes", path, len(data))


def _replace(place: Path, data: bytes) -> None:
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _named(error: BaseException, path: Path) -> BaseException:
    """An error that names the file: a full disk does not say where it is full."""
    if isinstance(error, OSError) and error.errno and not error.filename:
        error.filename = str(path)
    return error


def hold(folder: Path) -> None:
    """Keep other processes from writing in a folder until this one ends, however it ends.

    Two processes that append to one journal would give every measurement twice. Where the file system has no locks, nothing is
    done.

    Raises:
        EntmtpError: another process holds it.
    """
    if fcntl is None:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    place = os.fstat(descriptor)
    if (place.st_dev, place.st_ino) in _held:
        os.close(descriptor)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise EntmtpError(f"another process is at work in {folder}.", "Wait until it has ended, or use another folder.") from None
    except OSError:
        _log.info("%s cannot be locked", folder)
    _held[place.st_dev, place.st_ino] = descriptor


def to_json(value: Any) -> bytes:
    """Deterministic JSON: sorted keys, a list of numbers on one line, UTF-8, newline at the end. NaN and infinity are refused."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    # Line breaks inside strings are escaped, so a bracket followed by one opens a list.
    text = re.sub(r"\[\n[-+\d.eE,\s]+\]", lambda found: re.sub(r"\s+", "", found[0]).replace(",", ", "), text)
    return (text + "\n").encode()


def read_json(path: Path, what: str, hint: str = "") -> Any:
    """Read a JSON file.

    Args:
        what: what the file is to the user, as in "bank".

    Raises:
        ArtefactError: missing, unreadable or not JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ArtefactError(f"there is no {what} at {path}.", hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError(f"the {what} {path} cannot be read ({error}).", hint) from None
    try:
        return json.loads(text, object_pairs_hook=_once)
    except _Twice as twice:
        raise ArtefactError(f"the {what} {path} has the field {str(twice)[:40]!r} twice.", hint) from None
    except (ValueError, RecursionError):
        raise ArtefactError(f"the {what} {path} is not JSON or was cut short.", hint) from None


class _Twice(Exception):
    """A name that an object gives twice; which of the two is meant, nobody knows."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _value in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return found


def savable(value: Any) -> bool:
    """Whether `to_json` can write a value: no NaN, no infinity, no half of a surrogate pair."""
    try:
        to_json(value)
    except (ValueError, RecursionError):
        return False
    return True


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an uncompressed `.npz` atomically, with the same bytes for the same arrays."""
    write_atomically(path, arrays_bytes(arrays))


def arrays_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """The bytes of the file that `save_arrays` writes."""
    import io
    import zipfile

    import numpy as np

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))  # np.savez stores the clock
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, np.asarray(arrays[name], order="C"), allow_pickle=False)
    return buffer.getvalue()


def load_arrays(path: Path, what: str) -> dict[str, np.ndarray]:
    """Read what `save_arrays` wrote.

    Raises:
        ArtefactError: missing, damaged, or holding pickled objects.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise ArtefactError(f"there is no {what} at {path}.") from None
    except Exception:
        raise ArtefactError(f"the {what} {path} is damaged.", "Delete it and run the command again.") from None


class Journal:
    """Append-only JSON lines, flushed to disk line by line.

    A crash can tear the last line; that line is dropped and everything before it is kept. A bad line elsewhere is an error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = -1  # of the lines that were read or written here, so that appending does not read them all again

    def rows(self) -> list[dict[str, Any]]:
        """All whole lines.

        Raises:
            ArtefactError: a line other than the last is not JSON.
        """
        whole, newline, _torn = (self.path.read_bytes() if self.path.exists() else b"").rpartition(b"\n")
        found = [self._row(number, line) for number, line in enumerate(whole.split(b"\n"), 1) if line.strip()]
        self._end = len(whole + newline)
        return found

    def append(self, row: dict[str, Any]) -> None:
        """Add one line, after removing a torn one.

        Raises:
            ArtefactError: see `rows`.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(row, sort_keys=True, allow_nan=False).encode() + b"\n"
        if not self.path.exists() or self.path.stat().st_size != self._end:
            self.rows()
        try:
            with self.path.open("ab") as file:
                file.truncate(self._end)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _named(error, self.path) from None
        self._end += len(line)

    def _row(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ArtefactError(f"line {number} of {self.path} is damaged.", "Run again with --fresh.")
        return row


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, `sha256:…`."""
    return "sha256:" + hashlib.sha256(to_json(value)).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file's bytes, `sha256:…`."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
