"""What was left out of a data set, by reason, and what is to be said of a file.

Counts; knows neither formats nor prompts. A reason is one line of a table however many rows it holds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

EXAMPLES = 5  # row numbers kept for each reason
_DETAILS = 8  # kinds of one reason that are told apart


@dataclass(slots=True)
class Tally:
    """What was skipped and what is to be said of a file.

    skipped: rows by reason; examples: numbers of the first few rows of each reason, from 1; notes: sentences about the file;
    row: number of the row that is being read.
    """

    skipped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    row: int = field(default=0, compare=False)

    def skip(self, reason: str, detail: str = "", row: int | None = None) -> None:
        """Count a row that is left out.

        Args:
            reason: why, in a few words.
            detail: what exactly, from the data; beyond a few kinds they share a line, so that bad data cannot fill the screen.
            row: its number; None for the row that is being read.
        """
        detail = "".join(letter if letter.isprintable() else "?" for letter in detail)
        name = f"{reason}: {detail}" if detail else reason
        if detail and name not in self.skipped and sum(old.startswith(f"{reason}: ") for old in self.skipped) >= _DETAILS:
            name = f"{reason}: others"
        self.skipped[name] += 1
        numbers = self.examples.setdefault(name, [])
        if len(numbers) < EXAMPLES:
            numbers.append(self.row if row is None else row)

    def damaged(self, note: str) -> None:
        """Say once that the file is damaged."""
        if not self.notes:
            self.notes.append(note)

    def reasons(self) -> str:
        """All reasons with their counts in one line, or an empty text."""
        return ", ".join(f"{reason} {count}" for reason, count in sorted(self.skipped.items()))
