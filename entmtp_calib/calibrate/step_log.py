"""What happened in every step of a text: a table for files and figures for people.

Is told the steps and the seconds; decodes nothing. pandas is imported only when a file is written.
"""

from __future__ import annotations

import importlib.util
import io
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from entmtp_calib.engine.decoder import HELD, NO_ROOM, Step
from entmtp_calib.errors import UsageError
from entmtp_calib.storage import write_atomically

COLUMNS = ("text", "step", "position", "signal", "tree", "accepted", "tokens", "seconds")
NOT_TREES = {NO_ROOM: "no room", HELD: "held by guard"}
_ENDINGS = (".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class Figures:
    """One text in figures.

    seconds: prefill included; speedup: tokens per second over those of plain decoding in the bank's calibration, NaN if that is
    not valid here; trees: share of the steps, by label; switches_per_100_steps: steps whose tree differs from the one before.
    """

    prompt_tokens: int
    tokens: int
    steps: int
    tokens_per_step: float
    seconds: float
    tokens_per_s: float
    speedup: float
    switches_per_100_steps: float
    trees: dict[str, float]
    ended_by: str


@dataclass(slots=True)
class StepLog:
    """Steps of one or several texts, as they come.

    Args:
        labels: of the bank's trees; plain_tokens_per_s: of plain decoding in a calibration that is valid here, or NaN.
    """

    labels: Sequence[str]
    plain_tokens_per_s: float = math.nan
    rows: list[dict[str, Any]] = field(default_factory=list)
    done: list[Step] = field(default_factory=list)
    prompt_tokens: int = 0
    seconds: float = 0.0
    texts: int = 0

    def begin(self, prompt_tokens: int) -> None:
        """A text begins; the rows of those before it stay."""
        self.done, self.prompt_tokens, self.seconds = [], prompt_tokens, 0.0
        self.texts += 1

    def timed(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Pass steps on and note how long each took; the time between them, which is the reader's, does not count."""
        source = iter(steps)
        while True:
            start = time.perf_counter()
            step = next(source, None)
            if step is None:
                return
            self.add(step, time.perf_counter() - start)
            yield step

    def add(self, step: Step, seconds: float) -> None:
        """Note one step."""
        position = self.rows[-1]["position"] + self.rows[-1]["tokens"] if self.done else self.prompt_tokens
        self.rows.append(
            {"text": self.texts - 1, "step": len(self.done), "position": position, "signal": step.signal,
             "tree": self.label(step.index), "accepted": step.accepted, "tokens": len(step.tokens), "seconds": seconds}
        )  # fmt: skip
        self.done.append(step)
        self.seconds += seconds

    def label(self, index: int) -> str:
        """What a step's tree is called."""
        return NOT_TREES.get(index) or self.labels[index]

    def figures(self, ended_by: str = "") -> Figures:
        """The last text in figures; `ended_by` if it did not end by itself."""
        tokens, count = sum(len(step.tokens) for step in self.done), len(self.done)
        rate = tokens / self.seconds if self.seconds else math.nan
        shares = Counter(self.label(step.index) for step in self.done)
        switches = sum(a.index != b.index for a, b in pairwise(self.done))
        return Figures(
            self.prompt_tokens, tokens, count, tokens / count if count else math.nan, self.seconds, rate,
            rate / self.plain_tokens_per_s, 100 * switches / count if count else math.nan,
            {label: number / count for label, number in shares.most_common()},
            ended_by or (self.done[-1].reason if self.done else ""),
        )  # fmt: skip

    def save(self, path: Path) -> None:
        """Write the rows, whole or not at all; see `check_trace_file` for the formats."""
        import pandas  # type: ignore[import-untyped]

        frame, buffer = pandas.DataFrame(self.rows, columns=list(COLUMNS)), io.BytesIO()
        if path.suffix.lower() == ".csv":
            frame.to_csv(buffer, index=False, lineterminator="\n")
        else:
            frame.to_parquet(buffer, index=False)
        write_atomically(path, buffer.getvalue())


def check_trace_file(path: Path) -> None:
    """Refuse a file that could not be written at the end, before anything long begins.

    Raises:
        UsageError: neither CSV nor Parquet by its name, a folder, no folder to put it in, or a package that is missing.
    """
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise UsageError(f"{path} ends in neither {' nor '.join(_ENDINGS)}.", "The ending says the format of the trace.")
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"a trace cannot be written to {path}.", "Name a file in a folder that is there and can be written to.")
    needed = ("pandas",) if ending == ".csv" else ("pandas", "pyarrow")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"a {ending} trace needs the package {missing[0]}, which is not installed.",
                         f"pip install {missing[0]}" + (", or name a .csv file." if ending == ".parquet" else "."))  # fmt: skip
