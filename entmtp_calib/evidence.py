"""What one rollout tells about every tree: traces, the walk of a topology over them, and recorded steps.

Under exact acceptance the text does not depend on the tree, so the ranks of the true tokens under each head decide what any
topology accepts at any position. Numpy only; knows nothing of models or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.topology import Topology

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Trace:
    """The text that the target writes alone behind one prompt, greedy or sampled, seen by the heads.

    tokens: int32 `[n]`, the written ids; ranks: int32 `[n, heads]`, rank of token `i + 1 + d` under head d given the true tokens
    before it, -1 where the text has no such token; margins: float32 `[n, heads]`, distance of that token's logit to the nearest
    other; root_logp: float32 `[n]`, log of the target's top-1 probability of token i; entropy: float32 `[n]`, nats, of the
    target there; chain_logp: float32 `[n, heads]`, log of the heads' top-1 probabilities along their own greedy chain;
    first_guesses: int32 `[n]`, the first head's best guess.
    """

    prompt_id: str
    tokens: Ints
    ranks: Ints
    margins: Floats
    root_logp: Floats
    entropy: Floats
    chain_logp: Floats
    first_guesses: Ints

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def heads(self) -> int:
        """Number of heads that looked at the text."""
        return int(self.ranks.shape[1])


@dataclass(frozen=True, slots=True)
class Recorded:
    """The steps of one rollout where the text depends on the tree, each seen by every tree of a bank.

    depths: int32 `[steps, trees]`, drafts that each tree would have accepted there; index: int32 `[steps]`, the tree that the
    text went on with; root_logp, entropy, chain_logp: as in `Trace`, `[steps]`, `[steps]` and `[steps, heads]`.
    """

    prompt_id: str
    depths: Ints
    index: Ints
    root_logp: Floats
    entropy: Floats
    chain_logp: Floats

    def __len__(self) -> int:
        return len(self.index)

    @property
    def heads(self) -> int:
        """Number of heads that looked at the text."""
        return int(self.chain_logp.shape[1])


class NodeTable:
    """A topology as a table, to follow many rank paths at once."""

    def __init__(self, topology: Topology) -> None:
        self.nodes = ((), *topology.nodes)
        row = {node: index for index, node in enumerate(self.nodes)}
        self.depth = topology.depth
        self.table = np.full((len(self.nodes), topology.max_rank + 2), -1, np.int32)
        for node in topology.nodes:
            self.table[row[node[:-1]], node[-1]] = row[node]

    def follow(self, ranks: Ints) -> tuple[Ints, Ints]:
        """Where rank paths leave the tree.

        Args:
            ranks: int32 `[n, heads]`, -1 where there is no token.

        Returns:
            Accepted depth `[n]` and the row of the last accepted node `[n]` (0 is the root).
        """
        here = np.zeros(len(ranks), np.int32)
        depth = np.zeros(len(ranks), np.int32)
        inside = np.ones(len(ranks), bool)
        last = self.table.shape[1] - 1  # a column that is always -1
        for level in range(min(self.depth, ranks.shape[1])):
            rank = ranks[:, level]
            step = self.table[here, np.where((rank >= 0) & (rank < last), rank, last)]
            inside &= step >= 0
            here = np.where(inside, step, here)
            depth += inside
        return depth, here


def accepted_depths(topology: Topology, trace: Trace) -> Ints:
    """Drafts that `topology` would accept at every position of the text, int32 `[n]`."""
    return NodeTable(topology).follow(trace.ranks)[0]


def walk(depths: Ints) -> NDArray[np.int64]:
    """Positions of a rollout's steps: from i to `i + 1 + depths[i]`, int64 `[steps]`."""
    jumps = depths.tolist()
    positions = []
    here = 0
    while here < len(jumps):
        positions.append(here)
        here += 1 + jumps[here]
    return np.asarray(positions, np.int64)


def mean_accept(topology: Topology, traces: Sequence[Trace]) -> float:
    """Pooled mean accept of a rollout of `topology` over the traces."""
    accepted = steps = 0
    for trace in traces:
        depths = accepted_depths(topology, trace)
        positions = walk(depths)
        accepted += int(depths[positions].sum())
        steps += len(positions)
    return accepted / steps if steps else 0.0
