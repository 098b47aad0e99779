"""Files of prompts as strangers have them: other encodings, other kinds of file, ids that say nothing, what is no file."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from entmtp_calib.calibrate.prompts import PromptSet, load_prompts
from entmtp_calib.errors import ArtefactError, UsageError

ROWS = [{"id": f"r{number}", "prompt": f" é😀\u202e{number}\n"} for number in range(7)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
ARRAY = json.dumps(ROWS, ensure_ascii=False, indent=1)
CELLS = "id,prompt\r\n" + "".join('{id},"{prompt}"\r\n'.format(**row) for row in ROWS)


def load(folder: Path, data: bytes, name: str = "p.jsonl", task: str = "") -> PromptSet:
    (folder / name).write_bytes(data)
    path = str(folder / name)
    return load_prompts(task, path) if task else load_prompts(path)


def texts(found: PromptSet) -> list[str]:
    return sorted(prompt.messages[-1][1] for prompt in found.prompts)


@pytest.mark.parametrize("zipped", [False, True], ids=["open", "gzip"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize(("data", "name"), [(LINES, "p.jsonl"), (ARRAY, "p.json"), (CELLS, "p.csv")])
def test_a_byte_order_mark_tells_the_encoding(tmp_path: Path, data: str, name: str, encoding: str, zipped: bool) -> None:
    raw = data.encode(encoding)
    found = load(tmp_path, gzip.compress(raw) if zipped else raw, name)
    assert texts(found) == [row["prompt"] for row in ROWS]
    assert (found.notes, dict(found.skipped)) == ([], {})


def test_both_byte_orders_are_read(tmp_path: Path) -> None:
    for encoding, mark in (("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff"), ("utf-32-be", b"\0\0\xfe\xff")):
        assert texts(load(tmp_path, mark + LINES.encode(encoding))) == [row["prompt"] for row in ROWS]


@pytest.mark.parametrize("at", [b"\x00\xdc", b"\x3d\xd8"])
def test_half_a_pair_in_another_encoding_is_counted_and_not_changed(tmp_path: Path, at: bytes) -> None:
    raw = LINES.encode("utf-16").replace("3\\n".encode("utf-16-le"), at + "3\\n".encode("utf-16-le"))
    found = load(tmp_path, raw)
    assert texts(found) == [row["prompt"] for row in ROWS if row["id"] != "r3"]
    assert dict(found.skipped) == {"text that is not Unicode": 1}
    cut = load(tmp_path, LINES.encode("utf-16")[:-1])
    assert len(cut.prompts) + sum(cut.skipped.values()) in (7, 8)
    assert set(texts(cut)) <= {row["prompt"] for row in ROWS}


def archive() -> bytes:
    """A ZIP file whose member is stored as it is, so that its lines stand in the file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("p.jsonl", LINES)
    return file.getvalue()


FOREIGN = [("ZIP", archive()), ("bzip2", bz2.compress(LINES.encode())), ("xz", lzma.compress(LINES.encode())),
           ("Zstandard", b"\x28\xb5\x2f\xfd" + bytes(40)), ("Parquet", b"PAR1" + bytes(40) + b"PAR1"),
           ("Arrow", b"ARROW1\0\0" + bytes(40)), ("SQLite", b"SQLite format 3\0"), ("PDF", b"%PDF-1.7")]  # fmt: skip


@pytest.mark.parametrize("zipped", [False, True], ids=["open", "gzip"])
@pytest.mark.parametrize(("kind", "data"), FOREIGN, ids=[kind for kind, _data in FOREIGN])
@pytest.mark.parametrize("name", ["p.jsonl", "p.csv"])
def test_a_file_of_another_kind_is_named_and_nothing_is_read_from_it(
    tmp_path: Path, kind: str, data: bytes, name: str, zipped: bool
) -> None:
    with pytest.raises(ArtefactError, match=f"is a {kind} file") as refusal:
        load(tmp_path, gzip.compress(data) if zipped else data, name)
    assert refusal.value.hint


@pytest.mark.parametrize("wrapped", [json.dumps({"data": ROWS}), json.dumps({"data": ROWS}, indent=1), "<html></html>", "a\nb\n"])
def test_what_holds_no_rows_is_refused_with_what_is_wanted(tmp_path: Path, wrapped: str) -> None:
    with pytest.raises(ArtefactError, match="no usable prompt") as refusal:
        load(tmp_path, wrapped.encode())
    assert all(word in refusal.value.hint for word in ("JSON Lines", "array", "CSV", "prompt", "conversations"))


@pytest.mark.parametrize("nothing", [None, ""])
@pytest.mark.parametrize("task", ["", "humaneval", "sharegpt"])
def test_an_id_that_says_nothing_is_no_conversation(tmp_path: Path, task: str, nothing: Any) -> None:
    rows = [{"id": nothing, "task_id": nothing, "prompt": f"q{n}", "conversations": [{"from": "human", "value": f"q{n}"}]}
            for n in range(60)]  # fmt: skip
    found = load(tmp_path, json.dumps(rows).encode(), task=task)
    threads = [prompt.thread for prompt in found.prompts]
    assert len(threads) == len(set(threads)) == (60 if task != "sharegpt" else len(threads))
    assert len(threads) > 1


def test_ids_of_any_type_are_names(tmp_path: Path) -> None:
    ids: list[Any] = [1, 1.5, True, [1], {"a": 1}, "a/b", "../../x", "x\0y", "é", 10**30]
    rows = [{"id": name, "prompt": f"q{n}"} for n, name in enumerate(ids)]
    found = load(tmp_path, json.dumps(rows).encode())
    assert len({prompt.thread for prompt in found.prompts}) == len(ids)


def test_a_pipe_a_folder_and_a_loop_of_links_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for name, words in (("pipe", "no ordinary file"), (".", "save_to_disk"), ("a", "no task or file")):
        with pytest.raises(UsageError, match=words) as refusal:
            load_prompts(str(tmp_path / name))
        assert refusal.value.hint
        with pytest.raises(ArtefactError, match=r"there is no f|holds no saved"):
            load_prompts("gsm8k", str(tmp_path / name))
    with pytest.raises(ArtefactError, match="there is no folder"):
        load_prompts("python-stdlib", str(tmp_path / "nowhere"))
