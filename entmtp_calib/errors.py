"""The errors that users meet: a sentence, a next step and an exit code.

Knows nothing about how they are shown; `commands` turns them into text. Anything else that escapes is a bug.
"""

from __future__ import annotations


class EntmtpError(Exception):
    """Something went wrong that a user can act on.

    Args:
        message: one sentence that says what is wrong, with the values involved.
        hint: the next step, or an empty string.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(EntmtpError):
    """An option or argument that cannot be right, found before any work starts."""

    exit_code = 2


class ArtefactError(EntmtpError):
    """A file or folder is missing, damaged, foreign, or belongs to another model, run or version."""

    exit_code = 3


class CheckFailed(EntmtpError):
    """`--check` or `verify` found a difference."""

    exit_code = 4


def did_you_mean(name: str, known: list[str]) -> str:
    """A hint that names the closest known word, or all of them when none is close."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(sorted(known))}."
