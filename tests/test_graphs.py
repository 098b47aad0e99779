"""Steps for CUDA graphs: the same ids, accepted lengths and cache rows as plain steps, by work that a graph could hold.

Without a GPU all but the capture itself is shown, with a stand-in that is stricter than CUDA; the tests marked `gpu` do the rest.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from conftest import END, plain, random_heads, random_tree, tiny_model
from strict_capture import Log, Strict
from torch import Tensor

from entmtp_calib.engine import graphs as graphs_module
from entmtp_calib.engine.acceptance import GREEDY, Exact, Rule, Typical
from entmtp_calib.engine.decoder import HELD, Decoder, Step
from entmtp_calib.engine.drafter import Draft
from entmtp_calib.engine.graph_decoder import GraphDecoder, GraphRehearsal
from entmtp_calib.engine.graphs import Captured, Graphs, rounded
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.rehearsal import cache_error
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import UsageError
from entmtp_calib.graph_mode import wants_graphs
from entmtp_calib.guard import Guard
from entmtp_calib.policy import Dynamic, Hysteresis, Ladder, Policy, Static
from entmtp_calib.topology import Topology

STOP = StopRule(frozenset([END]), 20)
BANK = [Topology(), *(random_tree(random.Random(seed), 4 * seed) for seed in (1, 2, 3))]


@pytest.fixture(autouse=True)
def _small_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "_SMALLEST", 64)


@pytest.fixture(scope="module")
def remembering(target: Target) -> DraftHeads:
    """Heads with a memory, where more can go wrong."""
    return random_heads(target, "hydra++")


def decoders(
    target: Target, heads: DraftHeads, policy: Policy, rule: Rule = GREEDY, guard: Guard | None = None, bank: Sequence = BANK
) -> tuple[GraphDecoder, Decoder, Strict]:
    """A decoder that replays, one that does not, and the stand-in for CUDA."""
    strict = Strict()
    args = (target, heads, bank, policy, "path_value_2", rule, guard)
    fast = GraphDecoder(*args, itertools.count().__next__, graphs=Graphs(target, strict))
    return fast, Decoder(*args, itertools.count().__next__), strict


def switching(target: Target, heads: DraftHeads, rule: Rule = GREEDY) -> Policy:
    """A ladder whose bins this text visits all."""
    policy = Ladder((0.5,), (1, 2))
    seen = sorted(step.signal for step in Decoder(target, heads, BANK, policy, "path_value_2", rule).steps([3, 1, 4], STOP))
    places = [place * len(seen) // 4 for place in (1, 2, 3)]  # between two values, so that rounding decides nothing
    return Ladder(tuple((seen[place - 1] + seen[place]) / 2 for place in places), (0, 1, 2, 3))


def told(steps: Sequence[Step]) -> list[tuple[object, ...]]:
    return [(step.tokens, step.accepted, step.index, step.reason) for step in steps]


def random_prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(6, 90) for _ in range(length)]


@pytest.mark.parametrize("rule", [GREEDY, Exact(0.8, top_p=0.9, seed=3), Typical()], ids=str)
def test_replayed_steps_are_plain_steps(target: Target, heads: DraftHeads, rule: Rule) -> None:
    policy = switching(target, heads, rule)
    fast, slow, strict = decoders(target, heads, policy, rule)
    rng = random.Random(5)
    for length in (3, 1, 40):
        prompt = [3, 1, 4] if length == 3 else random_prompt(rng, length)
        ours, theirs = fast.begin(prompt, STOP), slow.begin(prompt, STOP)
        left, right = list(fast.resume(ours)), list(slow.resume(theirs))
        assert told(left) == told(right)
        assert [step.signal for step in left] == pytest.approx([step.signal for step in right], rel=1e-4, nan_ok=True)
        size = len(ours.context.ids)
        assert ours.context.ids == theirs.context.ids
        for mine, other in ((ours.context.cache, theirs.context.cache), (ours.context.memory, theirs.context.memory)):
            assert (mine is None) == (other is None)
            if mine is not None:
                assert torch.allclose(mine.store[..., :size, :], other.store[..., :size, :], rtol=1e-4, atol=1e-4)
        del ours, mine
    sizes = [arena.capacity for arena in fast.graphs.free]
    assert sorted(sizes) == [64, 128]
    assert strict.captures == 1 + len(policy.members) * len(sizes)  # drafting once, and every tree once for a size
    assert fast.graphs.reason is None
    assert strict.replays > 20


def test_a_text_that_switches_visits_several_trees(target: Target, heads: DraftHeads) -> None:
    fast, _slow, _strict = decoders(target, heads, switching(target, heads))
    assert len({step.index for step in fast.steps([3, 1, 4], STOP)}) > 1


@pytest.mark.parametrize("policy", [Static(2), Hysteresis(0.01, 0.002, 3, 1)], ids=str)
def test_random_trees_and_prompts(target: Target, heads: DraftHeads, policy: Policy) -> None:
    rng = random.Random(7)
    for _ in range(2):
        bank = [random_tree(rng, rng.randrange(1, 25)) for _ in range(4)]
        fast, slow, _strict = decoders(target, heads, policy, bank=bank)
        prompt = random_prompt(rng, rng.randrange(1, 30))
        assert told(list(fast.steps(prompt, STOP))) == told(list(slow.steps(prompt, STOP)))
        assert fast.graphs.reason is None


def test_the_last_rows_of_a_cache_serve_too(target: Target, heads: DraftHeads) -> None:
    """A step whose last row takes the last slot, with the length as a number and as a tensor."""
    decoder = Decoder(target, heads, BANK, Static(3), "path_value_2")
    layout = decoder.layouts[3]
    length = 30
    tokens = (torch.arange(layout.rows) * 13 + 7) % 90
    found = []
    with torch.inference_mode():
        for size in (length, torch.tensor([length])):
            context = decoder.begin(list(range(6, 6 + length)), STOP).context
            cache, memory = target.new_cache(length + layout.rows - 1), heads.new_memory(length + layout.rows)
            target.prefill(torch.tensor([list(range(6, 6 + length))]), cache)
            if memory is not None:
                memory.reserve(1)
                heads.read(target.prefill(torch.tensor([context.ids]), target.new_cache(length)).hidden[0], 0, memory)
            assert cache.capacity == length + layout.rows
            found.append((decoder.advance(layout, tokens, size, cache, memory), cache, memory))
    (one, cache, memory), (two, other, second) = found
    for left, right in zip([*one[0], *one[1]], [*two[0], *two[1]], strict=True):
        assert torch.allclose(left.double(), right.double(), rtol=1e-4, atol=1e-4)
    assert torch.allclose(cache.store, other.store, rtol=1e-4, atol=1e-4)
    assert memory is None or torch.allclose(memory.store, second.store, rtol=1e-4, atol=1e-4)


def test_texts_share_arenas_in_turn_and_never_at_once(target: Target, remembering: DraftHeads) -> None:
    policy = switching(target, remembering)
    fast, _slow, strict = decoders(target, remembering, policy)
    prompts = [[3, 1, 4], [9, 9, 2, 6], [8, 30]]
    turns = list(itertools.zip_longest(*(fast.steps(prompt, STOP) for prompt in prompts)))  # a step of each in turn
    for prompt, steps in zip(prompts, zip(*turns, strict=True), strict=True):
        assert [token for step in steps if step for token in step.tokens] == plain(target, prompt, STOP)
    assert strict.captures == 1 + 3 * len(policy.members)
    assert len(fast.graphs.free) == 3
    list(fast.steps([5, 5, 5], STOP))
    assert strict.captures == 1 + 3 * len(policy.members)


def test_decoders_that_take_turns_share_caches(target: Target, remembering: DraftHeads) -> None:
    graphs = Graphs(target, Strict())
    for index in (1, 2, 0):
        decoder = GraphDecoder(target, remembering, [BANK[index]], Static(0), graphs=graphs)
        assert [t for step in decoder.steps([4, 7], STOP) for t in step.tokens] == plain(target, [4, 7], STOP)
    assert len(graphs.free) == 1


def test_a_growing_conversation_moves_to_a_larger_arena(target: Target, remembering: DraftHeads) -> None:
    fast, _slow, strict = decoders(target, remembering, Static(1))
    context = fast.new_context()
    short, stop = StopRule(frozenset(), 12), StopRule(frozenset(), 30)
    prompt = [3, 1, 4, 1, 5]
    text = [t for step in fast.steps(prompt, short, context) for t in step.tokens]
    small, held = context.cache, list(context.ids)
    longer = prompt + text[:6] + [11, 12, 13] * 8
    assert context.shared(longer) >= 10
    text = [t for step in fast.steps(longer, stop, context) for t in step.tokens]
    assert text == plain(target, longer, stop)
    assert context.cache is not small
    assert context.cache.capacity > small.capacity
    assert strict.captures == 1 + 2
    assert cache_error(target, context) < 1e-4
    assert held[:10] == context.ids[:10]


def test_a_guard_that_holds_trees_back_is_captured_too(target: Target, remembering: DraftHeads) -> None:
    fast, slow, _strict = decoders(target, remembering, Static(2), guard=Guard())
    left = list(fast.steps([3, 1, 4], STOP))
    assert told(left) == told(list(slow.steps([3, 1, 4], STOP)))
    assert HELD in {step.index for step in left}
    assert fast.graphs.reason is None


def test_preparing_captures_all_that_a_text_needs(target: Target, remembering: DraftHeads) -> None:
    fast, _slow, strict = decoders(target, remembering, Static(1))
    for cap in (STOP.max_new_tokens, 10_000):  # the second is lowered to what the model takes
        fast.prepare(3 + cap)
        captured = strict.captures
        list(fast.steps([3, 1, 4], StopRule(frozenset([END]), cap)))
        assert strict.captures == captured
    assert captured == 3


def test_every_path_of_a_tree_is_replayed_right(target: Target, remembering: DraftHeads) -> None:
    graphs = Graphs(target, Strict())
    rehearsal = GraphRehearsal(target, remembering, BANK[3], graphs=graphs)
    text = plain(target, [3, 1, 4], STOP)
    while rehearsal.turn < len(rehearsal.paths):
        steps, context = rehearsal.run([3, 1, 4], text, STOP)
        assert [token for step in steps for token in step.tokens] == text
        for step, dictated in zip(steps[:-1], rehearsal.dictated, strict=False):
            assert step.accepted == dictated
        assert cache_error(target, context) < 1e-4
    assert graphs.reason is None
    assert max(step.accepted for step in steps) > 0


def test_other_heads_take_turns_too(target: Target, remembering: DraftHeads) -> None:
    graphs = Graphs(target, Strict())
    for drafter in (remembering, random_heads(target, "medusa"), random_heads(target, "hydra++", seed=9)):
        decoder = GraphDecoder(target, drafter, [BANK[2]], Static(0), graphs=graphs)
        assert [t for step in decoder.steps([4, 7], STOP) for t in step.tokens] == plain(target, [4, 7], STOP)
    assert len(graphs.free) == 1


def test_when_steps_are_captured() -> None:
    assert [wants_graphs("auto", device, exact) for device in ("cpu", "cuda", "cuda:1", "mps") for exact in (True, False)] == [
        False, False, True, False, True, False, False, False,
    ]  # fmt: skip
    assert wants_graphs("on", "cuda", False)
    assert not wants_graphs("off", "cuda", True)
    for mode, device in (("on", "cpu"), ("on", "mps"), ("yes", "cuda")):
        with pytest.raises(UsageError):
            wants_graphs(mode, device, True)


def fails(_work: Callable[[], None]) -> Callable[[], None]:
    raise RuntimeError("operation not permitted when stream is capturing\nand more")


def does_nothing(work: Callable[[], None]) -> Callable[[], None]:
    return lambda: None


class ForgetsTheCache:
    """Gives right results but, as if another cache had been captured, leaves this one as it was."""

    def __init__(self) -> None:
        self.graphs: Graphs | None = None

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            assert self.graphs is not None
            stores = [arena.cache.store for arena in self.graphs._arenas.values() if arena.cache.store is not None]
            before = [store.clone() for store in stores]
            work()
            for store, old in zip(stores, before, strict=True):
                store.copy_(old)

        return replay


@pytest.mark.parametrize(("capture", "said"), [(fails, "not permitted"), (does_nothing, "replay"), (ForgetsTheCache(), "replay")])
def test_what_cannot_be_captured_runs_as_ever(target: Target, remembering: DraftHeads, capture: object, said: str) -> None:
    tries = []

    def counted(work: Callable[[], None]) -> Callable[[], None]:
        tries.append(work)
        return capture(work)

    graphs = Graphs(target, counted)
    if isinstance(capture, ForgetsTheCache):
        capture.graphs = graphs
    decoder = GraphDecoder(target, remembering, BANK, Static(2), graphs=graphs)
    for prompt in ([3, 1, 4], [8, 8]):
        assert [t for step in decoder.steps(prompt, STOP) for t in step.tokens] == plain(target, prompt, STOP)
    assert said in graphs.reason
    assert "\n" not in graphs.reason
    assert len(tries) == (2 if isinstance(capture, ForgetsTheCache) else 1)  # never again after the first failure


def test_running_out_of_memory_half_way_keeps_the_text(target: Target, remembering: DraftHeads) -> None:
    strict = Strict()

    def scarce(work: Callable[[], None]) -> Callable[[], None]:
        if strict.captures == 2:
            raise torch.OutOfMemoryError("no memory")
        return strict(work)

    decoder = GraphDecoder(
        target, remembering, BANK, switching(target, remembering), "path_value_2", graphs=Graphs(target, scarce)
    )
    assert [t for step in decoder.steps([3, 1, 4], STOP) for t in step.tokens] == plain(target, [3, 1, 4], STOP)
    assert decoder.graphs.reason == "no memory"
    assert not decoder.graphs.free


def test_steps_need_no_values(heads: DraftHeads, target: Target) -> None:
    """On the meta device tensors have no values and no host could read them."""
    nowhere = Target(tiny_model().to("meta"), frozenset([END]), "tiny", "sha256:tiny")
    bound = random_heads(nowhere, heads.shape.architecture)
    for rule in (GREEDY, Exact(0.8, seed=1)):
        decoder = Decoder(nowhere, bound, BANK, Ladder((0.1,), (1, 3)), "entropy", rule)
        with torch.inference_mode():
            draft = decoder.draft(decoder.dummy_root())
            assert isinstance(draft, Draft)
            layout, cache, memory = decoder.layouts[3], nowhere.new_cache(63), bound.new_memory(64)
            length = torch.zeros(1, dtype=torch.long, device="meta")
            accepted, root = decoder.advance(layout, draft.tokens[decoder.rows[3]], length, cache, memory)
        assert {tensor.device.type for tensor in (*accepted, *root)} == {"meta"}


@pytest.mark.parametrize("rule", [GREEDY, Exact(0.8, top_k=9, top_p=0.9, seed=3), Typical()], ids=str)
@pytest.mark.parametrize("policy", [Ladder((0.1,), (1, 3)), Dynamic((0.1,), (3, 9), BANK[3])], ids=str)
def test_no_step_reads_anything_back_before_its_end(target: Target, heads: DraftHeads, policy: Policy, rule: Rule) -> None:
    """Neither captured ones nor the others: what `fetch` moves is all."""
    decoder = Decoder(target, heads, BANK, policy, "path_value_2", rule)
    context, _stop, root = decoder.begin([3, 1, 4], STOP)
    with torch.inference_mode(), Log() as log:
        for index in policy.members:
            draft = decoder.draft(root)
            decoder.verify(index, draft, 3, context.cache, context.memory)
    assert len(log.entries) > 100


READS: list[Callable[[Tensor, Tensor], object]] = [
    lambda x, n: x[n], lambda x, n: x[:n], lambda x, n: int(n), lambda x, n: x[x > 1], lambda x, n: x.nonzero(),
    lambda x, n: bool(n > 0), lambda x, n: torch.arange(n), lambda x, n: x.__setitem__(0, 7), lambda x, n: torch.tensor([1]) + x,
]  # fmt: skip


@pytest.mark.parametrize("work", READS)
def test_the_stand_in_sees_the_host(work: Callable[[Tensor, Tensor], object]) -> None:
    with torch.inference_mode(), pytest.raises(AssertionError), Log():
        work(torch.arange(4), torch.tensor(2))


def test_the_stand_in_sees_what_changes() -> None:
    state = {"rows": 3, "store": torch.zeros(8), "factor": 2}

    def work() -> None:
        state["store"][: state["rows"]] *= state["factor"]

    replay = Strict()(work)
    replay()
    for name, value in (("rows", 4), ("store", torch.zeros(8)), ("factor", 3)):
        kept, state[name] = state[name], value
        with pytest.raises(AssertionError):
            replay()
        state[name] = kept
    replay()


def test_results_are_in_buffers_that_stay() -> None:
    captured = Captured(lambda x, n: (x + n, x * n), (torch.zeros(3), torch.zeros(1)), Strict())
    first = captured(torch.ones(3), 2)
    assert [result.tolist() for result in first] == [[3, 3, 3], [2, 2, 2]]
    second = captured(torch.full((3,), 4.0), 5)
    assert all(one is two for one, two in zip(first, second, strict=True))
    assert second[0].tolist() == [9, 9, 9]


def test_sizes_of_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    sizes = [rounded(capacity) for capacity in range(1, 20_000)]
    assert all(size >= capacity for capacity, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 12
    assert all(size % 8 == 0 for size in sizes)


def test_a_model_on_two_devices_is_left_alone(heads: DraftHeads) -> None:
    spread = Target(tiny_model(), frozenset([END]), "tiny", "sha256:tiny")
    spread.model.lm_head.to("meta")
    assert Graphs(spread, Strict()).reason is not None
