"""Laws of the decoder: the text is that of plain decoding, whatever the tree, the policy and the prompt."""

from __future__ import annotations

import random

import pytest
import torch
from conftest import (
    END,
    VOCAB,
    Memoryless,
    ScriptedDrafter,
    plain,
    random_heads,
    random_tree,
    table_target,
    tiny_model,
)  # fmt: skip

from entmtp_calib.engine.decoder import NO_ROOM, Decoder, autoregressive
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.policy import Hysteresis, Ladder, Policy, Static
from entmtp_calib.topology import Topology, chain, published_default

POLICIES: list[Policy] = [
    Static(0),
    Static(3),
    Ladder((1e-4, 1e-3, 1e-2), (0, 1, 2, 3)),
    Ladder((1e-3,), (3, 0)),
    Hysteresis(1e-2, 1e-4, 0, 3),
]


def decode(decoder: Decoder, prompt: list[int], stop: StopRule) -> list[int]:
    return [token for step in decoder.steps(prompt, stop) for token in step.tokens]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.kind}{policy.members}")
def test_text_equals_plain_greedy_for_random_trees_and_prompts(target: Target, heads: DraftHeads, policy: Policy) -> None:
    rng = random.Random(policy.kind)
    for _ in range(12):
        trees = [random_tree(rng, rng.randrange(25)) for _ in range(3)] + [published_default()]
        prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 7, 40]))]
        stop = StopRule(target.end_ids, rng.choice([1, 3, 30]))
        assert decode(Decoder(target, heads, trees, policy, "path_value_3"), prompt, stop) == plain(target, prompt, stop)


