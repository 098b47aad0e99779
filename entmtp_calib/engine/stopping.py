"""When a text ends: the one rule that every arm shares.

The earliest of end token, stop string and cap wins, wherever it falls inside an accepted path. Knows token ids, and for stop
strings a function that turns ids into text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_TAIL = 48  # tokens before the new ones that are decoded with them at least, so that they have their context


@dataclass(frozen=True, slots=True)
class StopRule:
    """End tokens, a cap on new tokens, and strings that end the text.

    Args:
        end_ids: ids after which nothing is written; the end token itself is part of the text.
        max_new_tokens: cap on new tokens, at least 1.
        strings: texts after whose last token nothing is written; that token is part of the text.
        decode: turns ids into text; needed for strings alone.
    """

    end_ids: frozenset[int]
    max_new_tokens: int
    strings: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def cut(self, before: Sequence[int], tokens: Sequence[int]) -> tuple[list[int], str]:
        """Keep of `tokens` what belongs to the text.

        Args:
            before: all new tokens before these.
            tokens: the next tokens, in order.

        Returns:
            The kept tokens and the reason: "end" (end token), "stop" (stop string), "length" (cap) or "" (the text goes on).
        """
        room = self.max_new_tokens - len(before)
        kept = list(tokens[:room])
        for index, token in enumerate(kept, 1):
            if token in self.end_ids:
                return kept[:index], "end"
            if self.strings and self._ends(before, kept[:index]):
                return kept[:index], "stop"
        return (kept, "length") if len(tokens) >= room else (kept, "")

    def _ends(self, before: Sequence[int], tokens: Sequence[int]) -> bool:
        assert self.decode is not None, "stop strings need a function that decodes"
        tail = max(_TAIL, *(len(string.encode()) for string in self.strings))  # a token is a byte at least
        text = self.decode([*before[-tail:], *tokens])
        return any(string in text for string in self.strings)
