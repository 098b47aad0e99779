"""Nodes and topologies: which guesses of which head are verified together.

Pure values and integer arithmetic. Knows nothing of tokens, models, masks or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from entmtp_calib.errors import ArtefactError

Node = tuple[int, ...]
"""Child ranks from the root: `(0, 2)` is the third guess under the first guess."""
MAX_DEPTH = 64
"""The deepest node that is read from a file: a deeper one is a mistake, and checking thousands of them could take minutes."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A draft tree: parents before children, siblings without gaps; the root is implied.

    Any prefix of the nodes is a topology again, and `Topology(())` is plain autoregressive decoding. Two topologies are equal
    when their nodes are equal in order; `sorted()` gives the order that files use.

    Raises:
        ArtefactError: a duplicate, a node whose parent or left sibling does not come before it, or a rank below zero.
    """

    nodes: tuple[Node, ...] = ()

    def __post_init__(self) -> None:
        seen: set[Node] = set()
        for node in self.nodes:
            _check_node(node, seen)
            seen.add(node)

    @property
    def size(self) -> int:
        """Number of nodes, root excluded."""
        return len(self.nodes)

    @property
    def depth(self) -> int:
        """Length of the longest node; 0 for the empty topology."""
        return max(map(len, self.nodes), default=0)

    @property
    def max_rank(self) -> int:
        """Largest child rank; -1 for the empty topology."""
        return max((rank for node in self.nodes for rank in node), default=-1)

    def prefix(self, size: int) -> Topology:
        """The topology of the first `size` nodes."""
        return Topology(self.nodes[:size])

    def sorted(self) -> Topology:
        """The same tree in the order (depth, ranks)."""
        return Topology(tuple(sorted(self.nodes, key=lambda node: (len(node), node))))

    def candidates(self, max_depth: int) -> list[Node]:
        """The next child without a gap of the root and of every node that is not at `max_depth` yet."""
        children: dict[Node, int] = {(): 0}
        for node in self.nodes:
            children[node[:-1]] = children.get(node[:-1], 0) + 1
            children.setdefault(node, 0)
        return [(*parent, count) for parent, count in children.items() if len(parent) < max_depth]

    def to_lists(self) -> list[list[int]]:
        """Lists of ranks, the form that files and other tools use."""
        return [list(node) for node in self.nodes]

    def __str__(self) -> str:
        return f"{self.size} node{'s' * (self.size > 1)}, depth {self.depth}" if self.nodes else "autoregressive"


def tie_break(node: Node) -> tuple[int, int, Node]:
    """Order among nodes that gain the same: shallower, then smaller rank sum, then lexicographically smaller."""
    return (len(node), sum(node), node)


def union(topologies: Iterable[Topology]) -> Topology:
    """The smallest topology that holds all of them, in the order (depth, ranks)."""
    nodes = {node for topology in topologies for node in topology.nodes}
    return Topology(tuple(sorted(nodes, key=lambda node: (len(node), node))))


def chain(depth: int) -> Topology:
    """The greedy chain: each head's first guess, one under the other."""
    return Topology(tuple((0,) * d for d in range(1, depth + 1)))


def from_lists(value: Any, where: str = "tree") -> Topology:
    """A topology from lists of ranks in any order, as files hold them.

    Args:
        value: a list of lists of integers.
        where: what to call it in messages.

    Raises:
        ArtefactError: not lists of integers, a duplicate, a gap, or a node deeper than is read.
    """
    if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
        raise ArtefactError(f"{where} is not a list of node lists.", "A tree looks like [[0], [0, 0], [1]].")
    deepest = max(map(len, value), default=0)
    if deepest > MAX_DEPTH:
        raise ArtefactError(f"{where} has a node {deepest} deep; {MAX_DEPTH} is the most that is read.")
    nodes = [tuple(item) for item in value]
    for node in nodes:
        if not node or not all(type(rank) is int for rank in node):
            raise ArtefactError(f"{where} holds {list(node)!r}, which is not a list of integers.")
    try:
        return Topology(tuple(sorted(nodes, key=lambda node: (len(node), node))))
    except ArtefactError as error:
        raise ArtefactError(f"{where}: {error.message}", error.hint) from None


def draw(topology: Topology, beside: Mapping[Node, str] | None = None) -> Iterator[str]:
    """The tree as lines of text, one node each.

    Args:
        beside: what to write beside nodes.
    """
    kids: dict[Node, list[Node]] = {}
    for node in topology.sorted().nodes:
        kids.setdefault(node[:-1], []).append(node)
    yield "root"
    yield from _draw_below((), kids, "", beside or {})


def published_default() -> Topology:
    """The 63-node tree that Medusa published (`mc_sim_7b_63`) and Hydra ships unchanged: the fixed default to beat."""
    by_parent: list[tuple[Node, int]] = [((), 10)]
    by_parent += [((rank,), count) for rank, count in enumerate((10, 7, 3, 2, 1, 1, 1, 1, 1, 1))]
    second = [(0, rank) for rank in range(8)] + [(1, 0), (2, 0)]
    by_parent += list(zip(second, (10, 3, 2, 1, 1, 1, 1, 1, 2, 1), strict=True))
    by_parent.append(((0, 0, 0), 2))
    return Topology(tuple((*parent, rank) for parent, count in by_parent for rank in range(count)))


def _check_node(node: Node, seen: set[Node]) -> None:
    if not node or any(rank < 0 for rank in node):
        raise ArtefactError(f"{list(node)} is not a node.", "A node is a list of child ranks from 0 up, as in [0, 2].")
    if node in seen:
        raise ArtefactError(f"node {list(node)} appears twice.", "Remove one of them.")
    parent, rank = node[:-1], node[-1]
    if parent and parent not in seen:
        raise ArtefactError(f"node {list(node)} has no parent {list(parent)} before it.", "Add the parent.")
    if rank and (*parent, rank - 1) not in seen:
        raise ArtefactError(
            f"node {list(node)} leaves a gap: its sibling {[*parent, rank - 1]} is missing.", "Ranks must be contiguous."
        )


def _draw_below(parent: Node, kids: dict[Node, list[Node]], indent: str, beside: Mapping[Node, str]) -> Iterator[str]:
    children: Sequence[Node] = kids.get(parent, [])
    for child in children:
        last = child == children[-1]
        more = f"  {beside[child]}" if child in beside else ""
        yield f"{indent}{'└─' if last else '├─'} {child[-1]}{more}"
        yield from _draw_below(child, kids, indent + ("   " if last else "│  "), beside)
