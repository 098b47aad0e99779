"""Growth from joint rollouts: the paper's one rollout per added node, and a schedule that takes many nodes from each.

For exact acceptance the trace gives the same trees at a fraction of the forwards (`search`); for typical acceptance, where the
text depends on the tree, this is the way. Evidence is kept on disk batch by batch, so a killed search loses one batch at
most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.calibrate.farm import Farm, Work
from entmtp_calib.calibrate.rollout import BATCH
from entmtp_calib.calibrate.search import Growth
from entmtp_calib.engine.acceptance import Rule
from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.joint import JointDecoder
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.storage import arrays_bytes, digest, load_arrays, write_atomically
from entmtp_calib.topology import Node, Topology, from_lists, tie_break

SCHEDULES = ("trace", "paper", "joint")


@dataclass(frozen=True, slots=True)
class JointEvidence:
    """What a joint rollout saw.

    nodes: the joint tree; accepted: bool `[steps, nodes]`, the node and all nodes above it would have been accepted.
    """

    nodes: Topology
    accepted: NDArray[np.bool_]


Rollout = Callable[[Topology, Topology], JointEvidence]
"""`(joint, current)`: verify the joint tree at every step, advance with the current one."""


def joint_rollout(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    stop: StopRule,
    rule: Rule,
    folder: Path,
    on_prompt: Callable[[int], None] | None = None,
    farm: Farm | None = None,
) -> tuple[Rollout, Callable[[], int]]:
    """A rollout over some prompts whose evidence is kept in a folder, batch by batch, and taken from there.

    Args:
        farm: processes that share the work, which they know as "joint".

    Returns:
        The rollout, and a function that says how many forwards of the target all its evidence took.
    """
    forwards: dict[Path, int] = {}
    work = joint_work(target, drafter, prompts, stop, rule)

    def run(joint: Topology, current: Topology) -> JointEvidence:
        trees = [joint.to_lists(), current.sorted().to_lists()]
        key = digest(trees).removeprefix("sha256:")[:16]
        paths = {start: folder / f"{key}-{start:05d}.npz" for start in range(0, len(prompts), BATCH)}
        done = sum(path.exists() for path in paths.values()) * BATCH

        def keep(item: list[Any], result: bytes) -> None:
            nonlocal done
            write_atomically(paths[item[2]], result)
            done += BATCH
            if on_prompt:
                on_prompt(min(done, len(prompts)))

        items = [[*trees, start] for start, path in paths.items() if not path.exists()]
        (farm or Farm()).run("joint", items, work, keep)
        parts = []
        for path in paths.values():
            arrays = load_arrays(path, "joint rollout")
            forwards[path] = int(arrays["forwards"])
            parts.append(np.unpackbits(arrays["accepted"], 1, joint.size).astype(bool))
        return JointEvidence(joint, np.concatenate(parts))

    return run, lambda: sum(forwards.values())


def joint_work(target: Target, drafter: Drafter, prompts: Sequence[Sequence[int]], stop: StopRule, rule: Rule) -> Work:
    """What a process does with `[joint nodes, current nodes, first prompt]`: the evidence of a batch as the bytes of its file."""

    def work(item: list[Any]) -> bytes:
        joint, current, start = from_lists(item[0]), from_lists(item[1]), item[2]
        decoder = JointDecoder(target, drafter, joint, current, rule)
        rows = [seen for ids in prompts[start : start + BATCH] for _step, seen in decoder.observed(ids, stop)]
        return arrays_bytes({"accepted": np.packbits(np.stack(rows), 1), "forwards": np.asarray(decoder.forwards)})

    return work


def grow_jointly(
    rollout: Rollout, pool: Topology, max_nodes: int, max_depth: int, schedule: str, deepest: int | None = None
) -> tuple[Growth, int]:
    """Grow one ordering of nodes.

    Args:
        rollout: runs the model.
        pool: nodes that the "joint" schedule may choose from, besides those next to the current tree; "paper" uses none.
        schedule: "paper" adds one node per rollout; "joint" doubles the tree with every rollout.
        deepest: how deep the "joint" schedule looks in a rollout, at least `max_depth`; growths of several depths that look
            equally deep share the rollouts of trees that they have in common.

    Returns:
        The growth, and how many rollouts it took.
    """
    order, scores, rollouts, stopped = Topology(), list[float](), 0, f"reached {max_nodes} nodes"
    while order.size < max_nodes and stopped.startswith("reached"):
        joint = _joint(order, pool, deepest or max_depth) if schedule == "joint" else _joint(order, Topology(), max_depth)
        evidence = rollout(joint, order)
        rollouts += 1
        before, seen = order.size, set(joint.nodes)
        for _ in range(min(1 if schedule == "paper" else max(1, before), max_nodes - before)):
            best, score = _best(order, evidence, max_depth)
            if best is None:
                if order.size == before or seen.issuperset(order.candidates(max_depth)):
                    stopped = "no node gains anything"
                break  # else nodes that this rollout did not look at may gain
            order = Topology((*order.nodes, best))
            scores.append(score)
    return Growth(max_depth, order, tuple(scores), stopped), rollouts


def _joint(order: Topology, pool: Topology, max_depth: int) -> Topology:
    """The current tree, every node that may be added next, and the pool."""
    nodes = {*order.nodes, *order.candidates(max_depth), *(node for node in pool.nodes if len(node) <= max_depth)}
    return Topology(tuple(sorted(nodes, key=lambda node: (len(node), node))))


def _best(order: Topology, evidence: JointEvidence, max_depth: int) -> tuple[Node | None, float]:
    """The node that adds most to the mean accept, and the mean accept with it; the first one is taken even if it adds none."""
    column = {node: index for index, node in enumerate(evidence.nodes.nodes)}
    accepted = np.zeros(len(evidence.accepted), np.int64)
    for node in order.nodes:
        np.maximum(accepted, evidence.accepted[:, column[node]] * len(node), out=accepted)
    candidates = [node for node in order.candidates(max_depth) if node in column]
    gains = {node: int((evidence.accepted[:, column[node]] & (accepted < len(node))).sum()) for node in candidates}
    best = min(candidates, key=lambda node: (-gains[node], *tie_break(node)), default=None)
    if best is None or (order.nodes and not gains[best]):
        return None, 0.0
    return best, (int(accepted.sum()) + gains[best]) / max(1, len(accepted))
