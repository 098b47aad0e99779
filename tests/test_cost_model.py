"""The cost model: straight lines come back, and unseen arms are judged without their own times."""

from __future__ import annotations

import math
import random

import pytest
from conftest import random_tree

from entmtp_calib.calibrate.cost_model import CostModel, error_on_unseen, fit_costs, modelled
from entmtp_calib.topology import Topology, chain

TRUTH = CostModel(0.02, 0.0005, 0.001, 1e-6)
TREES = {"ar": Topology(), "c2": chain(2), "c4": chain(4)} | {
    f"r{size}": random_tree(random.Random(size), size, depth) for size, depth in ((5, 1), (9, 2), (20, 3), (40, 4))
}


def rows(noise: float = 0.0) -> list[dict]:
    rng = random.Random(0)
    made = []
    for label, tree in TREES.items():
        for prompt in range(6):
            prompt_tokens, tokens = rng.randrange(50, 400), rng.randrange(40, 120)
            steps = tokens // (1 + tree.depth // 2)
            cost = TRUTH.seconds(tree, prompt_tokens + tokens / 2) * (1 + rng.gauss(0, noise))
            made.append({"arm": label, "prompt": f"p{prompt}", "round": 0, "prompt_tokens": prompt_tokens, "tokens": tokens,
                         "steps": steps, "prefill_seconds": 0.3, "seconds": 0.3 + cost * steps})  # fmt: skip
    made.append(made[0] | {"round": -1, "seconds": 99.0})
    made.append({"arm": "c2", "prompt": "", "round": 0, "draft_seconds": 0.1})
    return made


def test_straight_lines_come_back() -> None:
    found = fit_costs(rows(), TREES)
    for name in ("base", "per_row", "per_level", "per_token"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=1e-6), name
    assert error_on_unseen(rows(), TREES) == pytest.approx(0, abs=1e-9)
    costs = modelled(rows(), TREES)
    assert costs["r40"] > costs["r5"] > costs["ar"] > 0.02


def test_noise_is_told_as_error_on_unseen_arms() -> None:
    assert 0.001 < error_on_unseen(rows(0.05), TREES) < 0.2


def test_too_few_arms_give_no_error() -> None:
    few = {name: TREES[name] for name in ("ar", "c2", "c4")}
    assert math.isnan(error_on_unseen(rows(), few))
