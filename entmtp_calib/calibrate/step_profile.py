"""Where the time of a decode step goes: the target's forward, drafting, and everything around them.

Listens to a decoder from outside: its methods, its target, rule, policy and cache are wrapped, the loop is its own. Chooses
nothing and compares no trees. On a GPU the clock waits for the device at both ends of every part, so nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from entmtp_calib.calibrate.rounds import Prompts, clock
from entmtp_calib.engine.acceptance import GREEDY, Rule
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import UsageError
from entmtp_calib.policy import Ladder, Static
from entmtp_calib.signals import Memory, Signal
from entmtp_calib.topology import Topology

FORWARD, DRAFTING, MASKS, ACCEPTANCE = "target forward", "drafting", "mask and positions", "acceptance"
COMMIT, SCHEDULING, TRANSFER, REST = "commit", "scheduling", "transfer", "loop"
PARTS = (FORWARD, DRAFTING, MASKS, ACCEPTANCE, COMMIT, SCHEDULING, TRANSFER, REST)
_METHODS = {"draft": DRAFTING, "read": DRAFTING, "verify": MASKS, "accept": ACCEPTANCE, "fetch": TRANSFER, "fitting": SCHEDULING}
ROW_COUNTS = (1, 2, 3, 4, 8)
_REPEATS, _CHOICES = 9, 200
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and the range that holds the middle 80 %."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the steps of one tree spend their time, in seconds; the first and the last step of every text are left out.

    parts: of the step, by name, in the order of `PARTS`; step: the whole; bare: the target's forward of the same rows behind as
    many tokens, by itself, once after every step; ratio: step / (bare forward + drafting); choosing: signal, ladder and look-up
    of the layout by themselves; rows: a forward of so many rows, by which plain decoding could be padded.
    """

    steps: int
    step: Spread
    parts: Mapping[str, Spread]
    bare: Spread
    ratio: Spread
    choosing: Spread
    rows: Mapping[int, Spread]


def profile_steps(
    target: Target,
    drafter: Drafter | None,
    tree: Topology,
    prompts: Prompts,
    stop: StopRule,
    rule: Rule = GREEDY,
    tick: Callable[[int, int], None] | None = None,
    now: Clock | None = None,
) -> Profile:
    """Decode prompts with one tree and time the parts of every step.

    Args:
        tick: told how many prompts are done, of how many; now: the clock, for tests.

    Raises:
        UsageError: no text has a step between its first and its last.
    """
    now = now or partial(clock, target.device)
    found: list[dict[str, float]] = []
    longest = 0
    for done, (_name, ids) in enumerate(prompts, 1):
        steps, length = _steps_of(Decoder(target, drafter, [tree], Static(0), rule=rule), ids, stop, now)
        found, longest = found + steps, max(longest, length)
        if tick:
            tick(done, len(prompts))
    if not found:
        raise UsageError("the texts are too short for a profile of their steps.", "Give more --prompts, or a longer run.")
    return Profile(
        steps=len(found),
        step=spread([row["step"] for row in found]),
        parts={part: spread([row.get(part, 0.0) for row in found]) for part in PARTS},
        bare=spread([row["bare"] for row in found]),
        ratio=spread([row["step"] / (row["bare"] + row.get(DRAFTING, 0.0)) for row in found]),
        choosing=spread(_choosing(max(1, tree.depth), now)),
        rows=forwards(target, longest, now),
    )


