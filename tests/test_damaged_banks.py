"""Bank files that are cut short, mistyped or changed anywhere: read as written, or refused."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from small_banks import DYNAMIC, GOLDEN, PLAIN, changed, refusal, written

from entmtp_calib.bank import load_bank
from entmtp_calib.errors import ArtefactError

NOT_BANKS = [b"", b"\n", b"{", b"null", b"3", b'"entmtp-bank"', b"[]", b"{}", b"\x00\x01\xff\xfe", b"GGUF\x03\x00\x00\x00\x90",
             b"\x1f\x8b\x08\x00", b"[" * 100_000, b'{"format": "entmtp-run", "version": 1}', b'{"format":' * 5000]  # fmt: skip


@pytest.mark.parametrize("data", NOT_BANKS, ids=range(len(NOT_BANKS)))
def test_a_file_that_is_no_bank_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bank.json"
    path.write_bytes(data)
    with pytest.raises(ArtefactError, match=r"is not a bank|is not JSON|cannot be read"):
        load_bank(path)


def test_a_missing_bank_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="there is no bank"):
        load_bank(tmp_path / "none.json")
    with pytest.raises(ArtefactError, match="cannot be read"):
        load_bank(tmp_path)


def test_wherever_the_file_is_cut_short_it_is_refused(tmp_path: Path) -> None:
    whole = GOLDEN.read_text().rstrip()
    for end in range(0, len(whole), 97):
        assert "not JSON or was cut short" in refusal(tmp_path, whole[:end])


JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2, 63, 2**100, 0.5, -0.0, 1e308, "", "x", "0", "1", "__import__('os')", "path_value_1", "static",
    [], [0], [[0]], [[0], [0, 0], [1]], [[[[[[0]]]]]], {}, {"index": 0}, {"a": {"b": [None, {"c": []}]}}, [[{}], "x", [None]],
]  # fmt: skip
TEXTS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "nan",
    "0x10",
    "'x'",
    "[" * 60 + "]" * 60,
    "{}{}",
    "1_000",
    "\ufeff",
    str(2**900),
]
FREE = ["measured", "evaluation", "splits", "limits", "provenance", "target", "heads", "acceptance", "template"]


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: tuple[str | int, ...], item: Any) -> Any:
    if not path:
        return item
    at(value, path[:-1])[path[-1]] = item
    return value


def remove(value: Any, path: tuple[str | int, ...]) -> Any:
    if path:
        del at(value, path[:-1])[path[-1]]
    return value


def mutated(rng: random.Random) -> str:
    """The bank with one to three places deleted, replaced, swapped or written as something that is hardly JSON."""
    value: Any = copy.deepcopy(PLAIN)
    value["policies"] |= rng.choice([{}, {"dynamic": copy.deepcopy(DYNAMIC)}])
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        place, other = rng.choices([p for p in places(value) if len(p) < 4 or rng.random() < 0.1], k=2)
        kind = rng.randrange(5)
        if kind == 0:
            value = remove(value, place)
        elif kind == 1:
            value = put(value, place, rng.choice([*JUNK, rng.random() * 10 ** rng.randrange(-9, 9)]))
        elif kind == 2 and other[: len(place)] != place:
            value = put(value, place, copy.deepcopy(at(value, other)))
        elif kind == 3 and place and place[0] not in FREE:
            text = json.dumps(put(value, place, "@here@"))
            return text.replace('"@here@"', rng.choice(TEXTS))
    text = json.dumps(value, indent=rng.choice([None, 1]))
    if rng.random() < 0.1:
        start = rng.randrange(len(text))
        text = text[:start] + rng.choice(["", "\x00", "}", "]", '"', ",", "\\"]) + text[start + rng.randrange(5) :]
    return text


def known(value: dict[str, Any]) -> dict[str, Any]:
    """The fields that a bank has, nodes sorted: what two files of the same meaning share."""
    rows = [{key: row[key] for key in PLAIN["trees"][0]} for row in value["trees"]]
    rows = [row | {"nodes": in_order(row["nodes"])} for row in rows]
    policies = {
        name: row | ({"drafted": in_order(row["drafted"])} if name == "dynamic" else {})
        for name, row in value["policies"].items()
    }
    return {key: value[key] for key in PLAIN} | {"trees": rows, "policies": policies}


def in_order(nodes: list[list[int]]) -> list[list[int]]:
    return sorted(nodes, key=lambda node: (len(node), node))


def test_whatever_is_done_to_a_bank_it_is_read_as_written_or_refused(tmp_path: Path) -> None:
    rng = random.Random(7)
    loaded = 0
    for _ in range(400):
        text = mutated(rng)
        path = written(tmp_path, text)
        try:
            bank = load_bank(path)
        except ArtefactError:
            continue
        loaded += 1
        assert known(json.loads(text)) == json.loads(json.dumps(bank.to_json()))
        assert all(0 <= member < len(bank.choices(policy)) for policy in bank.policies.values() for member in policy.members)
        assert bank.policy("auto") is bank.policies[bank.recommended]
        bank.save(tmp_path / "again.json")
        assert load_bank(tmp_path / "again.json") == bank
    assert 50 < loaded < 350


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [(("version",), True), (("version",), 1.0), (("trees", 1, "size"), 3.0), (("trees", 1, "depth"), 2.0),
     (("acceptance", "temperature"), False)],
    ids=str,
)  # fmt: skip
def test_a_number_that_only_equals_the_right_one_is_refused(tmp_path: Path, keys: tuple[str | int, ...], wrong: object) -> None:
    assert refusal(tmp_path, changed(*keys, to=wrong))


@pytest.mark.parametrize(
    "keys", [("trees", 1, "speedup"), ("policies", "ladder", "edges", 1), ("policies", "hysteresis", "on")], ids=str
)
def test_a_number_too_large_for_a_float_is_refused(tmp_path: Path, keys: tuple[str | int, ...]) -> None:
    assert refusal(tmp_path, changed(*keys, to=10**400))


@pytest.mark.parametrize("section", FREE)
def test_a_bank_that_loads_can_be_saved_though_a_section_held_nan(tmp_path: Path, section: str) -> None:
    path = written(tmp_path, changed(section, "x", to=float("nan")))
    try:
        bank = load_bank(path)
    except ArtefactError:
        return
    bank.save(tmp_path / "again.json")


def test_a_bank_that_loads_can_be_saved_whatever_its_texts(tmp_path: Path) -> None:
    path = written(tmp_path, changed("trees", 1, "label", to="\ud800"))
    try:
        bank = load_bank(path)
    except ArtefactError:
        return
    bank.save(tmp_path / "again.json")
