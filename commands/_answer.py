"""One answer as it comes, on the terminal and in the log; what `decode` and its chat share."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from ._output import Output

if TYPE_CHECKING:
    from entmtp_calib.calibrate.bank_decoder import BankDecoder
    from entmtp_calib.calibrate.step_log import Figures, StepLog
    from entmtp_calib.engine.context import Context


class Limits(NamedTuple):
    """When an answer ends."""

    max_new_tokens: int
    stop: tuple[str, ...]


class Answer(NamedTuple):
    """Text, token ids and figures of an answer; `figures.ended_by` is "interrupted" after Ctrl-C."""

    text: str
    ids: list[int]
    figures: Figures

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return self.figures.ended_by == "interrupted"


def answer(
    model: BankDecoder,
    log: StepLog,
    ids: Sequence[int],
    limits: Limits,
    write: Callable[[str], None],
    context: Context | None = None,
) -> Answer:
    """Decode and write piece by piece; Ctrl-C ends the answer, and what was written is kept."""
    from entmtp_calib.engine.graph_decoder import prepare

    log.begin(len(ids))
    shown, ended_by = "", ""
    try:
        if context is None:
            prepare(model.decoder, len(ids) + limits.max_new_tokens)
        start = perf_counter()
        steps = model.steps(ids, *limits, context)
        log.seconds = perf_counter() - start
        for piece in model.text_of(log.timed(steps)):
            shown += piece
            write(piece)
    except KeyboardInterrupt:
        ended_by = "interrupted"
    text = "".join(model.text_of(iter(log.done)))
    write(text[len(shown) :] + "\n")
    return Answer(text, [token for step in log.done for token in step.tokens], log.figures(ended_by))


def write_to(screen: Output) -> Callable[[str], None]:
    """Writes pieces of text to stdout as they are, unless a document is wanted."""

    def write(text: str) -> None:
        if not screen.as_json and text:
            sys.stdout.write(text)
            sys.stdout.flush()

    return write


def tell(screen: Output, policy: str, found: Figures, more: str = "") -> None:
    """A line of figures about an answer."""
    trees = ", ".join(f"{label} {share:.0%}" for label, share in found.trees.items())
    if not found.steps:
        screen.say(f"{policy}: no step was finished{more}")
        return
    known = not math.isnan(found.speedup)
    times = f" ({found.speedup:.2f} × plain decoding in the bank's calibration)" if known else ""
    screen.say(
        f"{policy}: {found.tokens} tokens in {found.steps} steps, {found.tokens_per_step:.2f} tokens/step, "
        f"{found.tokens_per_s:.1f} tokens/s with prefill{times}; trees: {trees}; "
        f"{found.switches_per_100_steps:.1f} switches per 100 steps; ended by {found.ended_by}{more}"
    )