class Stopwatch:
    """Seconds of named parts; a part that runs inside another is taken out of it."""

    def __init__(self, now: Clock) -> None:
        self.now = now
        self._spent: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time put down to a part."""

        def run(*args: Any, **options: Any) -> Any:
            self._turn(part)
            try:
                return function(*args, **options)
            finally:
                self._turn(None)

        return run

    def take(self) -> dict[str, float]:
        """Seconds by part since the last call."""
        spent, self._spent = self._spent, {}
        return spent

    def _turn(self, part: str | None) -> None:
        """Put the time since the last turn down to the innermost part, then open one or, for None, close that."""
        time = self.now()
        if self._open:
            self._spent[self._open[-1]] = self._spent.get(self._open[-1], 0.0) + time - self._since
        self._since = time
        if part is None:
            self._open.pop()
        else:
            self._open.append(part)


class _Watched:
    """An object some of whose methods are timed."""

    def __init__(self, watch: Stopwatch, thing: Any, parts: Mapping[str, str]) -> None:
        self._watch, self._thing, self._parts = watch, thing, parts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        return self._watch.timed(self._parts[name], found) if name in self._parts else found


def _steps_of(decoder: Any, ids: Sequence[int], stop: StopRule, now: Clock) -> tuple[list[dict[str, float]], int]:
    """Seconds of the parts of every step of a text but the first and the last, and the length of the text, prompt and all."""
    target, watch = decoder.target, Stopwatch(now)
    generation = decoder.begin(ids, stop)
    bare = BareForward(target, decoder.layouts[0], len(ids) + generation.stop.max_new_tokens)
    decoder.target = _Watched(watch, target, {"forward": FORWARD})
    decoder.rule = _Watched(watch, decoder.rule, {"choose": ACCEPTANCE, "judge": ACCEPTANCE})
    decoder.policy = _Watched(watch, decoder.policy, {"next": SCHEDULING})
    generation.context.cache.commit = watch.timed(COMMIT, generation.context.cache.commit)
    for method, part in _METHODS.items():
        setattr(decoder, method, watch.timed(part, getattr(decoder, method)))
    steps = decoder.resume(generation)
    found: list[dict[str, float]] = []
    while True:
        length, start = len(generation.context.ids), now()
        step = next(steps)
        whole, parts = now() - start, watch.take()
        if step.reason or step.index != 0:
            return found[1:], len(generation.context.ids)
        found.append(parts | {REST: whole - sum(parts.values()), "step": whole, "bare": bare.seconds(length, now)})


class BareForward:
    """The target's forward of a tree's rows and nothing else, behind a text of zeros.

    Args:
        capacity: tokens of the longest text.
    """

    def __init__(self, target: Target, layout: TreeLayout, capacity: int) -> None:
        self.target, self.layout = target, layout
        self.cache = target.new_cache(capacity + layout.rows)
        self.ids = torch.zeros(1, layout.rows, dtype=torch.long, device=target.device)

    @torch.inference_mode()
    def seconds(self, length: int, now: Clock) -> float:
        """Seconds of one forward behind so many tokens."""
        rows = self.layout.rows
        slots = torch.arange(length, length + rows, device=self.ids.device)
        mask = torch.cat((self.layout.mask.new_ones(rows, length), self.layout.mask), 1)[None, None]
        positions = (self.layout.depths + length)[None]
        self.cache.place(slots, length + rows)
        start = now()
        self.target.forward(self.ids, mask, positions, self.cache)
        return now() - start


def forwards(target: Target, length: int, now: Clock, repeats: int = _REPEATS) -> dict[int, Spread]:
    """Seconds of forwards of few rows behind so many tokens, taken in turns: whether plain decoding would gain by padding."""
    length = min(length, target.max_positions - 1)
    trees = {rows: Topology(tuple((rank,) for rank in range(rows - 1))) for rows in ROW_COUNTS}
    bare = {rows: BareForward(target, TreeLayout(tree, target.device), length) for rows, tree in trees.items()}
    taken = [{rows: forward.seconds(length, now) for rows, forward in bare.items()} for _ in range(repeats + 1)]
    return {rows: spread([row[rows] for row in taken[1:]]) for rows in bare}


def _choosing(depth: int, now: Clock) -> list[float]:
    """Seconds of choosing a tree by a signal, a ladder and a look-up, without a model."""
    signal, ladder = Signal(f"expected_chain_{min(depth, 9)}"), Ladder((0.5, 1.0, 1.5), (0, 1, 2, 3))
    recall, index, layouts = Memory(signal), 0, dict.fromkeys(ladder.members)
    taken = []
    chain = np.full(signal.depth, -0.5, np.float32)
    for _ in range(_CHOICES):
        start = now()
        value = float(recall.read(float(signal.at(chain[0], chain[0], chain)), 1))
        index = ladder.next(index, value)
        layouts.get(index)
        taken.append(now() - start)
    return taken


def spread(values: Sequence[float]) -> Spread:
    """Median and the range of the middle 80 %."""
    low, median, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return Spread(median, low, high)
