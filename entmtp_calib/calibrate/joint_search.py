"""Growth from joint rollouts: the paper's one rollout per added node, and a schedule that takes many nodes from each.

For exact acceptance the trace gives the same trees at a fraction of the forwards (`search`); for typical acceptance, where the
text depends on the tree, this is the way. Numpy only; the caller runs the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.calibrate.search import Growth
from entmtp_calib.topology import Node, Topology, tie_break

SCHEDULES = ("paper", "joint")


@dataclass(frozen=True, slots=True)
class JointEvidence:
    """What a joint rollout saw.

    nodes: the joint tree; accepted: bool `[steps, nodes]`, the node and all nodes above it would have been accepted.
    """

    nodes: Topology
    accepted: NDArray[np.bool_]


Rollout = Callable[[Topology, Topology], JointEvidence]
"""`(joint, current)`: verify the joint tree at every step, advance with the current one."""


def grow_jointly(rollout: Rollout, pool: Topology, max_nodes: int, max_depth: int, schedule: str) -> tuple[Growth, int]:
    """Grow one ordering of nodes.

    Args:
        rollout: runs the model.
        pool: nodes that the "joint" schedule may choose from, besides those next to the current tree; "paper" uses none.
        schedule: "paper" adds one node per rollout; "joint" doubles the tree with every rollout.

    Returns:
        The growth, and how many rollouts it took.
    """
    order, scores, rollouts, stopped = Topology(), list[float](), 0, f"reached {max_nodes} nodes"
    while order.size < max_nodes and stopped.startswith("reached"):
        evidence = rollout(_joint(order, pool if schedule == "joint" else Topology(), max_depth), order)
        rollouts += 1
        for _ in range(min(1 if schedule == "paper" else max(1, order.size), max_nodes - order.size)):
            best, score = _best(order, evidence, max_depth)
            if best is None:
                stopped = "no node gains anything"
                break
            order = Topology((*order.nodes, best))
            scores.append(score)
    return Growth(max_depth, order, tuple(scores), stopped), rollouts


def _joint(order: Topology, pool: Topology, max_depth: int) -> Topology:
    """The current tree, every node that may be added next, and the pool."""
    nodes = {*order.nodes, *order.candidates(max_depth), *(node for node in pool.nodes if len(node) <= max_depth)}
    return Topology(tuple(sorted(nodes, key=lambda node: (len(node), node))))


def _best(order: Topology, evidence: JointEvidence, max_depth: int) -> tuple[Node | None, float]:
    """The node that adds most to the mean accept, and the mean accept with it."""
    column = {node: index for index, node in enumerate(evidence.nodes.nodes)}
    accepted = np.zeros(len(evidence.accepted), np.int64)
    for node in order.nodes:
        np.maximum(accepted, evidence.accepted[:, column[node]] * len(node), out=accepted)
    candidates = [node for node in order.candidates(max_depth) if node in column]
    gains = {node: int((evidence.accepted[:, column[node]] & (accepted < len(node))).sum()) for node in candidates}
    best = min(candidates, key=lambda node: (-gains[node], *tie_break(node)), default=None)
    if best is None or not gains[best]:
        return None, 0.0
    return best, (int(accepted.sum()) + gains[best]) / max(1, len(accepted))
