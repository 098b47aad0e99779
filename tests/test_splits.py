"""Laws of the three sets of a run: disjoint by conversation, shrinking alike, never cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from entmtp_calib.calibrate.splits import RunConfig, Splits, load_splits
from entmtp_calib.errors import ArtefactError, UsageError


class Bytes:
    """A tokenizer of bytes without a template."""

    chat_template = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


def config(folder: Path, texts: list[str], sizes: tuple[int, int, int], task: str | None = None, seed: int = 0) -> RunConfig:
    path = folder / "p.jsonl"
    rows = [{"id": f"t{n}_0", "conversations": [{"from": "human", "value": text}]} for n, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunConfig("tiny", "heads", task or str(path), str(path), "raw", seed, *sizes, max_new_tokens=20)


def parts(splits: Splits) -> list[list[str]]:
    return [[name for name, _ids in part] for part in (splits.search, splits.fit, splits.test)]


def sizes(folder: Path, prompts: int, wanted: tuple[int, int, int]) -> tuple[list[int], list[str]]:
    splits, found = load_splits(Bytes(), 512, config(folder, [f"text {n}" for n in range(prompts)], wanted))
    return list(map(len, parts(splits))), found.notes


def test_parts_have_their_sizes_and_no_prompt_twice(tmp_path: Path) -> None:
    splits, found = load_splits(Bytes(), 512, config(tmp_path, [f"text {n}" for n in range(30)], (8, 5, 3)))
    names = [name for part in parts(splits) for name in part]
    assert list(map(len, parts(splits))) == [8, 5, 3]
    assert names == [prompt.id for prompt in found.prompts][:16]
    assert len(set(names)) == 16
    assert found.notes == []


def test_ids_are_the_whole_text(tmp_path: Path) -> None:
    splits, found = load_splits(Bytes(), 512, config(tmp_path, [f" text {n}\n" for n in range(3)], (1, 1, 1)))
    texts = {prompt.id: prompt.messages[0][1] for prompt in found.prompts}
    assert {name: bytes(ids).decode() for part in (splits.search, splits.fit, splits.test) for name, ids in part} == texts


def test_the_same_seed_gives_the_same_parts_and_another_seed_others(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(30)]
    one, again, other = (load_splits(Bytes(), 512, config(tmp_path, texts, (8, 5, 3), seed=seed))[0] for seed in (0, 0, 1))
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


def test_a_prompt_that_leaves_no_room_is_left_out_whole_and_counted(tmp_path: Path) -> None:
    room = 300 - 20 - 100
    texts = ["x" * length for length in (1, room - 1, room, room + 1, 300, 5000)]
    splits, found = load_splits(Bytes(), 300, config(tmp_path, texts, (1, 1, 1)))
    assert sorted(len(ids) for part in (splits.search, splits.fit, splits.test) for _name, ids in part) == [1, room - 1, room]
    assert all(len(ids) <= room for part in (splits.search, splits.fit, splits.test) for _name, ids in part)
    _splits, found = load_splits(Bytes(), 300, config(tmp_path, texts, (2, 1, 1)))
    assert found.skipped == {"too long for the context": 3}


def test_a_context_without_room_for_any_prompt_is_refused(tmp_path: Path) -> None:
    for positions in (0, 100, 120):
        with pytest.raises(ArtefactError, match="0 usable"):
            load_splits(Bytes(), positions, config(tmp_path, ["a", "b", "c"], (1, 1, 1)))


def test_a_conversation_is_used_once_whatever_its_pieces(tmp_path: Path) -> None:
    path = tmp_path / "pieces.json"
    rows = [{"id": f"t{thread}_{piece}", "conversations": [{"from": "human", "value": f"{thread} {piece}"}]}
            for thread in range(200) for piece in range(5)]  # fmt: skip
    path.write_text(json.dumps(rows))
    splits, found = load_splits(Bytes(), 512, RunConfig("tiny", "heads", "sharegpt", str(path), "raw", 0, 90, 90, 90))
    used = [name.removeprefix("sharegpt/").partition("_")[0] for part in parts(splits) for name in part]
    held_out = {prompt.thread for prompt in found.prompts}
    assert len(used) == len(set(used)) == len(held_out)
    assert found.skipped == {"another piece of a used conversation": 4 * len(held_out)}


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
        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [] if text == "silent" else [1, 2]}

    _splits, found = load_splits(Deaf(), 512, config(tmp_path, ["silent", "a", "b", "c"], (2, 1, 1)))
    assert found.skipped
    assert "too long for the context" not in found.skipped


def test_half_a_surrogate_pair_in_a_text_is_left_out_or_kept(tmp_path: Path) -> None:
    splits, _found = load_splits(Bytes(), 512, config(tmp_path, ["\ud83d", "a", "b", "c"], (2, 1, 1)))
    splits.about()
