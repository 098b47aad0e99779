"""Dynamic policies by replay: which tree to draft, how many of its best nodes to verify at which signal, and what that gains.

Under exact acceptance the path values of all drafted nodes tell which of them any number of best nodes would hold, and so what is
accepted. Runs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.calibrate.candidates import best_of_size
from entmtp_calib.calibrate.ceiling import headroom_share, oracle, random_switching
from entmtp_calib.calibrate.fitting import STUDY_BINS, Fitted, Judged, recommend
from entmtp_calib.calibrate.held_out import held_out
from entmtp_calib.calibrate.search import Frontier
from entmtp_calib.calibrate.thresholds import Costs, Gain, Outcome, best, best_static, evaluate, gain, ladder_over
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.evidence import NodeTable, Trace
from entmtp_calib.policy import Dynamic, Ladder, Policy, Static
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import Signal
from entmtp_calib.topology import Topology

KIND = "dynamic"
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
"""Numbers of nodes that are tried."""
DRAFTED = (8, 12, 16, 24, 32, 48, 64)
"""Sizes of the trees that may be drafted."""
_LAST = 2**30  # place of what is not in the drafted tree


@dataclass(frozen=True, slots=True)
class Drafts:
    """Texts, and the path values of everything that was drafted at their positions.

    drafted: in sorted order; values: float32 `[n, nodes]` per text.
    """

    drafted: Topology
    traces: Sequence[Trace]
    values: Sequence[NDArray[np.float32]]

    def depths(self, tree: Topology, sizes: Sequence[int]) -> list[NDArray[np.int32]]:
        """Drafts that the best nodes of a part of the drafted tree accept at every position, by how many, int32 `[n, sizes]`."""
        found = [places(values, self.drafted, tree, trace) for trace, values in zip(self.traces, self.values, strict=True)]
        return [np.stack([dynamic_depths(place, size) for size in sizes], 1) for place in found]


@dataclass(frozen=True, slots=True)
class Offer:
    """A tree to draft and how many of its nodes may be taken.

    verify: seconds of a step but for the draft, by size; draft: seconds to draft it and order its nodes; read: the same with what
    a signal takes.
    """

    drafted: Topology
    sizes: tuple[int, ...]
    verify: tuple[float, ...]
    draft: float
    read: float

    def part(self, columns: Sequence[int]) -> Offer:
        """The same with some of the sizes, by their place."""
        sizes, verify = tuple(self.sizes[column] for column in columns), tuple(self.verify[column] for column in columns)
        return Offer(self.drafted, sizes, verify, self.draft, self.read)


def draftable(frontier: Frontier, traces: Sequence[Trace]) -> list[Topology]:
    """The best tree of every size that may be drafted, over traces of the search prompts."""
    largest = max(growth.order.size for growth in frontier.growths)
    return [best_of_size(frontier, traces, size).topology for size in sorted({min(size, largest) for size in DRAFTED})]


def places(values: NDArray[np.float32], drafted: Topology, tree: Topology, trace: Trace) -> NDArray[np.int64]:
    """How many nodes of a tree go before each node along the true text, int64 `[n, depth]`; a huge number where it is not in it.

    Nodes are ordered by path value, of equals as the decoder has them: the shallower first, then the smaller ranks.

    Args:
        values: `[n, nodes]` of the drafted tree, of which `tree` is a part.
    """
    nodes, columns = tree.sorted().nodes, {node: column for column, node in enumerate(drafted.sorted().nodes)}
    own = values[:, [columns[node] for node in nodes]]
    table, found = NodeTable(tree.sorted()), np.full((len(trace), tree.depth), _LAST, np.int64)
    for depth in range(1, min(tree.depth, trace.heads) + 1):
        reached, row = table.follow(trace.ranks[:, :depth])
        at = np.flatnonzero(reached == depth)
        node = row[at, None] - 1
        mine, others = np.take_along_axis(own[at], node, 1), own[at]
        before = (others > mine) | ((others == mine) & (np.arange(len(nodes)) < node))
        found[at, depth - 1] = before.sum(1)
    return found


def dynamic_depths(found: NDArray[np.int64], size: int) -> NDArray[np.int32]:
    """Drafts that the best `size` nodes accept at every position, from what `places` gives, int32 `[n]`."""
    return (found < size).cumprod(1).sum(1).astype(np.int32)


def verify_seconds(arms: Sequence[Timed], sizes: Sequence[int]) -> tuple[float, ...]:
    """Seconds of a step but for its draft, by size: of the timed trees and on straight lines between them; never falling."""
    rest = sorted((arm.topology.size, arm.seconds_per_step - arm.draft_seconds) for arm in arms)
    known = list(accumulate((seconds for _size, seconds in rest), max))
    return tuple(np.interp(sizes, [size for size, _seconds in rest], known).tolist())


def costs_of(offers: Sequence[Offer]) -> Costs:
    """Costs of all sizes of all offers, one behind the other."""
    rows = [(seconds + offer.draft, offer.draft, offer.read) for offer in offers for seconds in offer.verify]
    alone, draft, shared = zip(*rows, strict=True)
    return Costs(alone, draft, shared)


def replayer_of(drafts: Drafts, offers: Sequence[Offer], signal: Signal | None = None) -> Replayer:
    """Replays whose trees are all sizes of all offers, one behind the other."""
    parts = [drafts.depths(offer.drafted, offer.sizes) for offer in offers]
    depths = [np.concatenate(columns, 1) for columns in zip(*parts, strict=True)]
    return Replayer([], drafts.traces, signal, depths)


def fit_dynamic(replayer: Replayer, costs: Costs, groups: Sequence[Sequence[int]], bins: int) -> Outcome:
    """The fastest ladder of at most so many bins over the sizes of one offer, whichever it is.

    Args:
        replayer, costs: of all offers; groups: the columns of each.
    """
    single = best_static(replayer, costs)
    found = [replace(single, policy=Ladder((), single.policy.members))]
    if bins > 1:
        found += [ladder_over(replayer, costs, list(group), bins, found[0]) for group in groups]
    return best(found)


def with_dynamic(
    fitted: Fitted, offers: Sequence[Offer], drafts: tuple[Drafts, Drafts], replayers: tuple[Replayer, Replayer], seed: int
) -> tuple[Fitted, Offer]:
    """The same with the dynamic policy that gains most in cross-validation, whether it reads a signal or not, and its offer.

    Args:
        drafts: of the fit and of the test prompts; replayers: over the bank, of the same.
    """
    fit, test = drafts
    costs, whole = costs_of(offers), replayer_of(fit, offers)
    ends = list(accumulate((len(offer.sizes) for offer in offers), initial=0))
    groups = [range(*pair) for pair in pairwise(ends)]
    base = held_out("base_top1", best_static, replayers[0], fitted.costs)  # a static tree reads no signal
    fitters = [partial(fit_dynamic, groups=groups, bins=bins) for bins in (1, STUDY_BINS)]
    seen = [(fitter, gain(held_out(fitted.signal.name, fitter, whole, costs), base, seed)) for fitter in fitters]
    fitter, apart = max(seen, key=lambda pair: pair[1].ratio)
    policy, chosen = _policy(fitter(whole.reading(fitted.signal), costs).policy, offers, groups)
    own, static = costs_of([chosen]), fitted.policies[0].test
    here, there = (evaluate(policy, replayer_of(part, [chosen], fitted.signal), own) for part in drafts)
    floor = random_switching(there, replayer_of(test, [chosen]), own, seed)
    share = headroom_share(there, static, oracle(replayers[1], fitted.costs.alone))
    judged = [*fitted.policies, Judged(KIND, here, there, apart, gain(there, static, seed), floor, share)]
    return replace(fitted, policies=judged, recommended=recommend(judged)), chosen


def _policy(ladder: Policy, offers: Sequence[Offer], groups: Sequence[range]) -> tuple[Dynamic, Offer]:
    """A ladder over the columns of all offers as a policy over bins, and its offer with one size for each."""
    assert isinstance(ladder, Ladder)
    offer, group = next((offer, group) for offer, group in zip(offers, groups, strict=True) if ladder.trees[0] in group)
    own = offer.part([column - group.start for column in ladder.trees])
    return Dynamic(ladder.edges, own.sizes, own.drafted), own


@dataclass(frozen=True, slots=True)
class SameSize:
    """A static tree and as many of the best nodes of a draft on the test prompts.

    accepted: mean accepted drafts per step; tokens_per_s: by replay; gain: of the best nodes over the static tree.
    """

    size: int
    static_accepted: float
    dynamic_accepted: float
    static_tokens_per_s: float
    dynamic_tokens_per_s: float
    gain: Gain


@dataclass(frozen=True, slots=True)
class AtSizes:
    """Timed trees beside as many of the best nodes; drafted: nodes that these are chosen from; prompts: judged on."""

    drafted: int
    prompts: int
    rows: tuple[SameSize, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def compare_sizes(arms: Sequence[Timed], offer: Offer, test: Drafts, seed: int) -> AtSizes:
    """Every timed tree beside as many of the best nodes of one draft, as far as it has so many."""
    chosen = sorted((arm for arm in arms if 0 < arm.topology.size <= offer.drafted.size), key=lambda arm: arm.topology.size)
    sizes = tuple(arm.topology.size for arm in chosen)
    made = Offer(offer.drafted, sizes, verify_seconds(arms, sizes), offer.draft, offer.read)
    prices = Costs(tuple(arm.seconds_per_step for arm in chosen), *[(0.0,) * len(chosen)] * 2)
    static, dynamic = Replayer([arm.topology for arm in chosen], test.traces), replayer_of(test, [made])
    rows = []
    for index, size in enumerate(sizes):
        one, other = evaluate(Static(index), static, prices), evaluate(Static(index), dynamic, costs_of([made]))
        speeds = one.tokens_per_s, other.tokens_per_s
        rows.append(SameSize(size, one.mean_accept, other.mean_accept, *speeds, gain(other, one, seed)))
    return AtSizes(offer.drafted.size, len(test.traces), tuple(rows))
