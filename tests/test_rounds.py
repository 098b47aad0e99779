"""Rounds with a real decoder: every run is kept, nothing is run twice, and the environment is written down."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from conftest import VOCAB

from entmtp_calib.calibrate.racing import Race
from entmtp_calib.calibrate.rounds import time_arms
from entmtp_calib.calibrate.timing import AR, AR_AGAIN, Arm
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import EntmtpError
from entmtp_calib.storage import Journal
from entmtp_calib.topology import Topology, published_default

RACE = Race((Arm(AR, Topology()), Arm("default", published_default()), Arm(AR_AGAIN, Topology())), 2)


def prompts(count: int) -> list[tuple[str, list[int]]]:
    rng = random.Random(0)
    return [(f"p{number}", [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))]) for number in range(count)]


def test_timing_is_paired_warmed_up_and_resumes(target: Target, heads: DraftHeads, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    stop = StopRule(target.end_ids, 10)
    timed = time_arms(target, heads, RACE, prompts(3), stop, 0, journal, [])
    rows = journal.rows()
    runs = [row for row in rows if "seconds" in row and row["round"] >= 0]
    keys = {(row["arm"], row["prompt"], row["round"]) for row in runs}
    assert len(keys) == len(runs) == 3 * 3 * 2
    assert {row["arm"] for row in rows if row["round"] == -1 and "seconds" in row} == {AR, AR_AGAIN, "default"}
    assert timed[0].speedup == 1
    assert [arm.label for arm in timed] == [AR, "default", AR_AGAIN]
    again = time_arms(target, heads, RACE, prompts(3), stop, 0, journal, rows)
    assert again == timed
    assert journal.rows() == rows


def test_the_environment_of_a_timing_is_in_its_journal(target: Target, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    race = Race((Arm(AR, Topology()), Arm(AR_AGAIN, Topology())), 1)
    time_arms(target, None, race, prompts(1), StopRule(target.end_ids, 4), 0, journal, [])
    first, last = (row["environment"] for row in journal.rows() if "environment" in row)
    assert (first["when"], last["when"]) == ("start", "end")
    assert (first["device"], first["dtype"], first["threads"]) == ("cpu", "float32", torch.get_num_threads())
    assert {"python", "torch"} <= first["versions"].keys()
    assert all(found["cores"] >= 1 and "load" in found and "cpu" in found for found in (first, last))
    assert last["own_cores"] >= 0


def test_different_tokens_in_two_rounds_void_a_timing(target: Target, heads: DraftHeads, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    stop = StopRule(target.end_ids, 10)
    time_arms(target, heads, RACE, prompts(2), stop, 0, journal, [])
    rows = journal.rows()
    next(row for row in rows if row["round"] == 1)["ids"] = "something else"
    with pytest.raises(EntmtpError, match="void"):
        time_arms(target, heads, RACE, prompts(2), stop, 0, journal, rows)
