"""A bank's policies replayed over the texts that a run used least, dynamic ones with the path values that the fit stored.

Knows steps and which nodes they verify; nothing of figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.bank import TopologyBank
from entmtp_calib.calibrate.dynamic import Drafts
from entmtp_calib.evidence import Trace
from entmtp_calib.policy import Dynamic, Policy
from entmtp_calib.replay import Replay, Replayer
from entmtp_calib.topology import Topology


@dataclass(frozen=True, slots=True)
class Replays:
    """What policies of a bank do on some texts.

    drafts: path values over the same texts; None where they are not stored, so that dynamic policies cannot be replayed.
    """

    bank: TopologyBank
    traces: Sequence[Trace]
    drafts: Drafts | None

    def can(self, policy: Policy) -> bool:
        """Whether there is all that the policy needs."""
        if not isinstance(policy, Dynamic):
            return True
        return self.drafts is not None and set(policy.drafted.nodes) <= set(self.drafts.drafted.nodes)

    def run(self, policy: Policy) -> Replay:
        """The steps of a policy that can be replayed, over all texts."""
        if isinstance(policy, Dynamic):
            assert self.drafts is not None
            depths = self.drafts.depths(policy.drafted, policy.sizes)
            return Replayer([], self.traces, self.bank.signal, depths).run(policy)
        return Replayer(self.bank.topologies, self.traces, self.bank.signal).run(policy)

    def verified(self, policy: Policy, run: Replay) -> list[tuple[int, ...]]:
        """How many nodes of every level each step verifies, as many levels as the deepest tree that the policy has."""
        if not isinstance(policy, Dynamic):
            levels = max(self.bank.topologies[index].depth for index in policy.members)
            counts = [_by_depth([len(node) for node in tree.nodes], levels) for tree in self.bank.topologies]
            return [counts[index] for index in run.index.tolist()]
        best = self._best_first(policy.drafted)
        depths = np.array([len(node) for node in policy.drafted.sorted().nodes])
        steps = zip(run.prompt.tolist(), run.positions.tolist(), run.index.tolist(), strict=True)
        return [
            _by_depth(depths[best[prompt][place, : policy.sizes[index]]].tolist(), policy.drafted.depth)
            for prompt, place, index in steps
        ]

    def verified_shares(self, policy: Dynamic, run: Replay) -> list[float]:
        """The share of steps that verify each drafted node, in sorted order."""
        best, taken = self._best_first(policy.drafted), np.zeros(policy.drafted.size)
        for prompt, place, index in zip(run.prompt.tolist(), run.positions.tolist(), run.index.tolist(), strict=True):
            taken[best[prompt][place, : policy.sizes[index]]] += 1
        shares: list[float] = (taken / len(run.index)).tolist()
        return shares

    def _best_first(self, tree: Topology) -> list[NDArray[np.int64]]:
        """Places in the sorted order of a tree's nodes by path value, of equals the first, int64 `[n, nodes]` per text."""
        assert self.drafts is not None
        columns = {node: column for column, node in enumerate(self.drafts.drafted.sorted().nodes)}
        own = [columns[node] for node in tree.sorted().nodes]
        return [np.argsort(-values[:, own], axis=1, kind="stable") for values in self.drafts.values]


def of_text(run: Replay, text: int) -> Replay:
    """The part of a replay that is over one text."""
    at = run.prompt == text
    return Replay(run.positions[at], run.index[at], run.accepted[at], run.prompt[at], run.signals[at])


def _by_depth(depths: Sequence[int], levels: int) -> tuple[int, ...]:
    return tuple(depths.count(level) for level in range(1, levels + 1))
