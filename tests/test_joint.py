"""Joint rollouts and the searches that use them: with exact acceptance they find what the trace finds, node by node."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import VOCAB, plain, random_tree
from torch.distributed import HashStore

from entmtp_calib.calibrate.farm import Farm
from entmtp_calib.calibrate.joint_search import JointEvidence, grow_jointly, joint_rollout, joint_work
from entmtp_calib.calibrate.search import grow
from entmtp_calib.engine.acceptance import GREEDY, Rule, Typical
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.joint import JointDecoder
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.evidence import NodeTable
from entmtp_calib.policy import Static
from entmtp_calib.topology import Topology, chain, published_default, union

PROMPTS = [[random.Random(n).randrange(6, VOCAB) for _ in range(n % 4 + 1)] for n in range(14)]


def rollout(target: Target, heads: DraftHeads, rule: Rule, stop: StopRule, joint: Topology, current: Topology) -> JointEvidence:
    decoder = JointDecoder(target, heads, joint, current, rule)
    rows = [seen for prompt in PROMPTS for _step, seen in decoder.observed(prompt, stop)]
    return JointEvidence(decoder.nodes, np.stack(rows))


def frequent_end(target: Target) -> StopRule:
    """A rule that ends texts inside accepted paths: the ids that these texts use most."""
    texts = [plain(target, prompt, StopRule(frozenset(), 30)) for prompt in PROMPTS]
    counts = np.bincount(np.concatenate(texts), minlength=VOCAB)
    return StopRule(frozenset([int(counts.argsort()[-6])]), 30)


def test_the_current_tree_decides_the_text_and_nothing_else_does(target: Target, heads: DraftHeads) -> None:
    stop, rng = StopRule(frozenset(), 40), random.Random(5)
    for rule in (GREEDY, Typical(1.0, 0.001, 0.3)):
        current = random_tree(rng, 8)
        alone = [step.tokens for step in Decoder(target, heads, [current], Static(0), rule=rule).steps([3, 9], stop)]
        decoder = JointDecoder(target, heads, union([current, random_tree(rng, 30)]), current, rule)
        assert [step.tokens for step, _seen in decoder.observed([3, 9], stop)] == alone


def test_what_is_seen_is_what_the_text_says(target: Target, heads: DraftHeads) -> None:
    """At every step, exactly the nodes whose rank path is the true one; ends and caps cut them."""
    stop = frequent_end(target)
    decoder = JointDecoder(target, heads, published_default(), chain(2), GREEDY)
    seen_any = 0
    for prompt in PROMPTS:
        steps = list(decoder.observed(prompt, stop))
        text = [token for step, _seen in steps for token in step.tokens]
        trace, here = trace_text(target, heads, "", prompt, text), 0
        for step, seen in steps:
            depth, row = NodeTable(decoder.nodes).follow(trace.ranks[here : here + 1])
            last = ((), *decoder.nodes.nodes)[int(row[0])]
            wanted = {last[:d] for d in range(1, int(depth[0]) + 1)}
            assert {decoder.nodes.nodes[i] for i in seen.nonzero()[0]} == wanted
            seen_any += len(wanted)
            here += len(step.tokens)
    assert seen_any > 20


@pytest.mark.parametrize("max_depth", [1, 2, 4])
def test_the_papers_search_finds_the_trees_of_the_trace(target: Target, heads: DraftHeads, max_depth: int) -> None:
    stop = frequent_end(target)
    traces = [trace_text(target, heads, "", prompt, plain(target, prompt, stop)) for prompt in PROMPTS]
    wanted = grow(traces, 10, max_depth)
    found, rollouts = grow_jointly(
        lambda joint, current: rollout(target, heads, GREEDY, stop, joint, current), Topology(), 10, max_depth, "paper"
    )
    assert found.order.nodes == wanted.order.nodes
    assert found.scores == pytest.approx(wanted.scores)
    assert found.stopped == wanted.stopped
    assert rollouts in (found.order.size, found.order.size + 1)


def test_the_joint_schedule_takes_few_rollouts_and_grows_a_tree_as_good(target: Target, heads: DraftHeads) -> None:
    stop = StopRule(frozenset(), 40)
    calls: list[Topology] = []

    def run(joint: Topology, current: Topology) -> JointEvidence:
        calls.append(current)
        return rollout(target, heads, Typical(1.0, 0.001, 0.3), stop, joint, current)

    pool = union([chain(4), Topology(tuple((rank,) for rank in range(12))), Topology(((0,), (0, 0), (0, 1), (0, 2)))])
    found, rollouts = grow_jointly(run, pool, 12, 4, "joint")
    assert rollouts == len(calls) <= 6
    assert [tree.size for tree in calls[:3]] == [0, 1, 2]
    assert found.order.size > 4
    assert list(found.scores[:2]) == sorted(found.scores[:2])


def test_evidence_that_never_accepts_ends_the_growth() -> None:
    def nothing(joint: Topology, current: Topology) -> JointEvidence:
        return JointEvidence(joint, np.zeros((9, joint.size), bool))

    for schedule in ("paper", "joint"):
        growth, rollouts = grow_jointly(nothing, chain(3), 20, 3, schedule)
        assert (growth.order.nodes, growth.stopped, rollouts) == (((0,),), "no node gains anything", 2)


def test_a_growth_goes_on_where_a_rollout_did_not_look() -> None:
    """Rank 3 gains, but the rollout of the tree of one node saw ranks up to 2 only."""
    bits = {(0,): [1, 0, 0, 0], (1,): [0, 1, 0, 0], (2,): [0, 0, 1, 0], (3,): [0, 0, 0, 1]}
    looked: list[int] = []

    def seen(joint: Topology, current: Topology) -> JointEvidence:
        looked.append(joint.size)
        return JointEvidence(joint, np.array([bits.get(node, [0] * 4) for node in joint.nodes], bool).T)

    growth, rollouts = grow_jointly(seen, Topology(), 8, 1, "joint")
    assert growth.order.nodes == ((0,), (1,), (2,), (3,))
    assert growth.stopped == "no node gains anything"
    assert rollouts == len(looked) == 5


def test_growths_that_look_equally_deep_share_rollouts(target: Target, heads: DraftHeads) -> None:
    stop, asked, kept = StopRule(frozenset(), 20), list[object](), dict[object, JointEvidence]()

    def run(joint: Topology, current: Topology) -> JointEvidence:
        key = (joint.nodes, current.sorted().nodes)
        asked.append(key)
        if key not in kept:
            kept[key] = rollout(target, heads, Typical(1.0, 0.001, 0.3), stop, joint, current)
        return kept[key]

    growths = [grow_jointly(run, published_default(), 8, depth, "joint", 4)[0] for depth in (1, 2, 3, 4)]
    assert [growth.order.depth <= growth.max_depth for growth in growths] == [True] * 4
    assert len(kept) < len(asked) - 3  # the empty tree at least is looked at once for all


def test_several_siblings_may_be_accepted_at_once() -> None:
    """Typical acceptance: two first guesses accepted at the same steps are worth no more than one of them."""
    bits = {(0,): [1, 1, 0, 0], (1,): [1, 1, 0, 0], (2,): [0, 0, 1, 0], (0, 0): [1, 0, 0, 0]}

    def seen(joint: Topology, current: Topology) -> JointEvidence:
        return JointEvidence(joint, np.array([bits.get(node, [0] * 4) for node in joint.nodes], bool).T)

    growth, _rollouts = grow_jointly(seen, Topology(), 20, 2, "paper")
    assert growth.order.nodes == ((0,), (0, 0))
    assert growth.scores == (0.5, 0.75)


def test_evidence_is_kept_batch_by_batch_and_taken_from_there(
    target: Target, heads: DraftHeads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entmtp_calib.calibrate.joint_search.BATCH", 5)
    stop, joint, current = StopRule(frozenset(), 12), published_default(), chain(2)
    run, forwards = joint_rollout(target, heads, PROMPTS, stop, GREEDY, tmp_path)
    first = run(joint, current)
    assert np.array_equal(first.accepted, rollout(target, heads, GREEDY, stop, joint, current).accepted)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    count, before = forwards(), [path.stat().st_mtime_ns for path in files]
    wanted = files[1].read_bytes()
    files[1].unlink()
    again, forwards = joint_rollout(target, heads, PROMPTS, stop, GREEDY, tmp_path)
    assert np.array_equal(again(joint, current).accepted, first.accepted)
    assert forwards() == count
    assert files[1].read_bytes() == wanted
    after = [path.stat().st_mtime_ns for path in files]
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] != before[1]
    steps = len(first.accepted)
    assert steps <= count <= steps + len(PROMPTS)


def test_two_processes_write_the_evidence_of_one(
    target: Target, heads: DraftHeads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entmtp_calib.calibrate.joint_search.BATCH", 3)
    stop, rule, trees = StopRule(frozenset(), 12), Typical(1.0, 0.001, 0.3), (published_default(), chain(2))
    store = HashStore()
    works = {"joint": joint_work(target, heads, PROMPTS, stop, rule)}
    worker = threading.Thread(target=Farm(1, 2, store).serve, args=(works,), daemon=True)
    worker.start()
    farm, told = Farm(0, 2, store), list[int]()
    run, forwards = joint_rollout(target, heads, PROMPTS, stop, rule, tmp_path / "two", told.append, farm)
    shared = run(*trees)
    farm.close()
    worker.join(5)
    alone, count = joint_rollout(target, heads, PROMPTS, stop, rule, tmp_path / "one")
    assert np.array_equal(shared.accepted, alone(*trees).accepted)
    assert forwards() == count()
    assert told == [3, 6, 9, 12, 14]
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two
