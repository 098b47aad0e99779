"""Log lines of the library and of what commands said: on stderr with --verbose, and in `log.txt` of a run folder."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path

from entmtp_calib.provenance import versions
from entmtp_calib.settings import PREFIX, find_settings

_ROOT = logging.getLogger("entmtp_calib")
_SAID = logging.getLogger("entmtp_calib.commands")
_FORM = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
_FILE = "log.txt"
_ROOT.addHandler(logging.NullHandler())  # without any handler, Python prints warnings itself


@contextmanager
def logged(verbose: bool) -> Iterator[None]:
    """Collect log lines while a command runs; they are kept until `log_to` says where they belong, and dropped otherwise."""
    kept = MemoryHandler(10_000, flushLevel=logging.CRITICAL + 1, flushOnClose=False)
    handlers: list[logging.Handler] = [kept]
    if verbose:
        shown = logging.StreamHandler(sys.stderr)
        shown.setFormatter(_FORM)
        shown.addFilter(lambda record: record.name != _SAID.name)  # was on stderr when it was said
        handlers.append(shown)
    before = _ROOT.level
    _ROOT.setLevel(logging.INFO)
    for handler in handlers:
        _ROOT.addHandler(handler)
    _SAID.info("command: %s", " ".join(sys.argv))
    try:
        yield
    finally:
        _ROOT.setLevel(before)
        for handler in handlers:
            _ROOT.removeHandler(handler)
        if kept.target is not None:
            kept.target.close()
        kept.close()


def log_to(folder: Path) -> None:
    """Append what was collected, and all that comes, to the log of a run folder."""
    for handler in _ROOT.handlers:
        if isinstance(handler, MemoryHandler) and handler.target is None:
            file = logging.FileHandler(folder / _FILE, encoding="utf-8")
            file.setFormatter(_FORM)
            handler.setTarget(file)
            handler.flush()
            handler.flushLevel = logging.NOTSET  # from here on line by line
            _SAID.info("versions: %s", versions())
            _SAID.info("settings: %s", settings())


def settings() -> dict[str, str]:
    """The file that sets options, and the variables of ours."""
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIX)}
    return {"file": str(find_settings(os.environ, Path()) or "none")} | variables


def note(level: int, text: str, trace: bool = False) -> None:
    """A line that a command said.

    Args:
        trace: whether the error that is being handled follows with its traceback.
    """
    _SAID.log(level, text, exc_info=trace)
