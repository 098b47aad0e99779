"""What a step costs as a function of the tree and of the text before it, fitted to timings.

`seconds = base + per_row · rows + per_level · depth + per_token · context`: a straight line in every part. Numpy only; the error
on arms that the fit did not see says how far to trust it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from entmtp_calib.topology import Topology

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a step.

    base: of any step; per_row: of each row that is verified, root included; per_level: of each level that is drafted;
    per_token: of each token of the text before.
    """

    base: float
    per_row: float
    per_level: float
    per_token: float

    def seconds(self, tree: Topology, context: float) -> float:
        """Seconds of one step with a tree behind so many tokens."""
        return self.base + self.per_row * (tree.size + 1) + self.per_level * tree.depth + self.per_token * context


def fit_costs(rows: Sequence[Row], trees: Mapping[str, Topology]) -> CostModel:
    """Least squares over runs, each weighted by its steps.

    Args:
        rows: of the timing journal, with `arm`, `seconds`, `prefill_seconds`, `steps`, `tokens` and `prompt_tokens`; rows of
            other arms, warm-ups and rows without a time are left out.
        trees: the arms' trees by label.
    """
    runs = _runs(rows, trees)
    parts = np.array([[1.0, trees[row["arm"]].size + 1, trees[row["arm"]].depth, _context(row)] for row in runs])
    seconds = np.array([_decoding(row) / row["steps"] for row in runs])
    weight = np.sqrt([row["steps"] for row in runs])
    found = np.linalg.lstsq(parts * weight[:, None], seconds * weight, rcond=None)[0]
    return CostModel(*map(float, found))


def modelled(rows: Sequence[Row], trees: Mapping[str, Topology]) -> dict[str, float]:
    """Seconds per step of every arm, at its own contexts, by the model that is fitted to all of them."""
    model = fit_costs(rows, trees)
    return {label: _predicted(model, tree, _runs(rows, [label])) for label, tree in trees.items()}


def modelled_unseen(rows: Sequence[Row], trees: Mapping[str, Topology]) -> dict[str, float]:
    """Seconds per step of every arm by a model that was fitted without that arm; nothing for fewer than 5 arms."""
    found = {}
    for label in trees if len(trees) >= 5 else ():
        model = fit_costs(rows, {name: tree for name, tree in trees.items() if name != label})
        found[label] = _predicted(model, trees[label], _runs(rows, [label]))
    return found


def error_on_unseen(rows: Sequence[Row], trees: Mapping[str, Topology]) -> float:
    """Mean relative error on an arm's seconds per step of a model that was fitted without that arm; NaN for fewer than 5 arms."""
    errors = [abs(seconds / _measured(rows, label) - 1) for label, seconds in modelled_unseen(rows, trees).items()]
    return float(np.mean(errors)) if errors else float("nan")


@dataclass(frozen=True, slots=True)
class Predicted:
    """An arm's speed as the model has it, prefill left out.

    seconds_per_step: by the model that is fitted to all arms; tokens_per_s: tokens per step over the seconds per step of the
    model that did not see this arm, if there are arms enough, else of the same model; error: of that, relative to the measured
    tokens per second; seen: whether the model saw the arm.
    """

    seconds_per_step: float
    tokens_per_s: float
    error: float
    seen: bool


def predicted(rows: Sequence[Row], trees: Mapping[str, Topology], worth: Mapping[str, float]) -> dict[str, Predicted]:
    """Every arm's speed by the model.

    Args:
        worth: tokens per step of the arms on the timed prompts, by replay; empty for the measured ones.

    Returns:
        By label; nothing for rows of an earlier version, which do not tell the length of their prompt.
    """
    if not all("prompt_tokens" in row for row in rows if "seconds" in row):
        return {}
    unseen, found = modelled_unseen(rows, trees), {}
    for label, seconds in modelled(rows, trees).items():
        runs = _runs(rows, [label])
        tokens = sum(row["tokens"] for row in runs) / sum(row["steps"] for row in runs)
        rate = worth.get(label, tokens) / unseen.get(label, seconds)
        found[label] = Predicted(seconds, rate, rate * _measured(rows, label) / tokens - 1, label not in unseen)
    return found


def mean_error(found: Mapping[str, Predicted]) -> float:
    """Mean absolute relative error of the tokens per second of arms that the model did not see; NaN if it saw all."""
    errors = [abs(arm.error) for arm in found.values() if not arm.seen]
    return float(np.mean(errors)) if errors else float("nan")


def _measured(rows: Sequence[Row], label: str) -> float:
    """Seconds per step of an arm."""
    own = _runs(rows, [label])
    return sum(_decoding(row) for row in own) / sum(row["steps"] for row in own)


def _runs(rows: Sequence[Row], labels: Collection[str]) -> list[Row]:
    return [row for row in rows if row["arm"] in labels and "prompt_tokens" in row and row["round"] >= 0]


def _decoding(row: Row) -> float:
    return float(row["seconds"] - row["prefill_seconds"])


def _context(row: Row) -> float:
    """Tokens before a step, on average over the text."""
    return float(row["prompt_tokens"] + row["tokens"] / 2)


def _predicted(model: CostModel, tree: Topology, runs: Sequence[Row]) -> float:
    steps = sum(row["steps"] for row in runs)
    return sum(model.seconds(tree, _context(row)) * row["steps"] for row in runs) / steps
