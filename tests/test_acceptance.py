"""Laws of the acceptance rules: exact sampling is plain sampling, typical acceptance is the published formula."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from conftest import VOCAB, random_heads, random_tree, tiny_model

from entmtp_calib.engine.acceptance import Exact, Rule, Typical, accept, closure, rule_from
from entmtp_calib.engine.decoder import Decoder, autoregressive
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.evidence import accepted_depths
from entmtp_calib.policy import Hysteresis, Ladder, Static
from entmtp_calib.topology import Topology, chain, published_default

CPU = torch.device("cpu")


def sampled(target: Target, rule: Exact, prompt: list[int], stop: StopRule) -> list[int]:
    return [token for step in autoregressive(target, prompt, stop, rule) for token in step.tokens]


@pytest.mark.parametrize(
    "rule", [Exact(0.8, seed=1), Exact(1.5, seed=2), Exact(0.7, 5, seed=3), Exact(1.0, 0, 0.6, 4), Exact(1.0, 20, 0.9, 5)]
)
@pytest.mark.parametrize("perturbed", [True, False])
def test_every_tree_and_policy_draws_the_text_of_plain_sampling(
    target: Target, heads: DraftHeads, rule: Exact, perturbed: bool
) -> None:
    rng = random.Random(rule.seed)
    rule = replace(rule, coupled=perturbed)
    bank = [Topology(), random_tree(rng, 6), random_tree(rng, 30), published_default()]
    policies = (Static(0), Static(3), Ladder((0.001, 0.01, 0.1), (0, 1, 2, 3)), Hysteresis(0.02, 0.002, 1, 2))
    prompt, stop = [rng.randrange(6, VOCAB) for _ in range(4)], StopRule(target.end_ids, 40)
    wanted = sampled(target, rule, prompt, stop)
    for policy in policies:
        decoder = Decoder(target, heads, bank, policy, "path_value_2", rule)
        assert [token for step in decoder.steps(prompt, stop) for token in step.tokens] == wanted
    assert wanted != sampled(target, Exact(rule.temperature, rule.top_k, rule.top_p, rule.seed + 99), prompt, stop)


def test_two_tokens_drawn_through_a_tree_have_their_joint_probability() -> None:
    """Chi-square over seeds on a vocabulary of 4, 16 pairs; 37.7 is the 0.999 quantile for 15 degrees of freedom."""
    target = Target(tiny_model(vocab=4, positions=16, initializer_range=0.25), frozenset(), "four", "sha256:four")
    heads = random_heads(target, "hydra", 2)
    tree = Topology(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0)))
    prompt, stop, seeds = [1, 2], StopRule(frozenset(), 3), 1500
    counts = torch.zeros(4, 4)
    for seed in range(seeds):
        steps = Decoder(target, heads, [tree], Static(0), rule=Exact(1.0, seed=seed)).steps(prompt, stop)
        text = [token for step in steps for token in step.tokens]
        counts[text[0], text[1]] += 1
    wanted = torch.zeros(4, 4)
    with torch.inference_mode():
        for first in range(4):
            ids = torch.tensor([[*prompt, first]])
            mask = torch.ones(3, 3, dtype=torch.bool).tril()[None, None]
            one, two = target.forward(ids, mask, torch.arange(3)[None]).logits[0, -2:].softmax(-1)
            wanted[first] = seeds * one[first] * two
    assert float(((counts - wanted) ** 2 / wanted).sum()) < 37.7


@pytest.mark.parametrize("perturbed", [True, False])
def test_the_trace_of_a_sampled_text_is_what_its_rollout_accepted(target: Target, heads: DraftHeads, perturbed: bool) -> None:
    rule, prompt, stop = Exact(0.6, seed=7, coupled=perturbed), [9, 8, 7], StopRule(frozenset(), 60)
    text = sampled(target, rule, prompt, stop)
    trace = trace_text(target, heads, "p", prompt, text, rule.ranking)
    for tree in (chain(4), published_default(), random_tree(random.Random(3), 25)):
        expected, here = accepted_depths(tree, trace), 0
        for step in Decoder(target, heads, [tree], Static(0), rule=rule).steps(prompt, stop):
            assert step.accepted == expected[here]
            here += len(step.tokens)
        assert here == 60


def test_guesses_ranked_by_the_noise_are_accepted_more_often(target: Target, heads: DraftHeads) -> None:
    """Random heads know nothing, so whatever is accepted beyond chance comes from the shared noise."""
    stop, rates = StopRule(frozenset(), 100), []
    for coupled in (False, True):
        rule = Exact(3.0, coupled=coupled)
        steps = list(Decoder(target, heads, [chain(1)], Static(0), rule=rule).steps([1, 2, 3], stop))
        rates.append(sum(step.accepted for step in steps) / len(steps))
    assert rates[1] > rates[0] + 0.02


def test_filters_keep_the_tokens_of_their_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    for logits in 2 * torch.randn(20, 30, generator=generator):
        for temperature, top_k, top_p in ((0.7, 4, 1.0), (1.0, 0, 0.5), (2.0, 9, 0.8), (1.0, 100, 1.0), (1.0, 0, 1e-6)):
            kept = (Exact(temperature, top_k, top_p).filtered(logits[None])[0] > float("-inf")).nonzero()[:, 0].tolist()
            order = sorted(range(30), key=lambda i: -float(logits[i]))[: top_k or None]
            weights = [math.exp(float(logits[i]) / temperature) for i in order]
            total, mass, wanted = sum(weights), 0.0, []
            for token, weight in zip(order, weights, strict=True):
                if mass >= top_p * total:
                    break
                wanted.append(token)
                mass += weight
            assert kept == sorted(wanted)


SENSELESS = [(-1.0,), (float("nan"),), (float("inf"),), (1.0, -1), (1.0, 0, 0.0), (1.0, 0, 1.1), (0.0, 5), (1.0, 0, 1.0, -1),
             (0.0, 0, 1.0, 2**63)]  # fmt: skip


@pytest.mark.parametrize("values", SENSELESS)
def test_senseless_sampling_is_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(UsageError):
        Exact(*values)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [(0.0,), (-1.0,), (0.7, 0.0), (0.7, 1.1), (0.7, 0.09, 0.0)])
def test_senseless_typical_bounds_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(UsageError):
        Typical(*values)


def test_typical_acceptance_is_the_published_formula() -> None:
    """Node by node in plain Python: p > min(epsilon, alpha · exp(-H)), the longest path, ties by likelihood."""
    rng = random.Random(1)
    generator = torch.Generator().manual_seed(1)
    several = 0
    for _ in range(60):
        tree = random_tree(rng, 25)
        layout = TreeLayout(tree, CPU)
        rule = Typical(rng.choice((0.3, 0.7, 1.0)))
        logits = 3 * torch.randn(layout.rows, 12, generator=generator)
        tokens = torch.randint(0, 12, (layout.rows,), generator=generator)
        nodes = [(), *layout.topology.nodes]
        good: dict[tuple[int, ...], float] = {(): 0.0}
        for row, node in enumerate(nodes[1:], 1):
            wide = [float(value) / rule.temperature for value in logits[nodes.index(node[:-1])]]
            norm = math.log(sum(math.exp(value) for value in wide))
            logp = [value - norm for value in wide]
            entropy = -sum(math.exp(value) * value for value in logp)
            mine = logp[int(tokens[row])]
            if node[:-1] in good and math.exp(mine) > min(0.09, 0.3 * math.exp(-entropy)):
                good[node] = good[node[:-1]] + mine
        deepest = max(len(node) for node in good)
        wanted = max((node for node in good if len(node) == deepest), key=lambda node: good[node])
        several += sum(len(node) == deepest for node in good) > 1
        right, score = rule.judge(layout, tokens, logits, rule.choose(layout, logits, 0))
        assert {nodes[row] for row in closure(layout, right).nonzero()[:, 0].tolist()} == set(good)
        found = accept(layout, right, score)
        assert (nodes[int(found.row)], int(found.length)) == (wanted, deepest)
    assert several > 5


def test_typical_decoding_is_deterministic_and_differs_from_greedy(target: Target, heads: DraftHeads) -> None:
    stop, rule = StopRule(frozenset(), 60), Typical(1.0, 0.001, 0.3)
    texts = [
        [token for step in Decoder(target, heads, [tree], Static(0), rule=rule).steps([4, 5], stop) for token in step.tokens]
        for tree in (published_default(), published_default(), Topology())
    ]
    assert texts[0] == texts[1] != texts[2]
    assert texts[2] == sampled(target, Exact(), [4, 5], stop)


def test_only_members_are_committed() -> None:
    layout = TreeLayout(Topology(((0,), (1,), (0, 0), (0, 0, 0))), CPU)
    right = torch.ones(5, dtype=torch.bool)
    assert int(accept(layout, right, members=torch.tensor([True, True, True, True, False])).length) == 2
    assert int(accept(layout, right, members=torch.tensor([True, False, False, False, False])).length) == 0


@pytest.mark.parametrize("rule", [Exact(), Exact(0.7, 5, 0.9), Exact(1.0, coupled=False), Typical(1.0, 0.2, 0.5)])
def test_rules_are_written_and_read(rule: Rule) -> None:
    assert rule_from(rule.about()) == rule
    assert rule_from({**rule.about()}, seed=0).lossless == isinstance(rule, Exact)


@pytest.mark.parametrize(
    "about", [{}, {"rule": "lenient"}, {"rule": "exact", "warmth": 1}, {"rule": "typical", "temperature": "x"}]
)
def test_unknown_rules_are_refused(about: dict) -> None:
    with pytest.raises(ArtefactError, match="is not known"):
        rule_from(about)
