"""Laws of the three sets of a run: disjoint by conversation, shrinking alike, never cut."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from entmtp_calib.calibrate.prompt_dump import check_dump, dump_prompts
from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.calibrate.splits import Report, RunConfig, Splits, load_splits
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.storage import digest


class Bytes:
    """A tokenizer of bytes without a template."""

    chat_template: str | None = None
    bos_token_id: int | None = None

    def __call__(self, text: str, verbose: bool) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, ids: list[int], **options: bool) -> str:
        assert options == {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return bytes(ids).decode()


def config(folder: Path, texts: list[str], sizes: tuple[int, int, int], seed: int = 0, **more: Any) -> RunConfig:
    path = folder / "p.jsonl"
    rows = [{"id": f"t{n}_0", "conversations": [{"from": "human", "value": text}]} for n, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunConfig("tiny", "heads", str(path), None, "raw", seed, *sizes, **({"max_new_tokens": 20} | more))


def load(tokenizer: Any, positions: int, options: RunConfig, heads: int = 3) -> tuple[Splits, Report]:
    found = load_prompts(options.task, options.data, None, options.seed, turns=options.turns)
    return load_splits(found, tokenizer, SimpleNamespace(max_positions=positions, vocab_size=256), heads, options)


def parts(splits: Splits) -> list[list[str]]:
    return [[name for name, _ids in part] for part in (splits.search, splits.fit, splits.test)]


def sizes(folder: Path, prompts: int, wanted: tuple[int, int, int]) -> tuple[list[int], list[str]]:
    splits, found = load(Bytes(), 512, config(folder, [f"text {n}" for n in range(prompts)], wanted))
    return list(map(len, parts(splits))), list(found.notes)


def test_parts_have_their_sizes_and_no_prompt_twice(tmp_path: Path) -> None:
    options = config(tmp_path, [f"text {n}" for n in range(30)], (8, 5, 3))
    splits, found = load(Bytes(), 512, options)
    names = [name for part in parts(splits) for name in part]
    assert list(map(len, parts(splits))) == [8, 5, 3]
    assert names == [prompt.id for prompt in load_prompts(options.task).prompts][:16]
    assert len(set(names)) == 16
    assert (list(found.notes), dict(found.skipped), found.not_needed) == ([], {}, 14)


def test_ids_are_the_whole_text(tmp_path: Path) -> None:
    options = config(tmp_path, [f" text {n}\n" for n in range(3)], (1, 1, 1))
    splits, _found = load(Bytes(), 512, options)
    texts = {prompt.id: prompt.messages[0][1] for prompt in load_prompts(options.task).prompts}
    assert {name: bytes(ids).decode() for part in (splits.search, splits.fit, splits.test) for name, ids in part} == texts


def test_the_same_seed_gives_the_same_parts_and_another_seed_others(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(30)]
    one, again, other = (load(Bytes(), 512, config(tmp_path, texts, (8, 5, 3), seed=seed))[0] for seed in (0, 0, 1))
    assert one.about() == again.about()
    assert one == again
    assert one.about() != other.about()
    assert {name: part["prompts"] for name, part in one.about().items()} == {"search": 8, "fit": 5, "test": 3}


def test_a_hash_tells_the_prompts_of_a_part() -> None:
    about = Splits([("a", [1, 2])], [("b", [3])], [("b", [3])]).about()
    assert about["fit"]["hash"] == about["test"]["hash"] != about["search"]["hash"]
    assert Splits([("a", [1, 3])], [], []).about()["search"]["hash"] != about["search"]["hash"]


@pytest.mark.parametrize(
    ("prompts", "wanted", "given"),
    [(40, (40, 24, 16), [20, 12, 8]), (8, (40, 24, 16), [4, 2, 2]), (3, (40, 24, 16), [1, 1, 1]), (4, (1, 78, 1), [1, 2, 1]),
     (4, (1, 1, 78), [1, 1, 2]), (5, (2, 2, 2), [2, 2, 1]), (79, (40, 24, 16), [39, 24, 16]), (10, (7, 2, 2), [6, 2, 2])],
)  # fmt: skip
def test_too_few_prompts_shrink_all_parts_alike_and_say_so(
    tmp_path: Path, prompts: int, wanted: tuple[int, int, int], given: list[int]
) -> None:
    counts, notes = sizes(tmp_path, prompts, wanted)
    assert counts == given
    assert notes == [f"{sum(wanted)} prompts were asked for and {prompts} can be used; the parts shrink alike"]


@pytest.mark.parametrize("prompts", [0, 1, 2])
def test_fewer_than_three_prompts_are_refused(tmp_path: Path, prompts: int) -> None:
    with pytest.raises(ArtefactError):
        sizes(tmp_path, prompts, (1, 1, 1))


@pytest.mark.parametrize(("heads", "nodes", "tree"), [(3, 64, 64), (3, 8, 8), (3, 90, 90), (4, 8, 63), (9, 64, 64)])
def test_a_prompt_must_leave_room_for_the_text_and_one_forward_of_the_largest_tree(
    tmp_path: Path, heads: int, nodes: int, tree: int
) -> None:
    """The published tree counts where there are heads to fill it."""
    room = 300 - 20 - (tree + 1)
    texts = ["x" * length for length in (1, room - 1, room, room + 1, 300, 5000)]
    splits, found = load(Bytes(), 300, config(tmp_path, texts, (2, 1, 1), max_nodes=nodes), heads)
    assert sorted(len(ids) for part in splits.parts.values() for _name, ids in part) == [1, room - 1, room]
    assert found.skipped == {"too long for the context": 3}
    assert found.about()["prompts_skipped_too_long"] == 3
    assert found.long_share == 0.5
    assert sorted(found.examples["too long for the context"]) == [4, 5, 6]


@pytest.mark.parametrize("positions", [1, 20, 85, 29])
def test_a_context_without_room_for_any_prompt_is_refused_with_both_numbers(tmp_path: Path, positions: int) -> None:
    for options in ({}, {"long_prompts": "cut"}):
        with pytest.raises(UsageError, match=rf"max-new-tokens 20 and a tree of 64 nodes .* {positions} positions"):
            load(Bytes(), positions, config(tmp_path, ["a", "b", "c"], (1, 1, 1), **options))


@pytest.mark.parametrize("bos", [None, ord("<")])
def test_a_long_prompt_is_cut_from_the_left_behind_its_start_token_and_counted(tmp_path: Path, bos: int | None) -> None:
    class Started(Bytes):
        bos_token_id = bos

    room = 128 - 20 - 9
    texts = [f"<{'x' * 4000}{n}" for n in range(2)] + [f"<short {n}" for n in range(3)]
    options = config(tmp_path, texts, (2, 2, 1), max_nodes=8, long_prompts="cut")
    splits, found = load(Started(), 128, options)
    made = {bytes(ids).decode() for part in splits.parts.values() for _name, ids in part}
    start = "x" if bos is None else "<"
    assert made == {f"{start}{'x' * (room - 2)}{n}" for n in range(2)} | {f"<short {n}" for n in range(3)}
    assert (found.cut, found.about()["prompts_cut"], found.long_share, dict(found.skipped)) == (2, 2, 0.4, {})


def test_run_and_bank_are_told_the_lengths_of_the_prompts_used(tmp_path: Path) -> None:
    _splits, found = load(Bytes(), 512, config(tmp_path, ["x" * n for n in range(1, 102)], (50, 30, 21)))
    assert found.about()["length_quantiles"] == {"min": 1, "q25": 26, "median": 51, "q75": 76, "q90": 91, "max": 101}
    assert found.about()["prompts_used"] == {"search": 50, "fit": 30, "test": 21}


def test_a_conversation_is_used_once_whatever_its_pieces(tmp_path: Path) -> None:
    path = tmp_path / "pieces.json"
    rows = [{"id": f"t{thread}_{piece}", "conversations": [{"from": "human", "value": f"{thread} {piece}"}]}
            for thread in range(200) for piece in range(5)]  # fmt: skip
    path.write_text(json.dumps(rows))
    splits, found = load(Bytes(), 512, RunConfig("tiny", "heads", "sharegpt", str(path), "raw", 0, 90, 90, 90))
    used = [name.removeprefix("sharegpt/").partition("_")[0] for part in parts(splits) for name in part]
    held_out = {prompt.thread for prompt in load_prompts("sharegpt", str(path)).prompts}
    assert len(used) == len(set(used)) == len(held_out)
    assert found.skipped == {"another piece of a used conversation": 4 * len(held_out)}


@pytest.mark.parametrize("turns", ["first", "all"])
def test_a_prompt_that_comes_again_is_used_once_so_that_no_part_has_seen_another(tmp_path: Path, turns: str) -> None:
    options = config(tmp_path, [f"text {n % 6}" for n in range(30)], (9, 6, 3), turns=turns)
    splits, found = load(Bytes(), 512, options)
    used = [tuple(ids) for part in splits.parts.values() for _name, ids in part]
    assert len(used) == len(set(used)) == 6
    assert dict(found.skipped) == {"the same as another prompt": 24}
    assert any("6 can be used" in note for note in found.notes)


def test_prompts_that_are_cut_to_the_same_tokens_are_one(tmp_path: Path) -> None:
    texts = ["x" * 4000, "x" * 5000, "a", "b", "c"]
    splits, found = load(Bytes(), 128, config(tmp_path, texts, (3, 1, 1), max_nodes=8, long_prompts="cut"))
    assert (sum(splits.counts.values()), found.cut, dict(found.skipped)) == (4, 1, {"the same as another prompt": 1})


def test_token_ids_that_the_model_does_not_have_are_left_out(tmp_path: Path) -> None:
    class Larger(Bytes):
        def __call__(self, text: str, verbose: bool) -> dict[str, list[int]]:
            return {"input_ids": [*text.encode(), 256 if text == "new" else 255]}

    splits, found = load(Larger(), 512, config(tmp_path, ["new", "a", "b", "c"], (2, 1, 1)))
    assert (sum(splits.counts.values()), dict(found.skipped)) == (3, {"tokens that the model does not have": 1})


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
def test_a_seed_that_no_generator_takes_is_refused(seed: int) -> None:
    with pytest.raises(UsageError, match=f"seed is {seed}"):
        RunConfig("tiny", "heads", "humaneval", seed=seed)


@pytest.mark.parametrize("name", ["search_prompts", "fit_prompts", "test_prompts", "max_new_tokens", "max_nodes", "max_depth"])
def test_an_option_below_one_is_refused_by_its_flag(name: str) -> None:
    for value in (0, -1):
        change: dict[str, Any] = {name: value}
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is {value}"):
            RunConfig("tiny", "heads", "humaneval", **change)


@pytest.mark.parametrize(("prompts", "wanted"), [(3, (78, 1, 1)), (4, (40, 1, 1)), (9, (90, 5, 5))])
def test_no_part_shrinks_to_nothing(tmp_path: Path, prompts: int, wanted: tuple[int, int, int]) -> None:
    counts, _notes = sizes(tmp_path, prompts, wanted)
    assert min(counts) >= 1
    assert sum(counts) == prompts


def test_a_prompt_without_tokens_is_not_called_too_long(tmp_path: Path) -> None:
    class Deaf(Bytes):
        def __call__(self, text: str, verbose: bool) -> dict[str, list[int]]:
            return {"input_ids": [] if text == "silent" else list(text.encode())}

    _splits, found = load(Deaf(), 512, config(tmp_path, ["silent", "a", "b", "c"], (2, 1, 1)))
    assert found.skipped
    assert "too long for the context" not in found.skipped


def test_half_a_surrogate_pair_in_a_text_is_left_out_or_kept(tmp_path: Path) -> None:
    splits, _found = load(Bytes(), 512, config(tmp_path, ["\ud83d", "a", "b", "c"], (2, 1, 1)))
    splits.about()


def talks(folder: Path, threads: int, pieces: int, questions: int) -> RunConfig:
    """Conversations in pieces, each piece with several questions."""
    turns = [(who, question) for question in range(questions) for who in ("human", "gpt")]
    rows = [
        {
            "id": f"t{thread}_{piece}",
            "conversations": [{"from": who, "value": f"{who} {n} of {thread} {piece}"} for who, n in turns],
        }
        for thread in range(threads)
        for piece in range(pieces)
    ]
    path = folder / "talks.json"
    path.write_text(json.dumps(rows))
    return RunConfig("tiny", "heads", "sharegpt", str(path), "raw", 0, 30, 20, 10, 20, turns="all")


@pytest.mark.parametrize(("threads", "pieces", "questions"), [(300, 2, 3), (60, 1, 2), (60, 3, 7), (2000, 1, 1)])
def test_all_turns_of_a_conversation_are_used_and_stay_in_one_part(
    tmp_path: Path, threads: int, pieces: int, questions: int
) -> None:
    options = talks(tmp_path, threads, pieces, questions)
    splits, found = load(Bytes(), 2048, options)
    homes: dict[str, set[str]] = {}
    for part, prompts in splits.parts.items():
        for name, _ids in prompts:
            homes.setdefault(name.removeprefix("sharegpt/").partition("_")[0], set()).add(part)
    assert all(len(parts) == 1 for parts in homes.values())
    assert min(splits.counts.values()) > 0
    assert all(count <= wanted for count, wanted in zip(splits.counts.values(), options.wanted, strict=True))
    assert dict(found.skipped) == {}
    there = len(load_prompts("sharegpt", options.data, turns="all").prompts)
    assert sum(splits.counts.values()) + found.not_needed == there
    if questions > 1 and there >= 60:
        assert len(homes) < sum(splits.counts.values())


def test_one_long_conversation_does_not_fill_a_part(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    rows = [{"id": n, "messages": [{"role": role, "content": f"{role} {n}"} for _ in range(20 if n == 0 else 1)
                                   for role in ("user", "assistant")]} for n in range(200)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits, _found = load(Bytes(), 9000, RunConfig("tiny", "heads", str(path), None, "raw", 0, 30, 20, 10, 20, turns="all"))
    assert list(map(len, parts(splits))) == [30, 20, 10]
    for part in parts(splits):
        assert len({name.partition("#")[0] for name in part}) > len(part) // 2


def test_with_one_question_a_conversation_all_turns_are_first_turns(tmp_path: Path) -> None:
    options = talks(tmp_path, 900, 1, 1)
    every, _found = load(Bytes(), 512, options)
    first, _found = load(Bytes(), 512, replace(options, turns="first"))
    assert [list(map(len, parts(splits))) for splits in (every, first)] == [[30, 20, 10]] * 2


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_all_turns_of_fewer_than_three_conversations_are_refused(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "few.json"
    talks = [[{"from": who, "value": f"x{n}"} for _ in range(30) for who in ("human", "gpt")] for n in range(threads)]
    path.write_text(json.dumps([{"id": n, "conversations": turns} for n, turns in enumerate(talks)]))
    with pytest.raises(ArtefactError):
        load(Bytes(), 2048, RunConfig("tiny", "heads", str(path), None, "raw", turns="all"))


def test_what_a_template_refuses_is_counted_and_the_rest_is_used(tmp_path: Path) -> None:
    class Strict(Bytes):
        chat_template = "no system"

        def __call__(self, text: str, verbose: bool, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": list(text.encode())}

        def apply_chat_template(self, rows: list[dict[str, str]], **_options: bool) -> str:
            if rows[0]["role"] == "system":
                raise ValueError("System role not supported")
            return rows[-1]["content"]

    path = tmp_path / "p.jsonl"
    rows = [{"system": "s" if n % 4 == 0 else "", "messages": [{"role": "user", "content": f"q{n}"}]} for n in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = RunConfig("tiny", "heads", str(path), None, "chat", 0, 4, 4, 4, 20)
    splits, found = load(Strict(), 512, options)
    assert sum(splits.counts.values()) == 9
    assert dict(found.skipped) == {"refused by the chat template: System role not supported": 3}
    assert sorted(*found.examples.values()) == [1, 5, 9]
    path.write_text("".join(json.dumps(row | {"system": "s"}) + "\n" for row in rows))
    with pytest.raises(ArtefactError, match="System role not supported 12"):
        load(Strict(), 512, options)


def test_a_dump_holds_exactly_what_is_used(tmp_path: Path) -> None:
    options = config(tmp_path, [f"téxt {n}\n" for n in range(12)], (4, 3, 2))
    splits, _found = load(Bytes(), 512, options)
    path = tmp_path / "new" / "dump.jsonl"
    check_dump(path)
    dump_prompts(path, splits, Bytes(), "auto")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["split"], row["id"], row["ids"]) for row in rows] == [
        (part, name, ids) for part, prompts in splits.parts.items() for name, ids in prompts
    ]
    assert all(row["text"].encode() == bytes(row["ids"]) and row["style"] == "raw" for row in rows)
    assert [item.name for item in path.parent.iterdir()] == ["dump.jsonl"]
    for bad in (tmp_path, path / "below"):
        with pytest.raises(UsageError, match="--dump-prompts"):
            check_dump(bad)


@pytest.mark.parametrize(("name", "value"), [("turns", "last"), ("long_prompts", "squeeze"), ("prompt_style", "poem")])
def test_an_unknown_choice_is_refused_by_name(name: str, value: str) -> None:
    change: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=value) as error:
        RunConfig("tiny", "heads", "humaneval", **change)
    assert "Known" in error.value.hint


OTHER: dict[str, Any] = {
    "model": "m", "heads": "h", "task": "gsm8k", "data": "d.jsonl", "prompt_style": "raw", "seed": 9, "search_prompts": 9,
    "fit_prompts": 9, "test_prompts": 9, "max_new_tokens": 9, "max_nodes": 9, "max_depth": 2, "device": "cuda",
    "dtype": "float16", "turns": "all", "long_prompts": "cut", "temperature": 0.5, "top_k": 9,
    "top_p": 0.5, "coupled": False, "stop": ("x",),
    "acceptance": "typical", "epsilon": 0.5, "alpha": 0.5, "schedule": "paper",
}  # fmt: skip


def test_every_option_of_a_search_is_recorded_and_another_value_is_another_run() -> None:
    """An option that is not among them would be taken and forgotten when a run goes on."""
    import inspect

    from entmtp_calib.commands.pipeline import search

    plain = RunConfig("tiny", "heads", "humaneval", temperature=1.0)
    assert {field.name for field in fields(RunConfig)} == set(OTHER)
    assert set(inspect.signature(search).parameters) - {"ctx", "out", "preset", "dump_prompts", "fresh", "json", "quiet"} == set(
        OTHER
    )
    for name, value in OTHER.items():
        change = {name: value} | ({"schedule": "joint"} if name == "acceptance" else {})
        assert digest(asdict(replace(plain, **change))) != digest(asdict(plain)), name
