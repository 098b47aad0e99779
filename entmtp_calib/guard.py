"""The guard: holds trees back while they are slower than plain decoding, and tries them again later.

Pure: settings and states are values, and a state is told the tokens and seconds of every step. The decoder runs it on a clock; a
replay gives it costs instead. Knows nothing of models, trees or policies, and never changes the text.

On texts of any kind that do not watch it, it loses little over either of trees and plain decoding. A text that saw every step
coming, and were bad exactly when a tree is tried, could keep it from trees that would pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

_KEPT = 9  # plain steps whose median is the cost of one
_GOLDEN = 0.6180339887498949  # multiples of it fall evenly between 0 and 1, in no simple rhythm


class Watch(Protocol):
    """What the decoder asks of a guard."""

    @property
    def held(self) -> bool:
        """Whether the next step goes without a tree."""

    def after(self, tokens: int, seconds: float, tree: bool) -> Watch:
        """The state after a step."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Settings of a guard. What may be lost is counted in plain steps, which make one token each.

    window: what a tree may lose, from its best moment on, before it is held back; more where `stake`, a share of all that was
    gained over plain decoding, or `share`, one of all time, is more. probe: what it may lose when it is tried again. loss: share
    of all time that may be lost when trees are tried again, so the price of a text that they do not suit. allowance: a loss
    that is always allowed, for the beginning of a text. wait: plain steps until the next try, doubled with every try that
    fails up to `probe / loss`, and varied by half so that it keeps time with no text. samples: plain steps that measure what
    one costs, at the start and after every `refresh` tokens with a tree.
    """

    window: float = 5.0
    probe: float = 2.0
    loss: float = 0.015
    allowance: float = 6.0
    wait: int = 32
    stake: float = 0.1
    share: float = 0.02
    samples: int = 4
    refresh: int = 1024

    def start(self) -> Watch:
        """The state at the beginning of a text: plain decoding is measured first."""
        return _State(self, held=True, left=self.samples, credit=self.window)


@dataclass(frozen=True, slots=True)
class _Off:
    held = False

    def after(self, tokens: int, seconds: float, tree: bool) -> Watch:
        return self


OFF: Watch = _Off()
"""No guard."""


@dataclass(frozen=True, slots=True)
class _State:
    """held: trees are held back, for `left` more plain steps at least; credit: what a tree may lose before it is, in plain
    steps; lead: seconds gained over plain decoding so far; spent: seconds so far; plain: seconds of the last plain steps; failed:
    tries in a row that failed; drops: how often trees were held back; since: tokens since plain decoding was measured.
    """

    guard: Guard
    held: bool
    left: float
    credit: float
    lead: float = 0.0
    spent: float = 0.0
    plain: tuple[float, ...] = ()
    failed: int = 0
    drops: int = 0
    since: int = 0

    def after(self, tokens: int, seconds: float, tree: bool) -> _State:
        plain = self.plain if tree else (*self.plain, seconds)[-_KEPT:]
        cost = median(plain) if plain else seconds
        gain = tokens * cost - seconds
        now = replace(self, plain=plain, lead=self.lead + gain, spent=self.spent + seconds, since=self.since + tokens)
        if self.held:
            return now if tree else now._waited(cost)
        return now._tried(gain, cost) if tree else now

    def _waited(self, cost: float) -> _State:
        """After a plain step: try a tree again when the wait is over and what the try may lose is allowed."""
        guard, left = self.guard, self.left - 1
        allowed = guard.loss * self.spent + (guard.allowance - guard.probe) * cost
        if left <= 0 and -self.lead <= allowed:
            return replace(self, held=False, since=0)
        return replace(self, left=left)

    def _tried(self, gain: float, cost: float) -> _State:
        """After a step with a tree: hold trees back when the credit is used up."""
        guard = self.guard
        window = max(guard.window, guard.stake * self.lead / cost, guard.share * self.spent / cost)
        credit = min(window, self.credit + gain / cost)
        if credit < 0:
            wait = min(guard.wait * 2.0**self.failed, guard.probe / guard.loss) * (0.5 + self.drops * _GOLDEN % 1)
            return replace(self, held=True, left=wait, credit=guard.probe, failed=self.failed + 1, drops=self.drops + 1)
        if self.since >= guard.refresh:
            return replace(self, held=True, left=guard.samples, credit=credit)
        return replace(self, credit=credit, failed=0 if credit >= guard.window else self.failed)


def guarded(accepts: Sequence[int], plain: float, tree: float, draft: float, guard: Guard | None) -> tuple[float, list[bool]]:
    """A text under a guard, by replay.

    As in the decoder, whether a step has a tree is said while the one before runs, and that one pays for the draft.

    Args:
        accepts: drafts that the tree would accept at every position.
        plain, tree: seconds of a step without a tree and of one with it, draft included; draft: of them for the draft.

    Returns:
        Seconds of the whole text, and for every step whether the tree was held back.
    """
    watch = guard.start() if guard else OFF
    here, total, held, steps = 0, 0.0, watch.held, list[bool]()
    while here < len(accepts):
        tokens = min(1 + (0 if held else accepts[here]), len(accepts) - here)
        following = watch.held
        seconds = (plain if held else tree - draft) + (0 if following else draft)
        watch = watch.after(tokens, seconds, not held)
        steps.append(held)
        held, here, total = following, here + tokens, total + seconds
    return total, steps
