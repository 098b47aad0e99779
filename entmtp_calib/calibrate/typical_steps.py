"""Policies over recorded steps, for acceptance under which the text depends on the tree: what they are worth there, and their
ceiling and floor.

A replay over a trace walks on from where a policy's choice leaves it. Recorded steps are those of one rollout, whatever a policy
would have chosen: they are taken as a sample of the steps that any policy meets. That holds as far as the choice at one step does
not change how well the next ones go. Numpy only; runs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.calibrate.thresholds import Costs, Outcome, Speed
from entmtp_calib.evidence import Recorded
from entmtp_calib.policy import Policy
from entmtp_calib.replay import Replayer
from entmtp_calib.topology import Topology

_ROUNDS = 20


class RecordedSteps(Replayer):
    """Runs policies over recorded steps, one after the other as they were recorded.

    Args:
        topologies: the bank.
        texts: rollouts over it.
    """

    @classmethod
    def of(cls, topologies: Sequence[Topology], texts: Sequence[Recorded]) -> RecordedSteps:
        """Recorded steps before a signal is chosen."""
        return cls(topologies, texts, None, [text.depths for text in texts])  # type: ignore[arg-type]

    def _onward(self, here: NDArray[np.int64], accepted: NDArray[np.int64]) -> NDArray[np.int64]:
        return here + 1


def best_choices(steps: RecordedSteps, seconds: Sequence[float]) -> Speed:
    """The most tokens per second if every step knew what every tree would accept at it: the oracle of recorded steps.

    By Dinkelbach's iteration: at rate r a tree is worth `accepted + 1 - r · seconds`.

    Args:
        seconds: cost of one step with each tree.
    """
    depths, cost = np.concatenate(steps.depths), np.asarray(seconds, np.float64)
    text = np.repeat(np.arange(len(steps.depths)), [len(own) for own in steps.depths])
    rate = 0.0
    for _ in range(_ROUNDS):
        chosen = (depths + 1 - rate * cost).argmax(1)
        tokens, spent = depths[np.arange(len(depths)), chosen] + 1.0, cost[chosen]
        before, rate = rate, float(tokens.sum() / spent.sum())
        if rate == before:
            break
    sums = [np.bincount(text, column, len(steps.depths)).astype(np.float64) for column in (tokens, spent)]
    return Speed(sums[0], sums[1])


def at_random(shares: Sequence[float], steps: RecordedSteps, seconds: NDArray[np.float64]) -> float:
    """Tokens per second expected of taking each tree as often as a policy does, whatever the step.

    Args:
        shares: fraction of steps per tree; seconds: of a step with each.
    """
    weights = np.asarray(shares) / sum(shares)
    tokens = np.concatenate(steps.depths).mean(0) + 1
    return float(weights @ tokens / (weights @ seconds))


def outcome_of(policy: Policy, costs: Costs, index: Sequence[NDArray[Any]], tokens: Sequence[NDArray[Any]]) -> Outcome:
    """What a policy's own rollouts came to, with measured step costs.

    A step for which there was no room is costed as the first tree.

    Args:
        index: tree of every step, `[steps]` per text; tokens: committed ones, root included.
    """
    seconds = costs.of(policy)
    trees, made = np.concatenate(index).clip(0), np.concatenate(tokens)
    return Outcome(
        np.array([own.sum() for own in tokens], np.float64),
        np.array([seconds[own.clip(0)].sum() for own in index]),
        policy,
        float((made - 1).mean()),
        tuple((np.bincount(trees, minlength=len(costs.alone)) / len(trees)).tolist()),
        100 * sum(int((own[1:] != own[:-1]).sum()) for own in index) / len(trees),
    )
