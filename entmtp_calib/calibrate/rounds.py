"""Running arms in rounds: whole generations, interleaved in random order, every run kept.

Measures seconds on the device at hand and writes them down; what they say is the business of `timing.py`, and which arms go on
that of `racing.py`.
"""

from __future__ import annotations

import hashlib
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from entmtp_calib.calibrate.environment import Watch
from entmtp_calib.calibrate.racing import Race
from entmtp_calib.calibrate.timing import AR_AGAIN, Row, Timed, summarise
from entmtp_calib.engine.acceptance import GREEDY, Rule
from entmtp_calib.engine.decoder import Decoder, Step
from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.graph_decoder import decoder_with, prepare
from entmtp_calib.engine.graphs import Graphs
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Static
from entmtp_calib.storage import Journal

_DRAFT_REPEATS = 15
Prompts = Sequence[tuple[str, Sequence[int]]]


class Run(NamedTuple):
    """One generation: the new tokens, the target's steps (0 if unknown), seconds before the first draft, seconds in all."""

    tokens: list[int]
    steps: int
    prefill_seconds: float
    seconds: float


Runner = Callable[[Sequence[int], StopRule], Run]


def time_arms(
    target: Target,
    drafter: Drafter | None,
    race: Race,
    prompts: Prompts,
    stop: StopRule,
    seed: int,
    journal: Journal,
    rows: list[Row],
    on_run: Callable[[int], None] | None = None,
    rule: Rule = GREEDY,
    graphs: Graphs | None = None,
) -> list[Timed]:
    """Time the arms of a race on every prompt; what the journal holds is not timed again.

    Every arm runs once unmeasured before it counts. The machine's load is written down before the first run and after the last.

    Args:
        rows: of the journal; it grows.
        rule: how tokens are chosen and drafts accepted.
        graphs: where steps are captured, plain decoding's too; None for none.

    Raises:
        EntmtpError: an arm's tokens differ between repeats.
    """
    decoders = {arm.label: decoder_with(graphs, target, drafter, [arm.topology], Static(0), rule=rule) for arm in race.arms}
    runners = {label: decoder_runner(decoder) for label, decoder in decoders.items()}
    run_race(race, Rounds(runners, prompts, stop, seed, rows, journal, on_run), Watch(target, graphs))
    drafted = {row["arm"] for row in rows if "draft_seconds" in row}
    for arm in race.arms:
        if arm.label not in drafted and arm.label != AR_AGAIN:
            rows.append({"arm": arm.label, "prompt": "", "round": 0, "draft_seconds": draft_seconds(decoders[arm.label])})
            journal.append(rows[-1])
    return summarise(race.arms, rows)


def run_race(race: Race, rounds: Rounds, watch: Watch) -> None:
    """Run round after round until the race is over."""
    rounds.before_first = watch.start
    for number, labels in race.schedule(rounds.rows):
        rounds.run(number, labels)
    if rounds.ran:
        rounds.keep(watch.end())


def interleave(
    runners: Mapping[str, Runner],
    prompts: Prompts,
    stop: StopRule,
    rounds: int,
    seed: int,
    rows: list[Row],
    journal: Journal | None = None,
    on_run: Callable[[int], None] | None = None,
) -> None:
    """Run every arm on every prompt in every round; see `Rounds`."""
    session = Rounds(runners, prompts, stop, seed, rows, journal, on_run)
    for number in range(rounds):
        session.run(number, list(runners))


class Rounds:
    """Runs arms on every prompt, a round at a time, in random order; adds to `rows` what they do not hold yet.

    Every arm runs once unmeasured before it counts.

    Args:
        runners: arms by label; journal: where rows are kept, warm-ups too; on_run: called with the number of runs done.

    Attributes:
        ran: whether anything ran that was not there; before_first: gives a row that is kept before the first such run.
    """

    def __init__(
        self, runners: Mapping[str, Runner], prompts: Prompts, stop: StopRule, seed: int, rows: list[Row],
        journal: Journal | None = None, on_run: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        self.runners, self.prompts, self.stop, self.seed = runners, prompts, stop, seed
        self.rows, self.journal, self.on_run = rows, journal, on_run
        self.ran = False
        self.before_first: Callable[[], Row] | None = None
        self._warm: set[str] = set()
        self._count = 0

    def run(self, number: int, labels: Sequence[str]) -> None:
        """Run one round of these arms."""
        done = {(row["arm"], row["prompt"]) for row in self.rows if row["round"] == number}
        for name, ids in self.prompts:
            order = list(labels)
            random.Random(f"{self.seed}:{number}:{name}").shuffle(order)
            for label in order:
                if (label, name) not in done:
                    self._measure(label, name, ids, number)
                self._count += 1
                if self.on_run:
                    self.on_run(self._count)

    def keep(self, row: Row) -> None:
        """Add a row and write it down."""
        self.rows.append(row)
        if self.journal is not None:
            self.journal.append(row)

    def _measure(self, label: str, name: str, ids: Sequence[int], number: int) -> None:
        if not self.ran and self.before_first:
            self.keep(self.before_first())
        self.ran = True
        if label not in self._warm:
            self.keep(_row(self.runners[label](ids, self.stop), label, name, -1, len(ids)))
            self._warm.add(label)
        self.keep(_row(self.runners[label](ids, self.stop), label, name, number, len(ids)))


def draft_seconds(decoder: Decoder, repeats: int = _DRAFT_REPEATS) -> float:
    """Median seconds of one draft of the decoder's trees; 0 where nothing is drafted."""
    if not decoder.drafted.levels:
        return 0.0
    prepare(decoder)
    with torch.inference_mode():
        root = decoder.dummy_root()
        times = []
        for _ in range(repeats + 2):
            start = clock(decoder.target.device)
            decoder.draft(root)
            times.append(clock(decoder.target.device) - start)
    return statistics.median(times[2:])


def decoder_runner(decoder: Decoder) -> Runner:
    """Runs a decoder; what it must capture is captured before the clock runs."""

    def run(ids: Sequence[int], stop: StopRule) -> Run:
        device = decoder.target.device
        prepare(decoder, len(ids) + stop.max_new_tokens)
        start = clock(device)
        generation = decoder.begin(ids, stop)
        prefilled = clock(device)
        steps: list[Step] = list(decoder.resume(generation))
        end = clock(device)
        return Run([token for step in steps for token in step.tokens], len(steps), prefilled - start, end - start)

    return run


def clock(device: torch.device) -> float:
    """Seconds, after everything that the device was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def _row(run: Run, label: str, name: str, number: int, prompt_tokens: int) -> Row:
    return {
        "arm": label,
        "prompt": name,
        "round": number,
        "prompt_tokens": prompt_tokens,
        "seconds": run.seconds,
        "prefill_seconds": run.prefill_seconds,
        "tokens": len(run.tokens),
        "steps": run.steps,
        "ids": hashlib.sha256(repr(run.tokens).encode()).hexdigest()[:16],
    }
