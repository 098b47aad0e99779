"""The tensors of one topology on one device: mask, depths, paths and the gathers of every draft level.

Built once per bank entry, so that switching trees is picking another layout. Knows nothing of tokens or models.
See `docs/tree-attention.md` for a worked example.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from entmtp_calib.topology import Node, Topology


@dataclass(frozen=True, slots=True)
class Level:
    """How one level of the tree is drafted from the one above.

    expand: which nodes of the level above have children, int64 `[parents]`, an index into that level;
    slots: for each node of this level, the place of its parent in `expand`, int64 `[nodes]`;
    ranks: for each node of this level, its child rank, int64 `[nodes]`;
    width: how many guesses per parent are needed, the largest rank plus one.
    """

    expand: Tensor
    slots: Tensor
    ranks: Tensor
    width: int


class TreeLayout:
    """Rows of the verification forward for one topology: row 0 is the root, then the nodes by (depth, ranks).

    Attributes:
        topology: the tree, in row order.
        rows: number of rows, `size + 1`.
        mask: bool `[rows, rows]`, row i may see row j: j is i or an ancestor of i.
        depths: int64 `[rows]`, distance from the root.
        parents: int64 `[rows]`, row of the parent; the root is its own.
        paths: int64 `[rows, depth + 1]`, rows from the root to this one, then zeros.
        levels: one `Level` per depth.
    """

    def __init__(self, topology: Topology, device: torch.device) -> None:
        self.topology = topology.sorted()
        nodes: list[Node] = [(), *self.topology.nodes]
        row = {node: index for index, node in enumerate(nodes)}
        self.rows = len(nodes)
        self.depth = self.topology.depth
        paths = [[row[node[:d]] for d in range(len(node) + 1)] for node in nodes]
        mask = torch.zeros(self.rows, self.rows, dtype=torch.bool)
        for index, path in enumerate(paths):
            mask[index, path] = True
        self.mask = mask.to(device)
        self.depths = torch.tensor([len(node) for node in nodes], device=device)
        self.parents = torch.tensor([row[node[:-1]] for node in nodes], device=device)
        self.paths = torch.tensor([path + [0] * (self.depth + 1 - len(path)) for path in paths], device=device)
        self.levels = _levels(nodes, self.depth, device)

    def rows_in(self, other: TreeLayout) -> Tensor:
        """Row of `other` that holds each of this layout's nodes, int64 `[rows]`; `other` must contain the topology."""
        row = {node: index for index, node in enumerate([(), *other.topology.nodes])}
        return torch.tensor([row[node] for node in [(), *self.topology.nodes]], device=self.depths.device)


def _levels(nodes: list[Node], depth: int, device: torch.device) -> tuple[Level, ...]:
    levels = []
    above: list[Node] = [()]
    for d in range(1, depth + 1):
        here = [node for node in nodes if len(node) == d]
        with_children = {node[:-1] for node in here}
        expand = [index for index, node in enumerate(above) if node in with_children]
        slot = {above[index]: place for place, index in enumerate(expand)}
        levels.append(
            Level(
                expand=torch.tensor(expand, device=device),
                slots=torch.tensor([slot[node[:-1]] for node in here], device=device),
                ranks=torch.tensor([node[-1] for node in here], device=device),
                width=max(node[-1] for node in here) + 1,
            )
        )
        above = here
    return tuple(levels)