def test_a_policy_switches_in_mid_run_and_the_text_stays(target: Target, heads: DraftHeads) -> None:
    stop = StopRule(frozenset(), 60)
    bank = [Topology(), chain(4)]
    seen = sorted(
        step.signal for step in Decoder(target, heads, bank, Ladder((0.5,), (0, 1)), "path_value_1").steps([3, 1, 4], stop)
    )
    decoder = Decoder(target, heads, bank, Ladder((seen[len(seen) // 2],), (0, 1)), "path_value_1")
    steps = list(decoder.steps([3, 1, 4], stop))
    assert len({step.index for step in steps}) == 2
    assert [token for step in steps for token in step.tokens] == plain(target, [3, 1, 4], stop)


class _Recital(Memoryless):
    """Knows one text of a real model: guesses wrongly at ranks below the dictated one and rightly there."""

    sequential = True
    depth = 4
    vocabulary = VOCAB

    def __init__(self, text: list[int], ranks: tuple[int, ...]) -> None:
        self.text, self.ranks = text, ranks

    def start(self, hidden: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
        return root[:, None]

    def extend(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return torch.cat((context, tokens[:, None]), 1)

    def to_target_ids(self, guesses: torch.Tensor) -> torch.Tensor:
        return guesses

    def logits(self, level: int, context: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(len(context), VOCAB)
        for row, ids in enumerate(context.tolist()):
            places = [at for at in range(len(self.text) - len(ids)) if self.text[at : at + len(ids)] == ids]
            true = self.text[places[-1] + len(ids)] if places else 0
            others = [token for token in range(VOCAB) if token != true][: self.ranks[level]]
            out[row, torch.tensor([*others, true])] = torch.arange(len(others) + 1, 0, -1).float()
        return out


@pytest.mark.parametrize("ranks", [(0, 0, 0, 0), (2, 0, 1, 0), (1, 2, 0, 3), (3, 3, 3, 3)])
def test_deep_side_branches_of_a_real_model_are_accepted_and_exact(target: Target, ranks: tuple[int, ...]) -> None:
    """Masks, positions and commits of non-contiguous rows are wrong only for branches: accept many of them."""
    prompt, stop = [9, 8, 7], StopRule(frozenset(), 60)
    text = plain(target, prompt, stop)
    tree = Topology(tuple((*ranks[:d], rank) for d in range(4) for rank in range(ranks[d] + 1)))
    steps = list(Decoder(target, _Recital(text, ranks), [tree], Static(0)).steps(prompt, stop))
    assert [token for step in steps for token in step.tokens] == text
    assert sum(step.accepted for step in steps) > len(steps)


@pytest.mark.parametrize("prompt_length", [119, 123, 125, 126, 127])
def test_prompts_that_end_near_the_context_limit(target: Target, heads: DraftHeads, prompt_length: int) -> None:
    prompt = [(7 * place) % VOCAB for place in range(prompt_length)]
    stop = StopRule(frozenset(), 64)
    steps = list(Decoder(target, heads, [published_default()], Static(0)).steps(prompt, stop))
    text = [token for step in steps for token in step.tokens]
    assert text == plain(target, prompt, stop)
    assert len(text) == 128 - prompt_length
    assert all(step.index in (0, NO_ROOM) for step in steps)


def test_a_prompt_that_fills_the_context_is_refused(target: Target, heads: DraftHeads) -> None:
    decoder = Decoder(target, heads, [chain(2)], Static(0))
    with pytest.raises(UsageError, match="128 tokens and tiny takes 128"):
        list(decoder.steps([1] * 128, StopRule(frozenset(), 4)))
    with pytest.raises(UsageError, match="empty"):
        list(decoder.steps([], StopRule(frozenset(), 4)))
    with pytest.raises(UsageError, match="cap"):
        list(decoder.steps([1], StopRule(frozenset(), 0)))


def test_two_generations_interleave(target: Target, heads: DraftHeads) -> None:
    decoder = Decoder(target, heads, [published_default()], Static(0))
    stop = StopRule(frozenset(), 25)
    first, second = decoder.steps([1, 2, 3], stop), decoder.steps([50, 60], stop)
    texts: tuple[list[int], list[int]] = ([], [])
    for a, b in zip(first, second, strict=False):
        texts[0].extend(a.tokens)
        texts[1].extend(b.tokens)
    texts[0].extend(token for step in first for token in step.tokens)
    texts[1].extend(token for step in second for token in step.tokens)
    assert texts[0] == plain(target, [1, 2, 3], stop)[: len(texts[0])]
    assert texts[1] == plain(target, [50, 60], stop)[: len(texts[1])]


def test_heads_that_are_always_wrong_give_one_token_a_step() -> None:
    table = [(3 * token + 1) % 31 for token in range(31)]
    target = table_target(table)
    drafter = ScriptedDrafter(table, lambda _last, _head: 30)
    steps = list(
        Decoder(target, drafter, [random_tree(random.Random(0), 20)], Static(0)).steps([1, 1, 1], StopRule(frozenset(), 40))
    )
    assert [len(step.tokens) for step in steps] == [1] * 40
    assert sum(step.accepted for step in steps) == 0


def test_an_oracle_chain_accepts_its_whole_depth() -> None:
    table = [(token + 1) % 31 for token in range(31)]
    drafter = ScriptedDrafter(table, lambda _last, _head: 0)
    steps = list(Decoder(table_target(table), drafter, [chain(4)], Static(0)).steps([0], StopRule(frozenset(), 50)))
    assert [step.accepted for step in steps] == [4] * 10


@pytest.mark.parametrize("q", [0.25, 0.6, 0.9])
def test_heads_that_hit_with_probability_q_give_the_geometric_sum(q: float) -> None:
    table = [(token + 1) % 31 for token in range(31)]
    rng = random.Random(1)
    drafter = ScriptedDrafter(table, lambda _last, _head: 0 if rng.random() < q else 30)
    target = table_target(table, positions=10**6)
    steps = list(Decoder(target, drafter, [chain(4)], Static(0)).steps([0], StopRule(frozenset(), 4000)))
    expected = sum(q**power for power in range(5))
    got = 4000 / len(steps)
    spread = (sum((len(step.tokens) - got) ** 2 for step in steps) / len(steps)) ** 0.5
    assert abs(got - expected) < 5 * spread / len(steps) ** 0.5


@pytest.mark.parametrize("cap", [1, 2, 3, 4, 5, 6, 50])
@pytest.mark.parametrize("end_after", range(8))
def test_an_end_token_at_every_offset_of_an_accepted_path(end_after: int, cap: int) -> None:
    """The earliest of end token and cap wins, wherever it falls inside the path."""
    table = [(token + 1) % 31 for token in range(31)]
    target = table_target(table, ends=[end_after + 1])
    drafter = ScriptedDrafter(table, lambda _last, _head: 0)
    stop = StopRule(target.end_ids, cap)
    steps = list(Decoder(target, drafter, [chain(4)], Static(0)).steps([0], stop))
    text = [token for step in steps for token in step.tokens]
    wanted = list(range(1, end_after + 2))[:cap]
    assert text == wanted == plain(target, [0], stop)
    assert steps[-1].reason == ("end" if end_after + 1 <= cap else "length")
    assert all(len(step.tokens) == step.accepted + 1 for step in steps)


def test_token_zero_behind_a_short_leaf_is_not_taken_for_padding() -> None:
    """A ragged tree whose short leaf is followed by token 0: padding must not count as accepted."""
    table = [3, 0, 5, 1, 2, 0]
    target = table_target(table)
    tree = Topology(((0,), (1,), (1, 0), (1, 0, 0)))
    drafter = ScriptedDrafter(table, lambda _last, head: 0 if head == 0 else 5)
    stop = StopRule(frozenset(), 12)
    steps = list(Decoder(target, drafter, [tree], Static(0)).steps([4], stop))
    assert [token for step in steps for token in step.tokens] == plain(target, [4], stop)
    assert {step.accepted for step in steps} <= {0, 1}


def test_side_branches_are_followed() -> None:
    table = [(2 * token + 1) % 31 for token in range(31)]
    tree = Topology(((0,), (1,), (2,), (2, 0), (2, 1), (2, 1, 0)))
    ranks = {0: 2, 1: 1, 2: 0}
    drafter = ScriptedDrafter(table, lambda _last, head: ranks.get(head, 30))
    steps = list(Decoder(table_target(table), drafter, [tree], Static(0)).steps([7], StopRule(frozenset(), 40)))
    assert [step.accepted for step in steps] == [3] * 10


def test_padded_vocabulary_and_tied_embeddings_decode() -> None:
    model = tiny_model(vocab=128, tie_word_embeddings=True)
    target = Target(model, frozenset([END]), "tied", "sha256:tied")
    heads = random_heads(target, "hydra")
    stop = StopRule(target.end_ids, 20)
    assert decode(Decoder(target, heads, [published_default()], Static(0)), [1, 2], stop) == plain(target, [1, 2], stop)


def test_trees_that_the_heads_cannot_fill_are_refused(target: Target) -> None:
    heads = random_heads(target, "hydra", heads=2)
    with pytest.raises(ArtefactError, match="3 deep and there are 2 heads"):
        Decoder(target, heads, [chain(3)], Static(0))
    wide = Topology(tuple((rank,) for rank in range(VOCAB + 1)))
    with pytest.raises(ArtefactError, match=f"guess {VOCAB} of a head that has {VOCAB}"):
        Decoder(target, heads, [wide], Static(0))
    with pytest.raises(ArtefactError, match="no heads"):
        Decoder(target, None, [chain(1)], Static(0))


def test_the_signal_is_of_this_step(target: Target, heads: DraftHeads) -> None:
    """Recompute the path value of every step from a plain forward and the heads."""
    prompt, stop = [11, 12, 13], StopRule(frozenset(), 20)
    policy = Ladder((0.5,), (0, 1))
    steps = list(Decoder(target, heads, [chain(1), chain(2)], policy, "path_value_2").steps(prompt, stop))
    text = list(prompt)
    for step in steps[:-1]:
        ids = torch.tensor([text])
        cache = target.new_cache(len(text))
        with torch.inference_mode():
            out = target.prefill(ids, cache)
            value = out.logits[0, -1].softmax(-1).max()
            context = heads.start(heads.read(out.hidden[0])[-1:], torch.tensor([step.tokens[0]]))
            for head in range(2):
                logits = heads.logits(head, context)
                value = value * logits.softmax(-1).max()
                context = heads.extend(context, logits.max(-1).indices)
        assert step.signal == pytest.approx(float(value), rel=1e-4)
        text += step.tokens


def test_the_loop_can_be_left_early(target: Target, heads: DraftHeads) -> None:
    steps = Decoder(target, heads, [chain(2)], Static(0)).steps([5, 6], StopRule(frozenset(), 30))
    assert next(iter(steps)).tokens
    assert [step.tokens for step in autoregressive(target, [5, 6], StopRule(frozenset(), 1))]
