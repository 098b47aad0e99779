"""What every tree of a bank would accept at the steps of a policy, and what signals are made of there.

A joint rollout over the union of the bank. Knows no files, no costs, and nothing of how policies are fitted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from entmtp_calib.engine.acceptance import Accepted, Rule
from entmtp_calib.engine.decoder import Root
from entmtp_calib.engine.drafter import Draft, Drafter, entropy_of, top_logp
from entmtp_calib.engine.joint import JointDecoder
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.evidence import Recorded
from entmtp_calib.policy import Policy
from entmtp_calib.signals import Signal
from entmtp_calib.topology import Topology, chain, union


class Recorder(JointDecoder):
    """A joint decoder over the trees of a bank that also notes the confidence of target and heads at every step.

    Args:
        trees: the bank; policy: which of them commits; signal: what it reads.
    """

    def __init__(
        self, target: Target, drafter: Drafter, trees: Sequence[Topology], policy: Policy, signal: Signal | None, rule: Rule
    ) -> None:
        super().__init__(target, drafter, union([*trees, chain(drafter.depth)]), trees, rule, policy, signal)
        self.signal_depth = drafter.depth  # the whole chain, whatever the policy reads
        rows = {node: row for row, node in enumerate(self.nodes.nodes)}
        self._columns = [[rows[node] for node in tree.nodes] for tree in trees]
        self._shown: list[Tensor] = []

    def record(self, name: str, prompt: Sequence[int], stop: StopRule) -> Recorded:
        """Decode one text and tell of its steps.

        What a tree accepts is cut where the text ends by a token or by the cap; texts that a stop string ends are not looked at
        for the trees that were not chosen.
        """
        self._shown = []
        steps = list(self.observed(prompt, stop))
        shown = torch.stack(self._shown[: len(steps)]).cpu().numpy()
        reach = np.stack([seen for _step, seen in steps]) * self._depths
        depths = [reach[:, columns].max(1, initial=0) for columns in self._columns]
        return Recorded(
            name, np.stack(depths, 1).astype(np.int32), np.array([step.index for step, _seen in steps], np.int32),
            shown[:, 0].copy(), shown[:, 1].copy(), shown[:, 2:].copy(),
        )  # fmt: skip

    def fetch(self, root: Root, draft: Draft, done: tuple[Tensor, Accepted] | None) -> tuple[int, list[int], float]:
        self._shown.append(torch.cat((root.certainty, draft.chain_logp)))
        return super().fetch(root, draft, done)

    def _root(self, logits: Tensor, hidden: Tensor, token: Tensor, position: Tensor) -> Root:
        certainty = torch.stack((top_logp(logits), entropy_of(logits)))
        return super()._root(logits, hidden, token, position)._replace(certainty=certainty)
