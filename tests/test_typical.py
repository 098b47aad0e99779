"""Policies under typical acceptance: recorded steps, the fit over them, and the decoder that follows what was fitted."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from conftest import VOCAB, plain, random_tree

from entmtp_calib.calibrate.likelihood import greedy_logp, mean_logp
from entmtp_calib.calibrate.thresholds import Costs, best_static, evaluate, fit_hysteresis, fit_ladder
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.calibrate.typical_fitting import fit_recorded
from entmtp_calib.calibrate.typical_rollouts import Walks
from entmtp_calib.calibrate.typical_steps import RecordedSteps, at_random, best_choices, outcome_of
from entmtp_calib.calibrate.typical_verification import lawful_margins
from entmtp_calib.engine.acceptance import Typical
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.recording import Recorder
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.evidence import Recorded
from entmtp_calib.policy import Hysteresis, Ladder, Policy, Static
from entmtp_calib.signals import Signal
from entmtp_calib.topology import Topology, chain

RULE = Typical(1.0, 0.001, 0.3)
PROMPTS = [[random.Random(n).randrange(6, VOCAB) for _ in range(n % 4 + 1)] for n in range(6)]
SIGNAL = Signal("path_value_2")


def trees() -> list[Topology]:
    return [Topology(), chain(2), random_tree(random.Random(3), 12)]


def middle(target: Target, heads: DraftHeads) -> float:
    """A value of the signal on either side of which there are steps."""
    records = [
        Recorder(target, heads, trees(), Static(1), None, RULE).record("", ids, StopRule(frozenset(), 24)) for ids in PROMPTS
    ]
    steps = RecordedSteps.of(trees(), records).reading(SIGNAL)
    return float(np.median(np.concatenate(steps.values)))


def test_recorded_depths_are_what_each_tree_accepts_there(target: Target, heads: DraftHeads) -> None:
    """At every step of a rollout, a decoder of one tree that stands at the same text accepts as many drafts."""
    stop, seen = StopRule(frozenset(), 24), 0
    for ids in PROMPTS:
        text, recorder = list(ids), Recorder(target, heads, trees(), Static(1), None, RULE)
        found = recorder.record("p", ids, stop)
        steps = list(Decoder(target, heads, [chain(2)], Static(0), rule=RULE).steps(ids, stop))
        assert found.index.tolist() == [1] * len(steps)
        assert found.depths[:, 1].tolist() == [step.accepted for step in steps]
        for step, depths in zip(steps, found.depths.tolist(), strict=True):
            left = StopRule(frozenset(), 24 - (len(text) - len(ids)))
            for tree, depth in zip(trees(), depths, strict=True):
                alone = next(iter(Decoder(target, heads, [tree], Static(0), rule=RULE).steps(text, left)))
                assert alone.accepted == depth
                seen += depth
            text += step.tokens
    assert seen > 20


def test_recorded_signals_are_those_that_the_decoder_reads(target: Target, heads: DraftHeads) -> None:
    edge, stop = middle(target, heads), StopRule(frozenset(), 24)
    policy = Ladder((edge,), (1, 2))
    used: set[int] = set()
    for name in ("path_value_2", "entropy", "expected_chain_3"):
        for ids in PROMPTS:
            found = Recorder(target, heads, trees(), policy, Signal(name), RULE).record("p", ids, stop)
            steps = list(Decoder(target, heads, trees(), policy, name, RULE).steps(ids, stop))
            values = Signal(name).at(found.root_logp, found.entropy, found.chain_logp)
            assert found.index.tolist() == [step.index for step in steps]
            assert found.depths[np.arange(len(found)), found.index].tolist() == [step.accepted for step in steps]
            assert values.tolist() == pytest.approx([step.signal for step in steps], abs=1e-5)
            used |= set(found.index.tolist())
    assert used == {1, 2}


def test_a_ladder_decodes_with_the_tree_that_its_signal_says(target: Target, heads: DraftHeads) -> None:
    policy = Ladder((middle(target, heads),), (0, 2))
    used = set()
    for ids in PROMPTS:
        for step in Decoder(target, heads, trees(), policy, SIGNAL, RULE).steps(ids, StopRule(frozenset(), 24)):
            assert step.index == policy.next(0, step.signal)
            used.add(step.index)
    assert used == {0, 2}


def made_up(seed: int, texts: int = 8, steps: int = 60) -> list[Recorded]:
    """Steps at which the larger tree accepts two more drafts where the signal is high, and nothing more elsewhere."""
    rng = np.random.default_rng(seed)
    records = []
    for number in range(texts):
        top1 = rng.uniform(0.01, 1, steps).astype(np.float32)
        small = rng.integers(0, 2, steps)
        depths = np.stack([np.zeros(steps, int), small, small + 2 * (top1 > 0.5)], 1).astype(np.int32)
        records.append(Recorded(str(number), depths, np.full(steps, 1, np.int32), np.log(top1), np.ones(steps, np.float32),
                                np.zeros((steps, 3), np.float32)))  # fmt: skip
    return records


COSTS = Costs((1.0, 1.1, 2.2), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


def test_a_policy_is_worth_its_tokens_over_its_seconds_at_the_recorded_steps() -> None:
    records = made_up(1)
    steps = RecordedSteps.of(trees(), records).reading("base_top1")
    policy = Hysteresis(0.7, 0.3, 1, 2)
    tokens = seconds = 0.0
    for text in records:
        index = 1
        for row, logp in zip(text.depths, text.root_logp, strict=True):
            index = policy.next(index, float(np.exp(logp)))
            tokens, seconds = tokens + row[index] + 1, seconds + COSTS.alone[index]
    found = evaluate(policy, steps, COSTS)
    assert (found.tokens.sum(), found.seconds.sum()) == (tokens, pytest.approx(seconds))


def test_ladder_and_hysteresis_find_where_the_large_tree_pays() -> None:
    steps = RecordedSteps.of(trees(), made_up(2)).reading("base_top1")
    static, ladder, hysteresis = best_static(steps, COSTS), fit_ladder(steps, COSTS, 2), fit_hysteresis(steps, COSTS)
    assert isinstance(ladder.policy, Ladder)
    assert ladder.policy.trees == (1, 2)
    assert ladder.policy.edges[0] == pytest.approx(0.5, abs=0.03)
    assert isinstance(hysteresis.policy, Hysteresis)
    assert (hysteresis.policy.low, hysteresis.policy.high) == (1, 2)
    ceiling = best_choices(steps, COSTS.alone).tokens_per_s
    assert static.tokens_per_s * 1.1 < hysteresis.tokens_per_s <= ladder.tokens_per_s <= ceiling
    floor = at_random(ladder.shares, steps, COSTS.of(ladder.policy))
    assert floor < static.tokens_per_s


def test_no_way_to_choose_is_faster_than_the_oracle() -> None:
    steps = RecordedSteps.of(trees(), made_up(3, 2, 6))
    ceiling, rng = best_choices(steps, COSTS.alone).tokens_per_s, random.Random(1)
    depths = np.concatenate(steps.depths)
    for _ in range(3000):
        picks = [rng.randrange(3) for _ in depths]
        tokens = sum(int(row[pick]) + 1 for row, pick in zip(depths, picks, strict=True))
        assert tokens / sum(COSTS.alone[pick] for pick in picks) <= ceiling + 1e-12


def test_own_rollouts_are_costed_step_by_step() -> None:
    index = [np.array([0, 2, 2]), np.array([1, -1])]
    tokens = [np.array([1, 3, 2]), np.array([2, 1])]
    policy: Policy = Ladder((0.1, 0.2), (0, 1, 2))
    found = outcome_of(policy, COSTS, index, tokens)
    assert found.tokens.tolist() == [6, 3]
    assert found.seconds.tolist() == pytest.approx([1 + 2.2 + 2.2, 1.1 + 1.0])
    assert found.mean_accept == pytest.approx(4 / 5)
    assert found.shares == (0.4, 0.2, 0.4)
    assert found.switches == pytest.approx(100 * 2 / 5)


class MadeUp:
    """Rollouts in which the large tree pays where the signal is high, and a policy's own text is as good as that, or worse.

    Args:
        spoils: whether texts that switch accept nothing, though the recorded steps promised more.
    """

    def __init__(self, spoils: bool) -> None:
        self.spoils = spoils
        self.asked: list[tuple[str, str, str]] = []

    def record(self, part: str, policy: Policy, signal: Signal | None) -> list[Recorded]:
        self.asked.append(("record", part, policy.kind))
        return made_up(len(self.asked))

    def decode(self, part: str, policy: Policy, signal: Signal | None) -> Walks:
        self.asked.append(("decode", part, policy.kind))
        index, tokens = list[np.ndarray](), list[np.ndarray]()
        for text in made_up(99):
            chosen = policy.next_many(np.zeros(len(text), np.int64), np.exp(text.root_logp.astype(float)))
            made = text.depths[np.arange(len(text)), chosen] + 1
            index.append(chosen.astype(np.int32))
            tokens.append(np.ones_like(made) if self.spoils and len(policy.members) > 1 else made)
        return index, tokens


@pytest.mark.parametrize("spoils", [False, True])
def test_a_policy_is_recommended_for_what_its_own_rollouts_give(spoils: bool) -> None:
    """Two passes where a policy switches; a gain that only the recorded steps promised is no gain."""
    kept = [Timed(name, tree, 1.0, 1.0, seconds, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0)
            for name, tree, seconds in zip(("ar", "small", "large"), trees(), COSTS.alone, strict=True)]  # fmt: skip
    evidence = MadeUp(spoils)
    fitted = fit_recorded("base_top1", kept, {"ar": 1.0}, lambda _name: COSTS, evidence, 0)
    assert evidence.asked[:3] == [("record", "fit", "static"), ("record", "fit", "ladder"), ("record", "test", "static")]
    assert [asked[2] for asked in evidence.asked[3:]] == ["static", "ladder", "hysteresis"]
    assert [judged.name for judged in fitted.policies] == ["static", "ladder", "hysteresis"]
    ladder = fitted.policies[1]
    assert ladder.cross_validated.ratio > 1.05
    assert sum(len(outcome) for outcome in (ladder.fit.tokens, ladder.test.tokens)) == 2 * 8 + 8
    assert (fitted.recommended == "static") == spoils
    assert (ladder.gain.ratio > 1) != spoils
    assert fitted.oracle_test >= fitted.policies[0].test.tokens_per_s


def test_a_plain_forward_tells_lawful_texts_from_others(target: Target, heads: DraftHeads) -> None:
    """What is decoded keeps to the rule everywhere; a token that the target would not write does not, nor a stricter rule."""
    stop, drafts = StopRule(frozenset(), 24), 0
    decoder = Decoder(target, heads, [trees()[2]], Static(0), rule=RULE)
    for ids in PROMPTS:
        steps = list(decoder.steps(ids, stop))
        found = lawful_margins(target, RULE, ids, steps)
        assert len(found) == sum(len(step.tokens) for step in steps)
        assert (found >= -1e-4).all()
        drafts += sum(step.accepted for step in steps)
        worst = replace(steps[0], tokens=((steps[0].tokens[0] + 1) % VOCAB, *steps[0].tokens[1:]))
        assert lawful_margins(target, RULE, ids, [worst])[0] < 0
    assert drafts > 10
    strict = [lawful_margins(target, Typical(1.0, 0.9, 5.0), ids, list(decoder.steps(ids, stop))) for ids in PROMPTS]
    assert any((found < 0).any() for found in strict)


def test_greedy_texts_are_as_likely_as_their_traces_say(target: Target, heads: DraftHeads) -> None:
    stop = StopRule(frozenset(), 20)
    texts = [plain(target, ids, stop) for ids in PROMPTS]
    traces = [trace_text(target, heads, "", ids, text) for ids, text in zip(PROMPTS, texts, strict=True)]
    alone = [mean_logp(target, ids, text) for ids, text in zip(PROMPTS, texts, strict=True)]
    assert greedy_logp(traces) == pytest.approx(np.mean(alone), abs=1e-4)
