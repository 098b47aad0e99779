"""When a text ends: the one rule that every arm shares.

Knows token ids only. The earliest of end token and cap wins, wherever it falls inside an accepted path.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopRule:
    """End tokens and a cap on new tokens.

    Args:
        end_ids: ids after which nothing is written; the end token itself is part of the text.
        max_new_tokens: cap on new tokens, at least 1.
    """

    end_ids: frozenset[int]
    max_new_tokens: int

    def cut(self, written: int, tokens: list[int]) -> tuple[list[int], str]:
        """Keep of `tokens` what belongs to the text.

        Args:
            written: number of new tokens before these.
            tokens: the next tokens, in order.

        Returns:
            The kept tokens and the reason: "end" (end token), "length" (cap) or "" (the text goes on).
        """
        room = self.max_new_tokens - written
        for index, token in enumerate(tokens[:room]):
            if token in self.end_ids:
                return tokens[: index + 1], "end"
        return (tokens[:room], "length") if len(tokens) >= room else (tokens, "")
