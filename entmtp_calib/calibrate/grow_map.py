"""A tree as Sequoia's grow map, the file that its decoder reads with `torch.load`. Knows no paths."""

from __future__ import annotations

import io

import torch

from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.topology import Node, Topology


def grow_map_bytes(topology: Topology) -> bytes:
    """The bytes of the file; the same for the same tree.

    `roots`: node ids of every level, the root's level first; `branches`: how many children each of them has; `Successors`: the
    children of every node; `mask`: int64 `[size, size]`, 1 where a node may look; `depth`: int64 `[size]`; `size`: nodes with
    the root. Ids go level by level, children in the order in which they are tried.
    """
    layout = TreeLayout(topology, torch.device("cpu"))
    nodes: list[Node] = [(), *layout.topology.nodes]
    children: dict[Node, list[int]] = {node: [] for node in nodes}
    levels: list[list[int]] = [[] for _ in range(layout.depth + 1)]
    for index, node in enumerate(nodes):
        levels[len(node)].append(index)
        if node:
            children[node[:-1]].append(index)
    grow_map = {
        "roots": levels,
        "branches": [[len(children[nodes[index]]) for index in level] for level in levels],
        "Successors": list(children.values()),
        "mask": layout.mask.long(),
        "depth": layout.depths.clone(),
        "size": layout.rows,
    }
    buffer = io.BytesIO()
    torch.save(grow_map, buffer)
    return buffer.getvalue()
