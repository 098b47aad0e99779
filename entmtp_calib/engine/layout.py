"""The tensors of one topology on one device: mask, depths, paths and the gathers of every draft level.

Built once per bank entry, so that switching trees is picking another layout; a part of one is gathered on the device. Knows
nothing of tokens or models.
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


class Rows:
    """Rows of a verification forward: the root first, parents before children.

    Attributes:
        topology: the tree that they are of; order: which of its rows (0 is the root, then the nodes) each one is, int64 `[rows]`.
        rows: how many; depth: the most nodes on a path, at which `paths` end.
        mask: bool `[rows, rows]`, row i may see row j: j is i or an ancestor of i.
        depths: int64 `[rows]`, distance from the root.
        parents: int64 `[rows]`, row of the parent; the root is its own.
        paths: int64 `[rows, depth + 1]`, rows from the root to this one, then zeros.
    """

    def __init__(self, topology: Topology, order: Tensor, mask: Tensor, depths: Tensor, parents: Tensor, paths: Tensor) -> None:
        self.topology, self.order = topology, order
        self.rows, self.depth = len(depths), paths.shape[1] - 1
        self.mask, self.depths, self.parents, self.paths = mask, depths, parents, paths

    def take(self, order: Tensor) -> Rows:
        """Some of the rows in another order, int64 `[rows]`: the root first, parents before children. Gathers, nothing else."""
        place = torch.zeros_like(self.depths).scatter_(0, order, torch.arange(len(order), device=order.device))
        mask = self.mask.index_select(0, order).index_select(1, order)
        parents, paths = place[self.parents[order]], place[self.paths[order, : len(order)]]
        return Rows(self.topology, self.order[order], mask, self.depths[order], parents, paths)

    def head(self, rows: int) -> Rows:
        """The first rows, as views."""
        paths = self.paths[:rows, : min(self.depth, rows - 1) + 1]
        return Rows(self.topology, self.order[:rows], self.mask[:rows, :rows], self.depths[:rows], self.parents[:rows], paths)

    def nodes(self) -> tuple[Node, ...]:
        """The node of every row but the root's; moves data to the host."""
        return tuple(self.topology.nodes[row - 1] for row in self.order[1:].tolist())


class TreeLayout(Rows):
    """All rows of a tree: row 0 is the root, then the nodes by (depth, ranks).

    Attributes:
        levels: one `Level` per depth.
    """

    def __init__(self, topology: Topology, device: torch.device) -> None:
        topology = topology.sorted()
        nodes: list[Node] = [(), *topology.nodes]
        row = {node: index for index, node in enumerate(nodes)}
        paths = [[row[node[:d]] for d in range(len(node) + 1)] for node in nodes]
        mask = torch.zeros(len(nodes), len(nodes), dtype=torch.bool)
        for index, path in enumerate(paths):
            mask[index, path] = True
        super().__init__(
            topology,
            torch.arange(len(nodes), device=device),
            mask.to(device),
            torch.tensor([len(node) for node in nodes], device=device),
            torch.tensor([row[node[:-1]] for node in nodes], device=device),
            torch.tensor([path + [0] * (topology.depth + 1 - len(path)) for path in paths], device=device),
        )
        self.levels = _levels(nodes, topology.depth, device)

    def rows_in(self, other: Rows) -> Tensor:
        """Row of `other` that holds each of this layout's nodes, int64 `[rows]`; `other` must contain the topology, whole."""
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
