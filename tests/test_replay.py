"""Replay equals rollout, step by step: traces, policies, recalibration, timing rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import VOCAB, plain, random_tree

from entmtp_calib.calibrate.candidates import Candidate
from entmtp_calib.calibrate.farm import Farm, Work
from entmtp_calib.calibrate.recalibrate import compare, recalibrate
from entmtp_calib.calibrate.rollout import load_trace, self_rollout
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.engine.writer import _Batch, write
from entmtp_calib.errors import ArtefactError, EntmtpError
from entmtp_calib.evidence import accepted_depths, walk
from entmtp_calib.policy import Hysteresis, Ladder, Policy, Static
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import Signal, signal_names
from entmtp_calib.storage import Journal
from entmtp_calib.topology import Topology, published_default

SIGNAL = "path_value_2"


def prompts(count: int, seed: int = 0) -> list[tuple[str, list[int]]]:
    rng = random.Random(seed)
    return [(f"p{number}", [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))]) for number in range(count)]


@pytest.mark.parametrize("policy", [Static(2), Ladder((2e-4, 2e-3), (0, 1, 2)), Hysteresis(1e-3, 1e-4, 1, 2)])
def test_replay_of_a_trace_equals_the_rollout_step_by_step(target: Target, heads: DraftHeads, policy: Policy) -> None:
    bank = [Topology(), random_tree(random.Random(5), 6), published_default()]
    stop = StopRule(target.end_ids, 50)
    accepted = 0
    for name, ids in prompts(8):
        trace = trace_text(target, heads, name, ids, plain(target, ids, stop))
        steps = list(Decoder(target, heads, bank, policy, SIGNAL).steps(ids, stop))
        run = Replayer(bank, [trace], SIGNAL).run(policy)
        assert [step.accepted for step in steps] == run.accepted.tolist()
        assert [step.index for step in steps] == run.index.tolist()
        assert run.tokens == len(trace)
        accepted += int(run.accepted.sum())
    if policy.kind == "static":
        assert accepted > 0


COMBINED = Signal("combined", (0.1, 0.2, -0.05, 0.7, 0.4, 0.3, -0.2, 0.1))


@pytest.mark.parametrize("signal", [*map(Signal, signal_names(4)[:-1]), COMBINED], ids=str)
def test_a_decoder_reads_the_signal_that_its_replay_reads(target: Target, heads: DraftHeads, signal: Signal) -> None:
    bank = [Topology(), random_tree(random.Random(5), 6), published_default()]
    stop = StopRule(target.end_ids, 40)
    texts = prompts(3, seed=1)
    traces = [trace_text(target, heads, name, ids, plain(target, ids, stop)) for name, ids in texts]
    seen = np.sort(Replayer(bank, traces, signal).run(Static(2)).signals)
    edges = np.unique((seen[[len(seen) // 3, 2 * len(seen) // 3]] + seen[[len(seen) // 3 + 1, 2 * len(seen) // 3 + 1]]) / 2)
    policy = Ladder(tuple(edges.tolist()), (1, 2, 0)[: len(edges) + 1])
    assert len(policy.members) > 1
    run = Replayer(bank, traces, signal).run(policy)
    steps = [step for _name, ids in texts for step in Decoder(target, heads, bank, policy, signal).steps(ids, stop)]
    assert [step.index for step in steps] == run.index.tolist()
    assert [step.signal for step in steps] == pytest.approx(run.signals.tolist(), rel=1e-3, abs=1e-5)
    if signal.name == "accepted_ema_8":
        assert [step.signal for step in steps] == run.signals.tolist()


def test_a_trace_does_not_depend_on_what_follows(target: Target, heads: DraftHeads) -> None:
    _name, ids = prompts(1)[0]
    text = plain(target, ids, StopRule(frozenset(), 40))
    long, short = (trace_text(target, heads, "p", ids, part) for part in (text, text[:20]))
    assert np.array_equal(long.ranks[:16], short.ranks[:16])
    assert short.ranks[-1].tolist() == [-1] * 4
    assert np.allclose(long.chain_logp[:20], short.chain_logp, atol=1e-4)


def test_self_rollouts_resume_and_refuse_other_prompts(target: Target, heads: DraftHeads, tmp_path: Path) -> None:
    stop = StopRule(target.end_ids, 20)
    traces = self_rollout(target, heads, prompts(5), stop, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "00002.npz").unlink()
    again = self_rollout(target, heads, prompts(5), stop, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(traces, again, strict=True))
    assert load_trace(tmp_path / "00000.npz").prompt_id == "p0"
    with pytest.raises(ArtefactError, match="of prompt"):
        self_rollout(target, heads, [("other", ids) for _name, ids in prompts(5)], stop, tmp_path)
    (tmp_path / "00000.npz").write_bytes(b"PK")
    with pytest.raises(ArtefactError, match="damaged"):
        self_rollout(target, heads, prompts(5), stop, tmp_path)


def test_recalibration_agrees_with_replay_and_resumes(target: Target, heads: DraftHeads, tmp_path: Path) -> None:
    stop = StopRule(target.end_ids, 30)
    candidates = [Candidate("default", published_default(), 0.5, 0.5), Candidate("ar", Topology(), 0.0, 0.0)]
    journal = Journal(tmp_path / "rows.jsonl")
    found = recalibrate(target, heads, candidates, prompts(4), stop, journal, [])
    assert [item.near_ties for item in found] == [0, 0]
    assert found[1].mean_accept == 0
    rows = journal.rows()
    assert recalibrate(target, heads, candidates, prompts(4), stop, journal, rows) == found
    assert journal.rows() == rows


def test_a_rollout_that_disagrees_with_its_replay_is_an_error(target: Target, heads: DraftHeads) -> None:
    _name, ids = prompts(1)[0]
    trace = trace_text(target, heads, "p", ids, plain(target, ids, StopRule(frozenset(), 30)))
    tree = published_default()
    depths = accepted_depths(tree, trace)
    right = depths[walk(depths)].tolist()
    assert compare(tree, right, trace, 1e-3) == 0
    wrong = [right[0] + 1, *right[1:]]
    with pytest.raises(EntmtpError, match="position 0"):
        compare(tree, wrong, trace, 1e-9)
    assert compare(tree, [right[0] + 1], trace, float("inf")) == 1


def test_rollouts_do_not_depend_on_how_prompts_are_batched(
    target: Target, heads: DraftHeads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopRule(target.end_ids, 25)
    for batch in (1, 4, 16):
        monkeypatch.setattr("entmtp_calib.calibrate.rollout.BATCH", batch)
        self_rollout(target, heads, prompts(9), stop, tmp_path / str(batch))
    for n in range(9):
        files = {(tmp_path / str(batch) / f"{n:05d}.npz").read_bytes() for batch in (1, 4, 16)}
        assert len(files) == 1


def test_long_prompts_run_in_smaller_batches(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, texts = StopRule(target.end_ids, 6), [ids for _name, ids in prompts(9)]
    rows: list[int] = []
    run = _Batch.run
    monkeypatch.setattr(_Batch, "run", lambda batch: (rows.append(len(batch.ids)), run(batch))[1])
    widest = max(map(len, texts)) + 6
    whole = dict(write(target, texts, stop, 9))
    few = dict(write(target, texts, stop, 9, positions=2 * widest))
    alone = dict(write(target, texts, stop, 9, positions=1))
    assert whole == few == alone
    assert rows[0] == 9
    assert rows[-9:] == [1] * 9
    assert all(1 <= count <= 9 for count in rows[1:-9])
    assert sum(rows[1:-9]) == 9
    assert len(rows[1:-9]) > 1


def test_a_killed_batch_runs_again_with_all_its_members(target: Target, heads: DraftHeads, tmp_path: Path) -> None:
    class Watched(Farm):
        def run(self, kind: str, items: Sequence[Any], work: Work, done: Callable[[Any, bytes], None]) -> None:
            seen.append([list(item) for item in items])
            super().run(kind, items, work, done)

    seen: list[list[list[int]]] = []
    stop, texts = StopRule(target.end_ids, 4), prompts(20)
    self_rollout(target, heads, texts, stop, tmp_path, farm=Watched())
    assert sorted(index for batch in seen[0] for index in batch) == list(range(20))
    (tmp_path / "00007.npz").unlink()
    self_rollout(target, heads, texts, stop, tmp_path, farm=Watched())
    assert seen[1] == [batch for batch in seen[0] if 7 in batch]
