"""Replay equals rollout, step by step: traces, policies, recalibration, timing rows."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from conftest import VOCAB, plain, random_tree

from entmtp_calib.calibrate.candidates import Candidate
from entmtp_calib.calibrate.recalibrate import compare, recalibrate
from entmtp_calib.calibrate.rollout import load_trace, self_rollout
from entmtp_calib.calibrate.timing import AR, AR_AGAIN, Arm, bootstrap_ratio, time_arms
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.errors import ArtefactError, EntmtpError
from entmtp_calib.evidence import Replayer, accepted_depths, walk
from entmtp_calib.policy import Hysteresis, Ladder, Policy, Static
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


def test_timing_is_paired_warmed_up_and_resumes(target: Target, heads: DraftHeads, tmp_path: Path) -> None:
    arms = [Arm(AR, Topology()), Arm("default", published_default())]
    journal = Journal(tmp_path / "rows.jsonl")
    stop = StopRule(target.end_ids, 10)
    timed = time_arms(target, heads, arms, prompts(3), stop, 2, 0, journal, [])
    rows = journal.rows()
    runs = [row for row in rows if "seconds" in row and row["round"] >= 0]
    keys = {(row["arm"], row["prompt"], row["round"]) for row in runs}
    assert len(keys) == len(runs) == 3 * 3 * 2
    assert {row["arm"] for row in rows if row["round"] == -1} == {AR, AR_AGAIN, "default"}
    assert timed[0].speedup == pytest.approx(1.0)
    assert [arm.label for arm in timed] == [AR, "default", AR_AGAIN]
    again = time_arms(target, heads, arms, prompts(3), stop, 2, 0, journal, rows)
    assert again == timed
    assert journal.rows() == rows


def test_different_tokens_in_two_rounds_void_a_timing(target: Target, heads: DraftHeads, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    stop = StopRule(target.end_ids, 10)
    arms = [Arm(AR, Topology())]
    time_arms(target, heads, arms, prompts(2), stop, 2, 0, journal, [])
    rows = journal.rows()
    next(row for row in rows if row["round"] == 1)["ids"] = "something else"
    with pytest.raises(EntmtpError, match="void"):
        time_arms(target, heads, arms, prompts(2), stop, 2, 0, journal, rows)


def test_the_interval_of_a_ratio_covers_one_for_equal_arms_and_not_for_a_faster_one() -> None:
    rng = random.Random(0)
    base = {f"p{number}": (100.0, 2.0 * rng.uniform(0.98, 1.02)) for number in range(30)}
    same = {name: (100.0, 2.0 * rng.uniform(0.98, 1.02)) for name in base}
    fast = {name: (100.0, 1.8 * rng.uniform(0.98, 1.02)) for name in base}
    low, high = bootstrap_ratio(same, base, 0)
    assert low < 1 < high
    assert bootstrap_ratio(fast, base, 0)[0] > 1.05


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
