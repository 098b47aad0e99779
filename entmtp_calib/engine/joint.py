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
from entmtp_calib.engine.decoder import Decoder, Generation, Step
from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Static
from entmtp_calib.topology import Topology, union


class JointDecoder(Decoder):
    """A decoder that verifies `joint` and commits along `current`, whose nodes must be in it.

    Attributes:
        nodes: the joint tree; forwards: forwards of the target so far, a prefill counted once.
    """

    def __init__(self, target: Target, drafter: Drafter, joint: Topology, current: Topology, rule: Rule) -> None:
        super().__init__(target, drafter, [union([joint, current])], Static(0), rule=rule)
        layout = self.layouts[0]
        self.nodes = layout.topology
        self._depths = layout.depths.cpu().numpy()[1:]
        self._members = torch.zeros(layout.rows, dtype=torch.bool, device=target.device)
        self._members[TreeLayout(current, target.device).rows_in(layout)] = True
        self._seen: Tensor | None = None
        self.forwards = 0

    def begin(self, prompt: Sequence[int], stop: StopRule) -> Generation:
        self.forwards += 1
        return super().begin(prompt, stop)

    def accept(self, layout: TreeLayout, tokens: Tensor, right: Tensor, score: Tensor | None) -> Accepted:
        self.forwards += 1
        ends = torch.tensor(sorted(self._ends), device=tokens.device)
        right = right & ~torch.isin(tokens[layout.parents], ends)  # nothing comes after an end token
        self._seen = closure(layout, right) if layout.rows > 1 else None
        return accept(layout, right, score, self._members if layout.rows > 1 else None)

    def observed(self, prompt: Sequence[int], stop: StopRule) -> Iterator[tuple[Step, NDArray[np.bool_]]]:
        """Steps, and for each the nodes of `nodes` that would have been accepted and committed, bool `[nodes]`."""
        self._ends = stop.end_ids
        self._seen, written = None, 0
        for step in self.steps(prompt, stop):
            seen = np.zeros(len(self._depths), bool) if self._seen is None else self._seen.cpu().numpy()[1:]
            yield step, seen & (self._depths <= stop.max_new_tokens - written - 1)
            written += len(step.tokens)
            self._seen = None
