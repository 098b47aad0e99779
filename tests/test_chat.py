"""`decode --chat`: a conversation whose history stays in the cache and changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from banks import CHAT, bank_for, tiny_pair
from conftest import plain
from entmtp_calib.commands import app
from typer.testing import CliRunner, Result

from entmtp_calib.calibrate.step_log import StepLog
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.template import encode

CAP = 12


@pytest.fixture(scope="module", params=[("hydra", None), ("hydra++", CHAT)], ids=["raw", "chat template"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return tiny_pair(*request.param)


@pytest.fixture
def talk(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["entmtp_calib.commands.decode"], "load_of_bank", lambda *_: pair)
    bank_for(pair).save(tmp_path / "bank.json")

    def run(lines: str, *words: object) -> Result:
        start = ["decode", "--bank", str(tmp_path / "bank.json"), "--chat", "--max-new-tokens", str(CAP)]
        return CliRunner().invoke(app, [*start, *map(str, words)], input=lines)

    return run


def scratch(pair: Pair, said: list[str]) -> list[str]:
    """The answers when every turn is decoded plainly from the beginning."""
    messages, answers = list[tuple[str, str]](), list[str]()
    for text in said:
        messages.append(("user", text))
        ids = plain(pair.target, encode(messages, pair.tokenizer), StopRule(pair.target.end_ids, CAP))
        answers.append(pair.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        messages.append(("assistant", answers[-1]))
    return answers


@pytest.mark.parametrize("policy", ["auto", "static", "ar"])
def test_every_answer_is_that_of_the_whole_conversation_decoded_from_scratch(pair: Pair, talk, policy: str) -> None:
    said = ["Hello", "and then 雪?", "why"]
    result = talk("\n".join(said) + "\n\nnever read\n", "--policy", policy)
    assert result.exit_code == 0, result.output
    assert result.stdout == "".join(answer + "\n" for answer in scratch(pair, said))
    assert "; 0 of" in result.stderr
    assert result.stderr.count("were in the cache") == 3


def test_the_history_is_not_prefilled_again(pair: Pair, talk, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    sound = type(pair.target).prefill

    def prefill(self, ids, cache, held=0):
        rows.append(ids.shape[1])
        return sound(self, ids, cache, held)

    monkeypatch.setattr(type(pair.target), "prefill", prefill)
    first = "a long first message " * 6
    assert talk(f"{first}\nb\n").exit_code == 0
    assert rows[0] >= len(first)
    assert rows[1] < 50


def test_a_message_may_come_with_the_command_and_the_input_may_end(pair: Pair, talk) -> None:
    said = ["Hello", "again"]
    assert talk("again", "Hello").stdout == talk("Hello\nagain\n").stdout == "".join(f"{a}\n" for a in scratch(pair, said))
    assert talk("").stdout == ""


def test_ctrl_c_stops_the_answer_and_keeps_the_session(pair: Pair, talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, count = StepLog.add, 0

    def add(log: StepLog, step, seconds: float) -> None:
        nonlocal count
        sound(log, step, seconds)
        count += 1
        if count == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(StepLog, "add", add)
    result = talk("one\ntwo\n", "--trace", tmp_path / "t.csv")
    assert result.exit_code == 0, result.output
    assert "ended by interrupted" in result.stderr
    first, rest = scratch(pair, ["one"])[0], result.stdout
    written = next(size for size in range(len(first) + 1, 0, -1) if rest.startswith(first[:size] + "\n"))
    messages = [("user", "one"), ("assistant", first[:written]), ("user", "two")]
    ids = plain(pair.target, encode(messages, pair.tokenizer), StopRule(pair.target.end_ids, CAP))
    assert rest == first[:written] + "\n" + pair.tokenizer.decode(ids, skip_special_tokens=True) + "\n"
    assert (tmp_path / "t.csv").read_text().count("\n") == count + 1


def test_a_message_that_does_not_fit_is_dropped_and_the_chat_goes_on(pair: Pair, talk) -> None:
    result = talk(f"Hello\n{'x' * 600}\nwhy\n")
    assert result.exit_code == 0, result.output
    assert "takes 512" in result.stderr
    assert result.stdout == "".join(answer + "\n" for answer in scratch(pair, ["Hello", "why"]))
