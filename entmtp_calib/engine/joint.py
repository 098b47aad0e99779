"""Joint rollouts: a large tree is verified at every step, a smaller one inside it decides what is committed.

One pass tells for every node of the large tree whether it would have been accepted where the small tree's text goes. Needed where
the text depends on the tree (typical acceptance), and to repeat the paper's search. Knows no scores and no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entmtp_calib.engine.acceptance import Accepted, Rule, accept, closure
from entmtp_calib.engine.decoder import Decoder, Generation, Root, Step
from entmtp_calib.engine.drafter import Draft, Drafter
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.layout import Rows, TreeLayout
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Policy, Static
from entmtp_calib.signals import Signal
from entmtp_calib.topology import Topology, union

_FIRST = Static(0)


class JointDecoder(Decoder):
    """A decoder that verifies `joint` and commits along the tree that a policy chooses, which is part of it.

    Args:
        current: one tree, or the bank that the policy chooses from; signal: what the policy reads.

    Attributes:
        nodes: the joint tree; forwards: forwards of the target so far, a prefill counted once.
    """

    def __init__(
        self, target: Target, drafter: Drafter, joint: Topology, current: Topology | Sequence[Topology], rule: Rule,
        policy: Policy = _FIRST, signal: Signal | None = None,
    ) -> None:  # fmt: skip
        trees = [current] if isinstance(current, Topology) else current
        super().__init__(target, drafter, [union([joint, *trees])] * len(trees), policy, signal, rule=rule)
        layout = self.layouts[policy.members[0]]
        self.nodes = layout.topology
        self._depths = layout.depths.cpu().numpy()[1:]
        self._members = {index: self._rows_of(trees[index], layout) for index in policy.members}
        self._chosen = policy.members[0]
        self._seen: Tensor | None = None
        self.forwards = 0

    def _rows_of(self, tree: Topology, layout: Rows) -> Tensor:
        rows = torch.zeros(layout.rows, dtype=torch.bool, device=self.target.device)
        rows[TreeLayout(tree, self.target.device).rows_in(layout)] = True
        return rows

    def begin(self, prompt: Sequence[int], stop: StopRule) -> Generation:
        self.forwards += 1
        return super().begin(prompt, stop)

    def verify(self, index: int, draft: Draft, length: int, cache: KVCache, memory: KVCache | None) -> tuple[Accepted, Root]:
        self.forwards += 1
        self._chosen = index
        return super().verify(index, draft, length, cache, memory)

    def accept(self, layout: Rows, tokens: Tensor, right: Tensor, score: Tensor | None) -> Accepted:
        ends = torch.tensor(sorted(self._ends), device=tokens.device)
        right = right & ~torch.isin(tokens[layout.parents], ends)  # nothing comes after an end token
        self._seen = closure(layout, right) if layout.rows > 1 else None
        return accept(layout, right, score, self._members[self._chosen] if layout.rows > 1 else None)

    def observed(self, prompt: Sequence[int], stop: StopRule) -> Iterator[tuple[Step, NDArray[np.bool_]]]:
        """Steps, and for each the nodes of `nodes` that would have been accepted and committed, bool `[nodes]`."""
        self._ends = stop.end_ids
        self._seen, written = None, 0
        for step in self.steps(prompt, stop):
            seen = np.zeros(len(self._depths), bool) if self._seen is None else self._seen.cpu().numpy()[1:]
            yield step, seen & (self._depths <= stop.max_new_tokens - written - 1)
            written += len(step.tokens)
            self._seen = None
