"""Text from token ids as they come, so that the pieces joined equal the text of all ids.

Needs a tokenizer object only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_UNFINISHED = "�"  # what a tokenizer writes for the first bytes of a character


class TextStream:
    """Decodes ids step by step and holds back what is not a whole character yet."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # ids before it do not change the text of ids from `_shown` on
        self._shown = 0

    def push(self, ids: Iterable[int]) -> str:
        """Add ids and return the text that has become certain."""
        self._ids.extend(ids)
        before, after = self._decode(self._start, self._shown), self._decode(self._start, len(self._ids))
        if len(after) <= len(before) or after.endswith(_UNFINISHED):
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        return after[len(before) :]

    def finish(self) -> str:
        """The rest, whole or not."""
        before, after = self._decode(self._start, self._shown), self._decode(self._start, len(self._ids))
        self._start, self._shown = self._shown, len(self._ids)
        return after[len(before) :]

    def _decode(self, start: int, end: int) -> str:
        text: str = self._tokenizer.decode(self._ids[start:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
