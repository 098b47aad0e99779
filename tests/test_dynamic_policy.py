"""Laws of dynamic policies by replay: what the best nodes accept, by a second, slow way and by the decoder; fitting; files."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import VOCAB, random_heads, random_tree
from handmade import NEVER, trace

from entmtp_calib.calibrate.dynamic import (
    Drafts,
    Offer,
    compare_sizes,
    costs_of,
    dynamic_depths,
    fit_dynamic,
    places,
    replayer_of,
    verify_seconds,
    with_dynamic,
)
from entmtp_calib.calibrate.fitting import Fitted, fit_policies
from entmtp_calib.calibrate.path_values import path_values, stored_values
from entmtp_calib.calibrate.switching_costs import SwitchingCosts
from entmtp_calib.calibrate.thresholds import Costs, evaluate
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.engine.acceptance import GREEDY, Exact
from entmtp_calib.engine.decoder import Decoder, autoregressive
from entmtp_calib.engine.drafter import draft_tree
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.errors import ArtefactError
from entmtp_calib.evidence import Trace, accepted_depths
from entmtp_calib.policy import Dynamic, Ladder, Static
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import Signal
from entmtp_calib.storage import Journal
from entmtp_calib.topology import Topology, chain, published_default, union


def written(target: Target, heads: DraftHeads, prompt: list[int], tokens: int, rule: Exact = GREEDY) -> Trace:
    stop = StopRule(frozenset(), tokens)
    text = [token for step in autoregressive(target, prompt, stop, rule) for token in step.tokens]
    return trace_text(target, heads, "p", prompt, text, rule.ranking)


def test_a_dynamic_tree_accepts_what_the_best_nodes_of_a_part_of_the_draft_hold(target: Target, heads: DraftHeads) -> None:
    rng = random.Random(0)
    prompt = [rng.randrange(VOCAB) for _ in range(5)]
    seen, tree = written(target, heads, prompt, 25), random_tree(rng, 24)
    drafted = union([tree, random_tree(rng, 30)])
    found = places(path_values(target, heads, drafted, prompt, seen), drafted, tree, seen)
    layout = TreeLayout(tree, target.device)
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *seen.tokens.tolist()]])
        states = heads.read(target.forward(ids, None, torch.arange(ids.shape[1])[None]).hidden[0])
        for here in range(len(seen)):
            state = states[len(prompt) + here - 1 : len(prompt) + here]
            values = draft_tree(heads, layout, state, ids[0, len(prompt) + here, None], False, paths=True).path_logp
            assert values is not None
            order = sorted(range(tree.size), key=lambda node: -float(values[node + 1]))
            for size in (0, 1, 5, 12, 24):
                best = Topology(tuple(layout.topology.nodes[node] for node in sorted(order[:size])))  # valid: no gaps
                assert dynamic_depths(found, size)[here] == accepted_depths(best, seen)[here]


def test_of_all_drafted_nodes_the_dynamic_tree_is_the_static_one(target: Target, heads: DraftHeads) -> None:
    prompt, tree = [3, 1, 4], published_default()
    seen = written(target, heads, prompt, 20)
    found = places(path_values(target, heads, tree, prompt, seen), tree, tree, seen)
    assert dynamic_depths(found, tree.size).tolist() == accepted_depths(tree, seen).tolist()
    assert not dynamic_depths(found, 0).any()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_decoder_takes_the_steps_of_the_replay(target: Target, heads: DraftHeads, temperature: float) -> None:
    rng, rule = random.Random(3), Exact(temperature, seed=5)
    drafted = union([published_default(), chain(4)])
    for policy in (Dynamic((), (7,), drafted), Dynamic((1e-3, 1e-2), (2, 12, 30), drafted)):
        for _ in range(4):
            prompt = [rng.randrange(VOCAB) for _ in range(5)]
            seen = written(target, heads, prompt, 40, rule)
            drafts = Drafts(drafted, [seen], [path_values(target, heads, drafted, prompt, seen, rule.ranking)])
            offer = Offer(drafted, policy.sizes, (1.0,) * len(policy.sizes), 0.1, 0.1)
            run = replayer_of(drafts, [offer], Signal("path_value_2")).run(policy)
            steps = list(Decoder(target, heads, [], policy, "path_value_2", rule).steps(prompt, StopRule(frozenset(), 40)))
            assert [step.accepted for step in steps] == run.accepted.tolist()
            assert [step.index for step in steps] == run.index.tolist()


def made(texts: int, rng: random.Random) -> tuple[list[Trace], list[np.ndarray]]:
    """Texts whose next tokens are the first guesses in half of their parts, where the heads are sure, and second ones in others;
    values of the tree of two chains."""
    traces, values = [], []
    for _ in range(texts):
        easy = [kind for kind in rng.choices([True, False], k=10) for _ in range(6)]
        text = trace([[0, 0] if kind else [1, 0] for kind in easy], [0.9 if kind else 0.2 for kind in easy])
        traces.append(text)
        values.append(np.log(np.array([[0.9, 0.05, 0.8, 0.04] if kind else [0.4, 0.5, 0.2, 0.45] for kind in easy], np.float32)))
    return traces, values


PAIR = Topology(((0,), (1,), (0, 0), (1, 0)))


def test_a_dynamic_policy_finds_the_likely_branch_where_a_static_tree_must_hold_both() -> None:
    rng = random.Random(0)
    arms = [Timed(str(tree.size), tree, 1, 1, 1 + 0.3 * tree.size, 0.0, 1, 1, 1, 1, 0) for tree in (Topology(), chain(2), PAIR)]
    parts = [made(8, rng) for _ in range(2)]
    fit, test = (Replayer([arm.topology for arm in arms], traces) for traces, _values in parts)
    costs = Costs(tuple(arm.seconds_per_step for arm in arms), (0.0,) * 3, (0.0,) * 3)
    fitted = fit_policies("base_top1", arms, {}, lambda _name: costs, fit, test, 0)
    drafts = tuple(Drafts(PAIR, *part) for part in parts)
    offers = [Offer(PAIR, (1, 2, 4), verify_seconds(arms, (1, 2, 4)), 0.01, 0.02)]
    found, taken = with_dynamic(fitted, offers, drafts, (fit, test), 0)  # type: ignore[arg-type]
    judged = found.policies[-1]
    assert (judged.name, found.recommended) == ("dynamic", "dynamic")
    assert judged.fit.policy == Dynamic((), (2,), PAIR)
    assert taken.sizes == (2,)
    assert judged.gain.low > 1
    assert judged.cross_validated.low > 1
    assert judged.test.shares == (1.0,)
    assert judged.test.mean_accept > found.policies[0].test.mean_accept - 0.1
    rows = compare_sizes(arms, offers[0], drafts[1], 0).rows
    assert [row.size for row in rows] == [2, 4]
    assert rows[0].dynamic_accepted > rows[0].static_accepted
    assert rows[1].dynamic_accepted == rows[1].static_accepted
    dear = [replace(offers[0], draft=9.0, read=9.0)]
    assert with_dynamic(fitted, dear, drafts, (fit, test), 0)[0].recommended == fitted.recommended  # type: ignore[arg-type]


def test_sizes_follow_the_signal_where_some_steps_are_not_worth_a_row() -> None:
    rng = random.Random(1)
    traces, values = [], []
    for _ in range(6):
        easy = [kind for kind in rng.choices([True, False], k=10) for _ in range(6)]
        traces.append(trace([[0, 0] if kind else [NEVER] * 2 for kind in easy], [0.9 if kind else 0.2 for kind in easy]))
        values.append(np.log(np.tile(np.array([0.5, 0.3, 0.4, 0.2], np.float32), (len(easy), 1))))
    offers = [Offer(PAIR, (1, 2, 4), (1.1, 1.2, 1.9), 0.05, 0.05), Offer(PAIR, (2,), (1.2,), 0.5, 0.5)]
    replayer, costs = replayer_of(Drafts(PAIR, traces, values), offers, Signal("base_top1")), costs_of(offers)
    groups = [range(3), range(3, 4)]
    found = fit_dynamic(replayer, costs, groups, 3)
    assert isinstance(found.policy, Ladder)
    assert found.policy.trees == (0, 1)
    assert found.tokens_per_s > fit_dynamic(replayer, costs, groups, 1).tokens_per_s
    assert found.seconds.sum() == pytest.approx(evaluate(found.policy, replayer, costs).seconds.sum())


def test_a_size_between_two_timed_trees_costs_what_lies_between_and_no_size_costs_less_than_a_smaller_one() -> None:
    arms = [Timed(str(size), Topology(tuple((rank,) for rank in range(size))), 1, 1, seconds, 0.5, 1, 1, 1, 1, 0)
            for size, seconds in ((0, 1.5), (4, 3.5), (8, 2.5), (16, 4.5))]  # fmt: skip
    assert verify_seconds(arms, (0, 2, 4, 8, 12, 16)) == pytest.approx((1, 2, 3, 3, 3.5, 4))


def test_path_values_are_stored_once_and_a_strange_file_is_refused(target: Target, tmp_path: Path) -> None:
    heads, prompts = random_heads(target, "hydra"), [("a", [1, 2]), ("b", [3])]
    traces = [written(target, heads, list(ids), 12) for _name, ids in prompts]
    told: list[tuple[int, int]] = []
    first = stored_values(target, heads, PAIR, prompts, traces, None, tmp_path, lambda *done: told.append(done))
    assert told == [(1, 2), (2, 2)]
    files = sorted(tmp_path.rglob("*.npz"))
    before = [file.read_bytes() for file in files]
    files[1].unlink()
    again = stored_values(target, heads, PAIR, prompts, traces, None, tmp_path)
    assert [file.read_bytes() for file in files] == before
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    stored_values(target, heads, chain(2), prompts, traces, None, tmp_path)  # another tree has another folder
    assert len(list(tmp_path.rglob("*.npz"))) == 4
    files[0].write_bytes(before[1])
    with pytest.raises(ArtefactError, match="another text"):
        stored_values(target, heads, PAIR, prompts, traces, None, tmp_path)


def test_what_taking_the_best_costs_is_measured_once(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.5, 0.1, 0.6, 0.1])
    monkeypatch.setattr("entmtp_calib.calibrate.switching_costs.front_seconds", lambda _decoder: next(seconds))
    pair, journal = (
        SimpleNamespace(target=target, heads=random_heads(target, "hydra"), graphs=None),
        Journal(tmp_path / "timings.jsonl"),
    )
    for _ in range(2):
        costs = SwitchingCosts(pair, [], GREEDY, journal)  # type: ignore[arg-type]
        assert costs.best_nodes(PAIR) == pytest.approx(0.4)
        assert costs.best_nodes(PAIR, "path_value_2") == pytest.approx(0.5)
    assert len(journal.rows()) == 2


def test_a_fit_without_a_dynamic_policy_stays_as_it_was() -> None:
    arms = [Timed("ar", Topology(), 1, 1, 1.0, 0.0, 1, 1, 1, 1, 0)]
    traces = [made(1, random.Random(4))[0][0]]
    replayer = Replayer([Topology()], traces)
    fitted = fit_policies("base_top1", arms, {}, lambda _name: Costs((1.0,), (0.0,), (0.0,)), replayer, replayer, 0)
    assert isinstance(fitted, Fitted)
    assert fitted.rules["static"] == Static(0)
    assert "dynamic" not in fitted.rules
