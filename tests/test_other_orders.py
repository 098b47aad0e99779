"""Laws of the other orders of drafting and choosing: path values, drafting that stops, and what choosing costs."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import random_tree
from handmade import NEVER, random_trace, trace

from entmtp_calib.calibrate.early_stop import early_stop
from entmtp_calib.calibrate.switching_costs import SwitchingCosts, front_seconds, plain_signal
from entmtp_calib.calibrate.thresholds import Costs, best_static, evaluate
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.engine.acceptance import GREEDY
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.drafter import draft_tree
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Ladder, Static
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import terms
from entmtp_calib.storage import Journal
from entmtp_calib.topology import Topology, chain


def test_path_values_are_products_of_the_heads_probabilities(target: Target, heads: DraftHeads) -> None:
    layout = TreeLayout(random_tree(random.Random(2), 14), target.device)
    torch.manual_seed(0)
    hidden, root = torch.randn(1, target.hidden_size), torch.tensor([7])
    with torch.inference_mode():
        draft = draft_tree(heads, layout, hidden, root, True, paths=True)
        assert draft.path_logp is not None
        for row, node in enumerate([(), *layout.topology.nodes]):
            context, total = heads.start(hidden, root), 0.0
            for depth, rank in enumerate(node):
                logp = heads.logits(depth, context)[0].log_softmax(-1)
                guess = logp.argsort(descending=True)[rank]
                total += float(logp[guess])
                context = heads.extend(context, guess[None]) if depth + 1 < heads.depth else context
            assert float(draft.path_logp[row]) == pytest.approx(total, abs=1e-4)
        for depth in range(layout.depth):
            row = [(), *layout.topology.nodes].index((0,) * (depth + 1)) if (0,) * (depth + 1) in layout.topology.nodes else None
            if row is not None:
                assert float(draft.chain_logp[: depth + 1].sum()) == pytest.approx(float(draft.path_logp[row]), abs=1e-4)


def easy_then_hard(texts: int, rng: random.Random) -> list:  # type: ignore[type-arg]
    made = []
    for _ in range(texts):
        easy = [kind for kind in rng.choices([True, False], k=10) for _ in range(6)]
        text = trace([[0] * 4 if kind else [NEVER] * 4 for kind in easy])
        made.append(text)
        text.chain_logp[:] = np.log(np.array([[0.9 if kind else 0.2] * 4 for kind in easy], np.float32))
    return made


def test_drafting_that_stops_wins_where_levels_are_dear_and_confidence_tells() -> None:
    rng = random.Random(1)
    fit, test = (Replayer([Topology(), chain(4)], easy_then_hard(6, rng)) for _ in range(2))
    costs = Costs((1.0, 2.0), (0.0, 0.8), (0.0, 0.8))
    found = early_stop(fit, test, costs, [0.0, 0.2, 0.4, 0.6, 0.8], 0)
    assert found.gain.low > 1
    assert 0.2 < found.rule.threshold <= 0.9**4 + 1e-6
    assert found.rule.ladder.trees[0] == 0
    assert found.rule.ladder.trees[-1] == 1
    assert 1 <= found.levels < 4


def test_drafting_that_stops_never_verifies_deeper_than_it_drafted_and_pays_for_every_level() -> None:
    rng = random.Random(2)
    trees = [Topology(), chain(1), random_tree(rng, 12, 4)]
    replayer = Replayer(trees, [random_trace(rng, 40) for _ in range(4)])
    costs = Costs((1.0, 1.1, 1.6), (0.0, 0.1, 0.3), (0.0, 0.1, 0.3))
    found = early_stop(replayer, replayer, costs, [0.0, 0.1, 0.2, 0.3, 0.4], 0)
    for supported, tree in enumerate(found.rule.ladder.trees):
        assert trees[tree].depth <= min(supported + 1, 4)
    # All chains here are equally sure, so the rule is one tree after a fixed number of levels.
    static = best_static(replayer, costs)
    assert found.gain.ratio <= 1.0
    assert evaluate(Static(0), replayer, costs).tokens_per_s <= static.tokens_per_s


def test_what_switching_costs_never_falls_with_depth_and_is_measured_once(
    target: Target, heads: DraftHeads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.cycle([0.5, 0.1, 0.3, 0.1, 0.4, 0.1])  # the second of each pair is of a step that drafts nothing
    monkeypatch.setattr("entmtp_calib.calibrate.switching_costs.front_seconds", lambda _decoder: next(seconds))
    kept = [Timed(str(tree), tree, 1, 1, tree.size + 1.0, 0.1, 1, 1, 1, 1, 0) for tree in (Topology(), chain(1), chain(3))]
    journal = Journal(tmp_path / "timings.jsonl")
    found = SwitchingCosts(SimpleNamespace(target=target, heads=heads, graphs=None), kept, GREEDY, journal)  # type: ignore[arg-type]
    costs = found.of("base_top1")
    assert costs.shared == pytest.approx((0.4, 0.4, 0.4))
    assert costs.alone == (1, 2, 4)
    anew = found.chain_first("base_top1").among((0, 2))
    assert anew - costs.alone == pytest.approx(anew[0] - 1)  # on top of all that a step with its own tree takes
    levels = found.levels()
    assert levels == sorted(levels)
    assert (len(levels), levels[0]) == (4, 0.0)
    rows = journal.rows()
    again = SwitchingCosts(SimpleNamespace(target=target, heads=heads, graphs=None), kept, GREEDY, journal)  # type: ignore[arg-type]
    assert (again.of("base_top1"), again.levels()) == (costs, levels)
    assert again.chain_first("base_top1").among((0, 2)).tolist() == anew.tolist()
    assert journal.rows() == rows


def test_the_front_of_a_step_is_measured_for_every_signal(target: Target, heads: DraftHeads) -> None:
    for name in ("base_top1", "entropy", "expected_chain_2", "combined", "accepted_ema_8"):
        decoder = Decoder(target, heads, [Topology(), chain(2)], Ladder((0.0,), (0, 1)), plain_signal(name, 4))
        assert front_seconds(decoder, 2) > 0
    assert plain_signal("combined", 4).depth == 4
    assert len(plain_signal("combined", 4).weights) == len(terms(4))
