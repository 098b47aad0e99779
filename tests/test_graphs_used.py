"""Graphs where they are used: timings, benches, banks and commands that say whether steps were captured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from banks import bank_for, tiny_pair
from conftest import cli, random_heads
from strict_capture import Strict
from test_rounds import RACE, prompts

from entmtp_calib.calibrate.bank_decoder import BankDecoder
from entmtp_calib.calibrate.bench import contestants
from entmtp_calib.calibrate.environment import timed_with_graphs
from entmtp_calib.calibrate.rounds import time_arms
from entmtp_calib.calibrate.switching_costs import SwitchingCosts
from entmtp_calib.calibrate.timing import AR
from entmtp_calib.calibrate.verification import verify_bank
from entmtp_calib.engine.acceptance import GREEDY
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.graphs import Graphs
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.storage import Journal

STOP = StopRule(frozenset([0]), 12)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny_pair("hydra++")


def capturing(pair: Pair) -> tuple[Pair, Strict]:
    strict = Strict()
    return replace(pair, graphs=Graphs(pair.target, strict)), strict


def test_a_timing_captures_before_its_clock_runs_and_says_so(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict, heads = Strict(), random_heads(target, "hydra++")
    graphs, journal = Graphs(target, strict), Journal(tmp_path / "rows.jsonl")
    during: list[int] = []
    begin = Decoder.begin

    def counted(self: Decoder, *args: object) -> object:
        before = strict.captures
        found = begin(self, *args)
        during.append(strict.captures - before)
        return found

    monkeypatch.setattr(Decoder, "begin", counted)
    timed = time_arms(target, heads, RACE, prompts(2), StopRule(target.end_ids, 10), 0, journal, [], graphs=graphs)
    assert set(during) == {0}
    assert len(during) == 3 + 3 * 2 * 2
    plain = time_arms(target, heads, RACE, prompts(2), StopRule(target.end_ids, 10), 0, Journal(tmp_path / "plain.jsonl"), [])
    assert [arm.tokens_per_step for arm in timed] == [arm.tokens_per_step for arm in plain]
    ids = [{(row["arm"], row["prompt"], row["ids"]) for row in Journal(tmp_path / name).rows() if "ids" in row}
           for name in ("rows.jsonl", "plain.jsonl")]  # fmt: skip
    assert ids[0] == ids[1]
    assert timed_with_graphs(journal.rows()) == "on"
    assert timed_with_graphs(Journal(tmp_path / "plain.jsonl").rows()) == "off"
    assert len(graphs.free) == 1


def test_a_timing_that_gave_graphs_up_says_why(target: Target, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("graphs can be captured here")
    journal, heads = Journal(tmp_path / "rows.jsonl"), random_heads(target, "hydra")
    time_arms(target, heads, RACE, prompts(1), STOP, 0, journal, [], graphs=Graphs(target))
    assert timed_with_graphs(journal.rows()).startswith("given up: ")


def test_a_bank_is_verified_by_captured_steps(pair: Pair) -> None:
    fast, strict = capturing(pair)
    verdicts = verify_bank(fast, bank_for(pair), [("one", [5, 6, 7])], STOP, GREEDY)
    assert all(verdict.ok for verdict in verdicts)
    assert strict.replays > 50
    assert fast.graphs is not None
    assert fast.graphs.reason is None


def test_a_bank_decodes_by_captured_steps(pair: Pair) -> None:
    fast, strict = capturing(pair)
    bank = bank_for(pair)
    for policy in (*bank.policies, "ar"):
        ours, theirs = BankDecoder(bank, fast, policy), BankDecoder(bank, pair, policy)
        assert list(ours.stream("hello", 12)) == list(theirs.stream("hello", 12))
        assert (ours.elsewhere, theirs.elsewhere) == (["graphs off"], [])
        timed_with = replace(bank, measured=dict(bank.measured) | {"graphs": "on"})
        assert (BankDecoder(timed_with, fast).elsewhere, BankDecoder(timed_with, pair).elsewhere) == ([], ["graphs on"])
    assert strict.replays > 20


def test_plain_decoding_is_captured_in_a_bench_too(pair: Pair) -> None:
    fast, strict = capturing(pair)
    ours, theirs = contestants(fast, bank_for(pair)), contestants(pair, bank_for(pair))
    assert ours.keys() == theirs.keys()
    before = strict.replays
    assert ours[AR].run([5, 6, 7], STOP).tokens == theirs[AR].run([5, 6, 7], STOP).tokens
    assert strict.replays > before


def test_costs_of_switching_are_those_of_captured_drafting(pair: Pair, tmp_path: Path) -> None:
    fast, strict = capturing(pair)
    journal = Journal(tmp_path / "rows.jsonl")
    SwitchingCosts(fast, [], GREEDY, journal).chain_first("expected_chain_2")
    assert len(journal.rows()) == 1
    assert strict.replays > 15


@pytest.mark.parametrize("command", ["decode", "bench", "verify"])
def test_graphs_are_refused_where_there_are_none(pair: Pair, tmp_path: Path, command: str) -> None:
    bank_for(pair).save(tmp_path / "bank.json")
    words = ["--bank", tmp_path / "bank.json", "hello"] if command == "decode" else [tmp_path / "bank.json"]
    result = cli(command, *words, "--graphs", "on", "--device", "cpu")
    assert result.exit_code == 2
    assert "--graphs on was given and the model runs on cpu" in result.stderr
    result = cli(command, *words, "--graphs", "maybe", "--device", "cpu")
    assert result.exit_code == 2
    assert "unknown choice of graphs" in result.stderr


def test_a_run_refuses_an_unknown_choice_before_anything_else(tmp_path: Path) -> None:
    result = cli("run", "--out", tmp_path / "run", "--graphs", "maybe")
    assert result.exit_code == 2
    assert not (tmp_path / "run").exists()
