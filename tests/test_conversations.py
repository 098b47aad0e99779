"""Laws of conversations as prompts: every question with all that was said before it, and a reason for what is left out."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from entmtp_calib.calibrate.conversations import Messages, prompts_in
from entmtp_calib.calibrate.tally import Tally


def chat(*turns: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return more | {"conversations": [{"from": who, "value": text} for who, text in turns]}


def every(row: dict[str, Any]) -> tuple[list[Messages], dict[str, int]]:
    found = Tally()
    return prompts_in(row, "all", found), dict(found.skipped)


def test_every_question_comes_with_all_that_was_said_before_it() -> None:
    row = chat(("human", "a "), ("gpt", "\nb"), ("human", "c"), ("gpt", "d"), ("human", "e"))
    assert every(row) == (
        [
            (("user", "a "),),
            (("user", "a "), ("assistant", "\nb"), ("user", "c")),
            (("user", "a "), ("assistant", "\nb"), ("user", "c"), ("assistant", "d"), ("user", "e")),
        ],
        {},
    )


def test_a_system_text_stands_before_every_question() -> None:
    for row in (chat(("system", "s"), ("human", "a"), ("gpt", "b"), ("human", "c")),
                chat(("human", "a"), ("gpt", "b"), ("human", "c"), system="s")):  # fmt: skip
        prompts, _skipped = every(row)
        assert [prompt[0] for prompt in prompts] == [("system", "s")] * 2


def test_turns_of_one_person_in_a_row_are_one_turn() -> None:
    row = chat(("human", "a"), ("user", "b"), ("gpt", "c"), ("assistant", "d"), ("human", "e"))
    assert every(row)[0] == [(("user", "a\n\nb"),), (("user", "a\n\nb"), ("assistant", "c\n\nd"), ("user", "e"))]


def test_answers_before_the_first_question_are_left_out() -> None:
    assert every(chat(("gpt", "x"), ("gpt", 7), ("human", "a"), ("gpt", "b"))) == ([(("user", "a"),)], {})


def test_a_blank_question_is_no_prompt() -> None:
    assert every(chat(("human", " \n"), ("gpt", "b"))) == ([], {"no user turn before the first answer": 1})
    prompts, _skipped = every(chat(("human", "a"), ("gpt", "b"), ("human", " "), ("gpt", "c"), ("human", "d")))
    assert [prompt[-1][1] for prompt in prompts] == ["a", "d"]


@pytest.mark.parametrize("fault", [("tool", "x"), ("human", None), ("gpt", ["x"])])
def test_a_fault_ends_the_conversation_and_is_counted_once(fault: tuple[str, Any]) -> None:
    prompts, skipped = every(chat(("human", "a"), ("gpt", "b"), fault, ("human", "c")))
    assert prompts == [(("user", "a"),)]
    assert list(skipped.values()) == [1]
    assert next(iter(skipped)).startswith("end of a conversation, ")


def test_the_first_turn_is_the_first_of_all_turns_whatever_the_conversation() -> None:
    rng = random.Random(3)
    seen = 0
    for _ in range(500):
        turns = [(rng.choice(["human", "human", "gpt", "gpt", "system", "tool"]), rng.choice(["a", "b", " ", "c", 7]))
                 for _ in range(rng.randrange(7))]  # fmt: skip
        tallies = Tally(), Tally()
        first, whole = (prompts_in(chat(*turns), kind, tally) for kind, tally in zip(("first", "all"), tallies, strict=True))
        if first:
            assert first == whole[:1]
            seen += 1
        assert bool(first) != bool(tallies[0].skipped)
        for prompt in whole:
            roles = [role for role, _text in prompt]
            assert all(a != b for a, b in pairwise(roles))
            assert "user" in roles
    assert seen > 50


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("turns", ["first", "all"])
def test_a_file_of_128_megabytes_cut_in_its_last_record_is_read_within_500(tmp_path: Path, turns: str) -> None:
    """Measured in a process of its own, interpreter included; what one record holds is all that is parsed at once."""
    path = tmp_path / "large.json"
    text = "Wörter und mehr ☂ " * 60
    talk = [{"from": who, "value": text + who} for _ in range(5) for who in ("human", "gpt")]
    record = json.dumps({"id": "%d_0", "conversations": talk}, ensure_ascii=False)
    with path.open("w", encoding="utf-8") as file:
        file.write("[" + record.replace("%d_0", "x"))
        for number in range((128 << 20) // len(record.encode())):
            file.write(",\n" + record.replace("%d", str(number)))
        file.write(",\n" + record[: len(record) // 2])
    assert path.stat().st_size > 128 << 20
    code = (
        "import sys; from entmtp_calib.calibrate.prompts import load_prompts\n"
        "found = load_prompts(sys.argv[1], turns=sys.argv[2])\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1]\n"
        "print(len(found.prompts), len(found.notes), len(found.skipped), peak)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path), turns], capture_output=True, text=True, check=True)
    prompts, notes, skipped, peak = map(int, done.stdout.split())
    assert prompts == ((128 << 20) // len(record.encode()) + 1) * (5 if turns == "all" else 1)
    assert (notes, skipped) == (1, 0)
    assert peak < 500 * 1024
