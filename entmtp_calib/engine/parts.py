"""Which part of a draft is verified: the nodes of a bank's tree, or those with the greatest path values (after EAGLE-2).

Works on layouts and drafts, on the device alone; chooses no tree and knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from entmtp_calib.engine.drafter import Draft
from entmtp_calib.engine.layout import Rows, TreeLayout
from entmtp_calib.policy import Dynamic, Policy
from entmtp_calib.topology import Topology, chain, union

Parts = tuple[dict[int, Rows], dict[int, Tensor]]


def drafted_for(policy: Policy, topologies: Sequence[Topology], signal_depth: int) -> Topology:
    """What is drafted at every step: all that the policy may choose, and the chain that its signal reads."""
    trees = [policy.drafted] if isinstance(policy, Dynamic) else [topologies[index] for index in policy.members]
    return union([*trees, chain(signal_depth)])


def parts_of(policy: Policy, topologies: Sequence[Topology], drafted: TreeLayout) -> Parts:
    """For every index of a policy its rows, and where they are in a draft.

    For a dynamic policy only the shapes of the rows hold; which nodes they are is in every draft, see `by_value`.
    """
    device = drafted.depths.device
    if isinstance(policy, Dynamic):
        heads: dict[int, Rows] = {index: drafted.head(size + 1) for index, size in enumerate(policy.sizes)}
        return heads, {index: torch.arange(rows.rows, device=device) for index, rows in heads.items()}
    layouts = {index: TreeLayout(topologies[index], device) for index in policy.members}
    return dict(layouts), {index: layout.rows_in(drafted) for index, layout in layouts.items()}


def by_value(draft: Draft, most: int) -> Draft:
    """A draft in the order of path value, cut down to its root and `most` nodes.

    Of equal values the row of the drafted tree that comes first goes first, so a node comes behind its parent and the first n are
    a tree, whatever n.
    """
    assert draft.path_logp is not None
    order = draft.path_logp.sort(descending=True, stable=True).indices[: most + 1]
    return Draft(draft.tokens[order], draft.chain_logp, draft.path_logp[order], order)
