"""Laws of dynamic trees in the decoder: the best rows are taken, the text is that of plain decoding, shapes stay fixed."""

from __future__ import annotations

import random

import pytest
import torch
from conftest import END, VOCAB, ScriptedDrafter, plain, random_heads, random_tree, table_target, tiny_model

from entmtp_calib.engine.acceptance import Exact
from entmtp_calib.engine.decoder import HELD, NO_ROOM, Decoder, autoregressive
from entmtp_calib.engine.drafter import Draft, draft_tree
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.parts import by_value
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError
from entmtp_calib.guard import Guard
from entmtp_calib.policy import Dynamic
from entmtp_calib.topology import Node, Topology, chain, published_default

CPU = torch.device("cpu")


def random_draft(rng: random.Random, layout: TreeLayout) -> Draft:
    """Values that fall along every path, many of them equal."""
    value: dict[Node, float] = {(): 0.0}
    for node in layout.topology.nodes:
        value[node] = value[node[:-1]] - rng.choice([0.0, 0.5, 1.0])
    tokens = torch.tensor([rng.randrange(VOCAB) for _ in range(layout.rows)])
    return Draft(tokens, torch.zeros(0), torch.tensor(list(value.values())))


def test_the_best_rows_are_those_that_sorting_by_hand_gives() -> None:
    rng = random.Random(0)
    for _ in range(60):
        layout = TreeLayout(random_tree(rng, rng.randrange(1, 30)), CPU)
        draft, most = random_draft(rng, layout), rng.randrange(1, layout.rows)
        assert draft.path_logp is not None
        values, nodes = draft.path_logp.tolist(), [(), *layout.topology.nodes]
        order = sorted(range(layout.rows), key=lambda row: (-values[row], len(nodes[row]), nodes[row]))[: most + 1]
        found = by_value(draft, most)
        assert found.tokens.tolist() == draft.tokens[order].tolist()
        assert found.order is not None
        for size in range(1, most + 1):
            part, kept = layout.take(found.order[: size + 1]), [nodes[row] for row in order[: size + 1]]
            assert part.nodes() == tuple(kept[1:])
            assert part.depths.tolist() == list(map(len, kept))
            assert [kept[row] for row in part.parents.tolist()] == [node[:-1] for node in kept]
            wanted = [[here[: len(there)] == there for there in kept] for here in kept]
            assert part.mask.tolist() == wanted
            for node, path in zip(kept, part.paths.tolist(), strict=True):
                assert [kept[row] for row in path[: len(node) + 1]] == [node[:d] for d in range(len(node) + 1)]
                assert set(path[len(node) + 1 :]) <= {0}
                assert len(path) == part.depth + 1 <= size + 1
            shapes = layout.head(size + 1)
            assert (shapes.rows, shapes.depth) == (part.rows, part.depth)


def test_guesses_of_one_parent_are_taken_in_the_order_of_their_rank(target: Target, heads: DraftHeads) -> None:
    """So the best nodes of a draft are a tree without gaps, also where guesses are ranked with noise."""
    layout = TreeLayout(published_default(), CPU)
    with torch.inference_mode():
        for seed in range(8):
            state = torch.randn(1, target.hidden_size, generator=torch.Generator().manual_seed(seed))
            for rule in (Exact(), Exact(0.7, seed=seed)):
                draft = draft_tree(heads, layout, state, torch.tensor([seed]), False, rule.ranking, torch.tensor([9]), True)
                order = by_value(draft, layout.rows - 1).order
                assert order is not None
                Topology(layout.take(order).nodes())  # refuses a gap, and a node before its parent


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("bins", [1, 3])
def test_text_equals_plain_decoding_for_random_trees_sizes_and_prompts(
    target: Target, heads: DraftHeads, bins: int, temperature: float
) -> None:
    rng = random.Random(bins)
    edges = (1e-4, 1e-2)[: bins - 1]
    for number in range(10):
        drafted = random_tree(rng, rng.randrange(1, 40))
        policy = Dynamic(edges, tuple(rng.randrange(1, drafted.size + 1) for _ in range(bins)), drafted)
        rule = Exact(temperature, seed=number, coupled=number % 2 == 0)
        prompt, stop = (
            [rng.randrange(VOCAB) for _ in range(rng.choice([1, 7, 40]))],
            StopRule(target.end_ids, rng.choice([3, 30])),
        )
        decoder = Decoder(target, heads, [], policy, "path_value_3", rule)
        text = [token for step in decoder.steps(prompt, stop) for token in step.tokens]
        assert text == [token for step in autoregressive(target, prompt, stop, rule) for token in step.tokens]


def test_the_index_of_a_step_is_the_bin_of_its_signal(target: Target, heads: DraftHeads) -> None:
    policy = Dynamic((1e-3, 1e-2), (1, 6, 2), published_default())
    steps = list(Decoder(target, heads, [], policy, "path_value_1").steps([3, 4], StopRule(frozenset(), 60)))
    assert len({step.index for step in steps}) > 1
    assert all(step.index == policy.next(0, step.signal) for step in steps)


def confident(table: list[int], likely: dict[int, int]) -> ScriptedDrafter:
    """A drafter whose first guess is nearly certain; the true token is at a rank given by the last one."""
    made = ScriptedDrafter(table, lambda last, _head: likely.get(last, 0))
    slow = made.logits
    made.logits = lambda level, context: 8 * slow(level, context)  # type: ignore[method-assign]
    return made


def test_a_sure_drafter_gets_a_chain_though_a_wide_tree_is_drafted() -> None:
    table = [(token + 1) % 31 for token in range(31)]
    policy = Dynamic((), (4,), published_default())
    steps = list(Decoder(table_target(table), confident(table, {}), [], policy).steps([0], StopRule(frozenset(), 50)))
    assert [step.accepted for step in steps] == [4] * 10


def test_context_limit_is_met_to_the_last_token() -> None:
    target = Target(tiny_model(positions=40), frozenset([END]), "short", "sha256:short")
    heads = random_heads(target, "hydra++")
    for length in (30, 36, 38, 39):
        prompt, stop = [7] * length, StopRule(frozenset(), 100)
        steps = list(Decoder(target, heads, [], Dynamic((), (9,), published_default())).steps(prompt, stop))
        assert [token for step in steps for token in step.tokens] == plain(target, prompt, stop)
        assert length < 37 or NO_ROOM in {step.index for step in steps}


def test_a_guard_holds_dynamic_trees_back_and_the_text_stays(target: Target, heads: DraftHeads) -> None:
    ticks = iter(range(10**6))
    policy, stop = Dynamic((), (9,), published_default()), StopRule(frozenset(), 100)
    decoder = Decoder(target, heads, [], policy, guard=Guard(), clock=lambda: next(ticks))
    steps = list(decoder.steps([1, 2], stop))
    assert [token for step in steps for token in step.tokens] == plain(target, [1, 2], stop)
    assert {HELD, 0} <= {step.index for step in steps}


def test_a_tree_that_the_heads_cannot_fill_is_refused(target: Target) -> None:
    with pytest.raises(ArtefactError, match="5 deep and there are 4 heads"):
        Decoder(target, random_heads(target, "hydra"), [], Dynamic((), (2,), chain(5)))
