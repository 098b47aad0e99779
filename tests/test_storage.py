"""Laws of files: absent or complete, the same bytes for the same content, and journals that survive a crash."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from entmtp_calib.errors import ArtefactError, EntmtpError
from entmtp_calib.storage import Journal, digest, hold, load_arrays, read_json, save_arrays, to_json, write_atomically

ARRAYS: dict[str, np.ndarray] = {
    "ranks": np.arange(12, dtype=np.int32).reshape(4, 3),
    "logp": np.linspace(-3, 0, 5, dtype=np.float32),
    "none": np.zeros((0, 4), np.int32),
    "name": np.frombuffer("prompt/ä".encode(), np.uint8),
}


def break_down(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("old", [None, b"old content"])
@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_write_that_breaks_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None, where: str
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    monkeypatch.setattr(os if where == "fsync" else Path, where, break_down)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new content")
    assert [item.name for item in tmp_path.iterdir()] == ([] if old is None else ["file"])
    assert old is None or path.read_bytes() == old


def test_a_write_replaces_the_whole_file_and_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    for data in (b"a longer content", b"short", b""):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert [item.name for item in path.parent.iterdir()] == ["file"]


def test_a_folder_is_not_written_over_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as refusal:
        write_atomically(tmp_path / "folder", b"data")
    assert refusal.value.filename == str(tmp_path / "folder")
    assert [item.name for item in tmp_path.rglob("*")] == ["folder"]


def test_a_link_stays_one_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    for data in (b"one", b"two"):
        write_atomically(tmp_path / "link", data)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "file").read_bytes() == data
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["file"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE)
    write_atomically(tmp_path / "pipe", b"through")
    assert reader.communicate(timeout=60)[0] == b"through"
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_full_disk_is_told_with_the_file_that_it_is_full_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = Journal(tmp_path / "journal")
    journal.append({"a": 1})
    monkeypatch.setattr(os, "fsync", full)
    for path, write in ((tmp_path / "file", lambda: write_atomically(tmp_path / "file", b"x")),
                        (journal.path, lambda: journal.append({"a": 2}))):  # fmt: skip
        with pytest.raises(OSError, match="No space left") as refusal:
            write()
        assert refusal.value.filename == str(path)
    assert not (tmp_path / "file").exists()
    assert journal.rows()[0] == {"a": 1}


PIECES = ["[\n 1,\n 2\n]", "[1  , 2]", *'[]{}"\\\n\t 1ä😀\u2028\0', ", ", "e5", "\\n", "\r\n"]


def random_value(rng: random.Random, depth: int = 0) -> object:
    kind = rng.randrange(5 if depth > 3 else 8)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([0, -1, 10**30, rng.randrange(-1000, 1000)])
    if kind == 2:
        return rng.choice([0.0, -1.5e-300, 1e300, 0.1, rng.uniform(-5, 5)])
    if kind in (3, 4):
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(6)))
    if kind == 5:
        return {"".join(rng.choice(PIECES) for _ in range(3)): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}
    if kind == 6:
        return [rng.choice([rng.randrange(-9, 9), rng.uniform(-1e-7, 1e20)]) for _ in range(rng.randrange(4))]
    return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]


def reordered(value: object) -> object:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


def test_json_gives_back_what_went_in_and_forgets_the_order_of_keys() -> None:
    rng = random.Random(0)
    for _ in range(400):
        value = random_value(rng)
        data = to_json(value)
        assert json.loads(data) == value
        assert data == to_json(reordered(value))
        assert data.endswith(b"\n")


def test_a_list_of_numbers_takes_one_line_and_strings_stay_as_they_are() -> None:
    value = {"b": [1, -2.5, 3e-09, 10**20], "a": [[0], [0, 1], []], "c": "[\n 1,\n 2\n]", "d": ["1", 2]}
    wanted = '{\n "a": [\n  [0],\n  [0, 1],\n  []\n ],\n "b": [1, -2.5, 3e-09, 100000000000000000000],\n'
    wanted += ' "c": "[\\n 1,\\n 2\\n]",\n "d": [\n  "1",\n  2\n ]\n}\n'
    assert to_json(value).decode() == wanted


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_json_has_no_nan_and_no_infinity(bad: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json({"a": [1.0, bad]})


def test_a_digest_is_of_the_value_not_of_its_order() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest([]) == "sha256:37517e5f3dc66819f61f5a7bb8ace1921282415f10551d2defa5c3eb0985b570"


NOT_JSON = [b"", b"{", b'{"a": 1', b"[1,", b"\xff\xfe\x00", b"\x00" * 9, b"[" * 100_000, b"\xef\xbb\xbf{}", b"1" * 5000, b"{} {}"]


@pytest.mark.parametrize("data", NOT_JSON, ids=range(len(NOT_JSON)))
def test_a_file_that_is_not_json_is_refused_by_what_it_is(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(ArtefactError, match="the frontier") as error:
        read_json(path, "frontier", "Make it.")
    assert error.value.hint == "Make it."


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="there is no bank"):
        read_json(tmp_path / "none.json", "bank")
    with pytest.raises(ArtefactError, match="cannot be read"):
        read_json(tmp_path, "bank")


def test_arrays_round_trip_with_their_types(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a.npz", ARRAYS)
    back = load_arrays(tmp_path / "a.npz", "rollout")
    assert back.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a.npz", ARRAYS)
    save_arrays(tmp_path / "b.npz", {name: np.asfortranarray(ARRAYS[name]) for name in reversed(ARRAYS)})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_damaged_arrays_are_refused_or_read_right(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save_arrays(path, ARRAYS)
    whole = path.read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            back = load_arrays(path, "rollout")
        except ArtefactError:
            refused += 1
            continue
        assert {name: array.tolist() for name, array in back.items()} == {k: v.tolist() for k, v in ARRAYS.items()}
    assert refused > 100


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([{"x": 1}], dtype=object))
    with pytest.raises(ArtefactError, match="damaged"):
        load_arrays(tmp_path / "a.npz", "rollout")
    with pytest.raises(ArtefactError, match="there is no rollout"):
        load_arrays(tmp_path / "none.npz", "rollout")


def test_a_scalar_array_keeps_its_shape(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a.npz", {"a": np.array(3.0)})
    assert load_arrays(tmp_path / "a.npz", "rollout")["a"].shape == ()


ROWS: list[dict[str, object]] = [{"arm": "ar", "seconds": 0.25}, {"arm": "n8", "text": "line\nbreak ä"}, {"arm": "n16"}]


def journal_of(path: Path, rows: list[dict[str, object]]) -> Journal:
    journal = Journal(path)
    for row in rows:
        journal.append(row)
    return journal


def test_a_journal_gives_its_rows_in_order(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none.jsonl").rows() == []
    assert journal_of(tmp_path / "new" / "j.jsonl", ROWS).rows() == ROWS
    assert (tmp_path / "new" / "j.jsonl").read_bytes().count(b"\n") == len(ROWS)


def test_wherever_the_last_line_is_torn_it_is_dropped_and_the_next_append_is_clean(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    whole = journal_of(path, ROWS).path.read_bytes()
    kept = len(journal_of(tmp_path / "k.jsonl", ROWS[:2]).path.read_bytes())
    for end in range(kept, len(whole)):
        path.write_bytes(whole[:end])
        assert Journal(path).rows() == ROWS[:2]
        Journal(path).append(ROWS[2])
        assert path.read_bytes() == whole


def test_what_another_wrote_meanwhile_is_read_before_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = journal_of(path, ROWS[:1])
    journal_of(path, ROWS[1:2])
    with path.open("ab") as file:
        file.write(b'{"torn": ')
    journal.append(ROWS[2])
    assert journal.rows() == ROWS
    path.unlink()
    journal.append(ROWS[0])
    assert journal.rows() == ROWS[:1]


@pytest.mark.parametrize("torn", [b"\x00" * 64, b"\xff\xfe{", b"   ", b"[1, 2", b'{"a": "'])
def test_any_rubbish_after_the_last_newline_is_a_torn_line(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "j.jsonl"
    whole = journal_of(path, ROWS).path.read_bytes()
    path.write_bytes(whole + torn)
    assert Journal(path).rows() == ROWS
    Journal(path).append(ROWS[0])
    assert Journal(path).rows() == [*ROWS, ROWS[0]]


@pytest.mark.parametrize("bad", [b"{", b"\x00\x00", b"\xff", b"3", b"[]", b"null", b'"x"', b"{} {}"])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_bad_whole_line_is_an_error_and_the_file_is_left_alone(tmp_path: Path, bad: bytes, place: int) -> None:
    lines = [json.dumps(row).encode() for row in ROWS]
    lines.insert(place, bad)
    path = tmp_path / "j.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    before = path.read_bytes()
    read = Journal(path)
    for use in (read.rows, lambda: read.append({}), lambda: Journal(path).append({})):
        with pytest.raises(ArtefactError, match=f"line {place + 1} of"):
            use()
    assert path.read_bytes() == before


def test_a_row_that_is_no_json_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    journal = journal_of(tmp_path / "j.jsonl", ROWS)
    for bad in ({"seconds": float("nan")}, {"seconds": float("inf")}):
        with pytest.raises(ValueError, match="JSON compliant"):
            journal.append(bad)
    assert journal.rows() == ROWS


def test_a_line_nested_too_deeply_is_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b"{}\n" + b"[" * 100_000 + b"\n{}\n")
    with pytest.raises(ArtefactError, match="line 2"):
        Journal(path).rows()


HOLDER = (
    "import sys; from pathlib import Path; from entmtp_calib.storage import hold; hold(Path(sys.argv[1])); print('held'); input()"
)


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that holds a folder until it reads a line or is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()  # it holds the folder now, or has ended
    return process


def test_a_folder_has_one_process_at_a_time_and_a_killed_one_lets_it_go(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        with pytest.raises(EntmtpError, match="another process is at work") as refusal:
            hold(tmp_path)
        first.kill()
    assert refusal.value.exit_code == 1
    hold(tmp_path)
    hold(tmp_path)  # one process may begin several stages
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    with holder(moved) as second:
        second.kill()
        assert "at work" in second.communicate()[1]
    assert list(moved.iterdir()) == []
