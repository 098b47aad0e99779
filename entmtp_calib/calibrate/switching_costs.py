"""What choosing costs: seconds to draft several trees, to read a signal, to take the best nodes; measured once and kept.

Runs the heads on this device. Knows nothing of policies or of what they gain.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import torch

from entmtp_calib.calibrate.rounds import clock
from entmtp_calib.calibrate.thresholds import Costs
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.engine.acceptance import Rule
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.graph_decoder import decoder_with, prepare
from entmtp_calib.engine.pair import Pair
from entmtp_calib.policy import Dynamic, Ladder, Policy, Static
from entmtp_calib.signals import COMBINED, Signal, terms
from entmtp_calib.storage import Journal, digest
from entmtp_calib.topology import Topology, chain, union

_REPEATS = 15


class SwitchingCosts:
    """Step costs of policies that switch among the trees of a bank, or that take the best nodes of a draft.

    Args:
        pair: target and heads.
        kept: the bank's trees with their timings.
        rule: how tokens are chosen.
        journal: where measurements are kept.
    """

    def __init__(self, pair: Pair, kept: Sequence[Timed], rule: Rule, journal: Journal) -> None:
        self.pair, self.kept, self.rule, self.journal = pair, kept, rule, journal
        self.trees = [arm.topology for arm in kept]
        self._known = {row["arm"]: float(row["draft_seconds"]) for row in journal.rows() if "draft_seconds" in row}

    def of(self, name: str) -> Costs:
        """Costs under a signal, by its name."""
        signal = plain_signal(name, self.pair.heads.depth)
        most, by_depth = 0.0, dict[int, float]()
        for depth in sorted({tree.depth for tree in self.trees}):
            most = max(most, self._seconds(union(tree for tree in self.trees if tree.depth <= depth), signal))
            by_depth[depth] = most  # drafting deeper costs no less, whatever the clock says
        return Costs(
            tuple(arm.seconds_per_step for arm in self.kept),
            tuple(arm.draft_seconds for arm in self.kept),
            tuple(by_depth[tree.depth] for tree in self.trees),
        )

    def chain_first(self, name: str) -> Costs:
        """Costs of drafting the signal's chain, choosing, and drafting the chosen tree anew."""
        signal = plain_signal(name, self.pair.heads.depth)
        seconds = self._seconds(chain(signal.depth), signal)
        none = (0.0,) * len(self.kept)  # of what drafting a tree takes, nothing is saved
        return Costs(tuple(arm.seconds_per_step for arm in self.kept), none, (seconds,) * len(self.kept))

    def levels(self) -> list[float]:
        """Seconds to draft the first 0, 1, … levels of the bank's union, with the confidence of its chain."""
        everything = union([*self.trees, chain(max(tree.depth for tree in self.trees))])
        cut = [Topology(tuple(node for node in everything.nodes if len(node) <= depth)) for depth in range(everything.depth + 1)]
        seconds = [self._seconds(tree, Signal(f"expected_chain_{depth}")) for depth, tree in enumerate(cut) if depth]
        return list(itertools.accumulate(seconds, max, initial=0.0))

    def _seconds(self, drafted: Topology, signal: Signal) -> float:
        """Seconds that drafting a tree and reading a signal add to a step, over one that does neither."""
        whole = union([drafted, chain(signal.depth)])
        label = f"union {_digest(whole)}, {_kind(signal)}"
        return self._measured(label, [Topology(), whole], Ladder((0.0,), (0, 1)), signal)

    def best_nodes(self, drafted: Topology, name: str | None = None) -> float:
        """Seconds that drafting a tree, ordering its nodes by value and laying out the best add to a step that does none of it.

        Args:
            name: of the signal that says how many are taken; None for always as many.
        """
        if name is None:
            return self._measured(f"best of {_digest(drafted)}", [], Dynamic((), (drafted.size,), drafted), None)
        signal, sizes = plain_signal(name, self.pair.heads.depth), (1, drafted.size)
        return self._measured(f"best of {_digest(drafted)}, {_kind(signal)}", [], Dynamic((0.0,), sizes, drafted), signal)

    def _measured(self, label: str, trees: Sequence[Topology], policy: Policy, signal: Signal | None) -> float:
        if label not in self._known:
            parts = self.pair.graphs, self.pair.target, self.pair.heads
            bare = decoder_with(*parts, [Topology()], Static(0), rule=self.rule)
            seconds = max(0.0, front_seconds(decoder_with(*parts, trees, policy, signal, self.rule)) - front_seconds(bare))
            self.journal.append({"arm": label, "prompt": "", "round": 0, "draft_seconds": seconds})
            self._known[label] = seconds
        return self._known[label]


def plain_signal(name: str, heads: int) -> Signal:
    """A signal that costs what the one of this name does; `combined` need not be fitted for that."""
    return Signal(COMBINED, (1.0,) * len(terms(heads))) if name == COMBINED else Signal(name)


@torch.inference_mode()
def front_seconds(decoder: Decoder, repeats: int = _REPEATS) -> float:
    """Median seconds of a step up to its forward: what the target's logits tell, the draft, the transfer, signal and layout."""
    prepare(decoder)
    times = []
    for _ in range(repeats + 2):
        start = clock(decoder.target.device)
        root = decoder.dummy_root()
        draft = decoder.draft(root)
        decoder.fetch(root, draft, None)
        decoder.layout(decoder.policy.members[-1], draft)
        times.append(clock(decoder.target.device) - start)
    return statistics.median(times[2:])


def _digest(tree: Topology) -> str:
    return digest(tree.to_lists())[7:19]


def _kind(signal: Signal) -> str:
    """What reading a signal takes."""
    parts = [part for part, there in (("chain", signal.depth), ("entropy", signal.reads_entropy)) if there]
    return " and ".join(parts) or "no heads"
