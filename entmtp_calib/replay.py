"""Replay: the steps that policies would make over traces, found without a model.

Under exact acceptance a trace tells what every tree accepts everywhere, so a policy's steps follow from its choices alone. All
texts advance side by side, and many policies at once. Numpy only; knows nothing of costs, models or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.evidence import Ints, Trace, accepted_depths
from entmtp_calib.policy import Policy
from entmtp_calib.signals import Memory, Signal
from entmtp_calib.topology import Topology

Chooser = Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.int64]]
"""Trees in use and signals, `[texts]` each, to the trees of this step: `Policy.next_many`, or many policies at once."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The steps that a policy would make over some traces.

    positions, index, accepted: int64 `[steps]`, concatenated over the traces; prompt: int64 `[steps]`, index of the trace;
    signals: float64 `[steps]`, what the policy read.
    """

    positions: NDArray[np.int64]
    index: NDArray[np.int64]
    accepted: NDArray[np.int64]
    prompt: NDArray[np.int64]
    signals: NDArray[np.float64]

    @property
    def mean_accept(self) -> float:
        """Pooled: all accepted drafts / all steps."""
        return float(self.accepted.mean()) if len(self.accepted) else 0.0

    @property
    def tokens(self) -> int:
        """Committed tokens: a root and its accepted drafts per step."""
        return int(self.accepted.sum()) + len(self.accepted)

    @property
    def switches(self) -> int:
        """Steps whose tree differs from the one before in the same text."""
        return int(((self.index[1:] != self.index[:-1]) & (self.prompt[1:] == self.prompt[:-1])).sum())


class Counts(NamedTuple):
    """Of many policies: how often each takes each tree, int64 `[policies, texts, trees]`, and the tokens that it commits, int64
    `[policies, texts]`."""

    steps: NDArray[np.int64]
    tokens: NDArray[np.int64]


class Replayer:
    """Runs policies over traces.

    Args:
        topologies: the bank that the policies' indices mean.
        traces: texts to replay.
        signal: what policies read; None if only static ones will run.
        depths: drafts that each tree would accept, int `[n, trees]` per text, where they are known or are not of a fixed tree.
    """

    def __init__(
        self,
        topologies: Sequence[Topology],
        traces: Sequence[Trace],
        signal: Signal | str | None = None,
        depths: Sequence[Ints] | None = None,
    ) -> None:
        self.topologies, self.traces = topologies, traces
        self.signal = Signal(signal) if isinstance(signal, str) else signal
        if depths is None:
            depths = [np.stack([accepted_depths(tree, trace) for tree in topologies], 1) for trace in traces]
        self.depths = list(depths)
        self.values = [self._value(trace) for trace in traces]
        lengths = np.array([len(trace) for trace in traces], np.int64)
        self._ends = lengths.cumsum()
        self._starts = self._ends - lengths
        self._nowhere = int(lengths.sum())  # where a text is that is over: a row that goes nowhere
        trees = self.depths[0].shape[1] if self.depths else len(topologies)
        self._depths = np.concatenate([*self.depths, np.full((1, trees), -1)]).astype(np.int64)
        self._values = np.concatenate([*self.values, np.zeros(1)]).astype(np.float64)

    def _value(self, trace: Trace) -> NDArray[np.float32]:
        if self.signal is None:
            return np.full(len(trace), np.nan, np.float32)
        return self.signal.at(trace.root_logp, trace.entropy, trace.chain_logp)

    def reading(self, signal: Signal | str) -> Self:
        """The same trees over the same texts, with another signal."""
        return type(self)(self.topologies, self.traces, signal, self.depths)

    def part(self, texts: Sequence[int]) -> Self:
        """The same over some of the texts, by their indices."""
        return type(self)(
            self.topologies, [self.traces[text] for text in texts], self.signal, [self.depths[text] for text in texts]
        )

    def run(self, policy: Policy) -> Replay:
        """The steps of `policy`, state reset at every text."""
        steps = list(self._walk(policy.next_many, 1, policy.members[0]))
        if not steps:
            none = np.zeros(0, np.int64)
            return Replay(none, none, none, none, np.zeros(0))
        here, index, signals = (np.stack(column, 1) for column in zip(*steps, strict=True))
        real = here < self._nowhere
        prompt = np.broadcast_to(np.arange(len(self.traces))[:, None], here.shape)[real]
        at, chosen = here[real], index[real]
        return Replay(at - self._starts[prompt], chosen, self._depths[at, chosen], prompt, signals[real])

    def acceptance(self, run: Replay) -> NDArray[np.int64]:
        """Drafts that every tree would accept at the steps of a replay, int64 `[steps, trees]`."""
        return self.pick(run, self.depths)

    def pick(self, run: Replay, columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Rows at the steps of a replay of what there is for every position, `[n, …]` per text."""
        found: NDArray[Any] = np.concatenate(columns)[self._starts[run.prompt] + run.positions]
        return found

    def counts(self, choose: Chooser, policies: int, start: Any) -> Counts:
        """How often each of many policies takes each tree, and what that commits.

        Args:
            choose: of `[policies · texts]` at once, the texts of the first policy first.
            start: tree in use before the first step, one for all or one each, `[policies · texts]`.
        """
        trees = self._depths.shape[1]
        lanes = np.arange(policies * len(self.traces))
        found, tokens = np.zeros(len(lanes) * trees + 1, np.int64), np.zeros(len(lanes), np.int64)
        for here, index, _signals in self._walk(choose, policies, start):
            found[np.where(here < self._nowhere, lanes * trees + index, -1)] += 1
            tokens += self._depths[here, index] + 1  # 0 where a text is over
        return Counts(found[:-1].reshape(policies, len(self.traces), trees), tokens.reshape(policies, -1))

    def _walk(self, choose: Chooser, copies: int, start: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Positions in the joined texts, trees and signals of one step after the other, for every text of every copy."""
        here, ends = np.tile(self._starts, copies), np.tile(self._ends, copies)
        here = np.where(here < ends, here, self._nowhere)
        index = np.zeros_like(here) + start
        memory = Memory(self.signal) if self.signal else None
        accepted = None
        while (here < self._nowhere).any():
            value = self._values[here]
            signal = memory.read(value, accepted) if memory else value
            index = choose(index, signal)
            yield here, index, signal
            accepted = self._depths[here, index]
            here = self._onward(here, accepted)
            here = np.where(here < ends, here, self._nowhere)

    def _onward(self, here: NDArray[np.int64], accepted: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the next steps are."""
        return here + 1 + accepted
