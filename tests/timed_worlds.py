"""Timings without a clock: rows whose true speeds, noise and drift are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from entmtp_calib.calibrate.timing import AR, AR_AGAIN, Arm
from entmtp_calib.topology import Topology, chain


def timing_rows(
    costs: Mapping[str, float], prompts: int, rounds: int, noise: float, seed: int, taste: float = 0.0
) -> list[dict[str, Any]]:
    """Rows of arms that were timed on every prompt in every round.

    Args:
        costs: true seconds per step by arm; plain decoding and its repeat (1 second) are added where they are missing.
        noise: standard deviation of the log of every run's seconds, the arms' own; all arms share a drift of 3 % per round, and
            prompts have lengths and speeds of their own.
        taste: standard deviation of how much better or worse an arm does on a prompt than on others.
    """
    rng = np.random.default_rng(seed)
    costs = {AR: 1.0, AR_AGAIN: 1.0, **costs}
    lengths, pace = rng.integers(40, 160, prompts), np.exp(rng.normal(0, 0.1, prompts))
    likes = np.exp(rng.normal(0, taste, (len(costs), prompts)))
    rows = []
    for number in range(rounds):
        drift = np.exp(rng.normal(0, 0.03))
        for prompt in range(prompts):
            for arm, (label, cost) in enumerate(costs.items()):
                steps = int(lengths[prompt])
                decoding = cost * steps * pace[prompt] * likes[arm, prompt] * drift * np.exp(rng.normal(0, noise))
                row = {"arm": label, "prompt": f"p{prompt}", "round": number, "prompt_tokens": 50, "tokens": steps}
                rows.append(row | {"steps": steps, "prefill_seconds": 1.0, "seconds": 1.0 + decoding, "ids": f"text {prompt}"})
    return rows


def copies(count: int) -> dict[str, float]:
    """Equal arms."""
    return {f"copy{number:02d}": 0.5 for number in range(count)}


def arms_of(labels: Iterable[str]) -> list[Arm]:
    """Arms with trees of rising size in the order of their labels, plain decoding and its repeat among them."""
    trees = [label for label in labels if label not in (AR, AR_AGAIN)]
    found = [Arm(label, chain(size)) for size, label in enumerate(trees, 1)]
    return [Arm(AR, Topology()), *found, Arm(AR_AGAIN, Topology())]
