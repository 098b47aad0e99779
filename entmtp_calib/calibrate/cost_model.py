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


def error_on_unseen(rows: Sequence[Row], trees: Mapping[str, Topology]) -> float:
    """Mean relative error on an arm's seconds per step of a model that was fitted without that arm; NaN for fewer than 5 arms."""
    errors = []
    for label in trees if len(trees) >= 5 else ():
        own = _runs(rows, [label])
        model = fit_costs(rows, {name: tree for name, tree in trees.items() if name != label})
        measured = sum(_decoding(row) for row in own) / sum(row["steps"] for row in own)
        errors.append(abs(_predicted(model, trees[label], own) / measured - 1))
    return float(np.mean(errors)) if errors else float("nan")


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
