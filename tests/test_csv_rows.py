"""Laws of CSV files: cells byte for byte, columns by name, and a reason for every row that is left out."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pytest

from entmtp_calib.calibrate.prompts import GSM8K_ASK, PromptSet, load_prompts
from entmtp_calib.errors import ArtefactError

CELLS = ["plain", 'quote " and, comma', "two\nlines\r\nthree", "  white \t", "é😀\u2028", "x" * 300_000]


def table(header: list[str], rows: list[list[str]], end: str = "\r\n") -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows([header, *rows])
    return text.getvalue().encode()


def load(folder: Path, data: bytes, name: str = "p.csv", task: str | None = None) -> PromptSet:
    (folder / name).write_bytes(data)
    return load_prompts(task or str(folder / name), str(folder / name) if task else None)


def texts(found: PromptSet) -> list[str]:
    return sorted(prompt.messages[-1][1] for prompt in found.prompts)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
@pytest.mark.parametrize("name", ["p.csv", "p.CSV", "p.csv.gz"])
def test_cells_are_kept_byte_for_byte_whatever_the_file(tmp_path: Path, end: str, mark: bytes, name: str) -> None:
    data = mark + table(["id", "prompt"], [[str(n), cell] for n, cell in enumerate(CELLS)], end)
    limit = csv.field_size_limit()
    found = load(tmp_path, gzip.compress(data) if name.endswith("gz") else data, name)
    assert texts(found) == sorted(CELLS)
    assert (found.notes, dict(found.skipped)) == ([], {})
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("column", ["prompt", "question", "instruction", "text", "Prompt", " TEXT "])
def test_known_columns_are_found_by_name(tmp_path: Path, column: str) -> None:
    assert texts(load(tmp_path, table(["other", column], [["x", "a"]]))) == ["a"]


def test_a_file_without_a_known_column_is_refused_with_the_columns_it_has(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="its columns are: name, Body") as error:
        load(tmp_path, table(["name", "Body"], [["x", "a"]]))
    assert "prompt" in error.value.hint
    with pytest.raises(ArtefactError, match="its columns are: prompt"):
        load(tmp_path, table(["prompt"], [["a"]]), task="gsm8k")


def test_named_sets_take_csv_too(tmp_path: Path) -> None:
    assert texts(load(tmp_path, table(["question", "answer"], [["1+1?", "2"]]), task="gsm8k")) == [GSM8K_ASK + "1+1?"]


def test_rows_that_cannot_be_used_are_counted_with_their_numbers(tmp_path: Path) -> None:
    data = b"id,prompt\na,good\nb,x,too many\nc\n\nd,nul\x00\ne,\nf,fine\n"
    found = load(tmp_path, data)
    assert texts(found)[0] == "fine"
    assert "good" in texts(found)
    assert found.examples["row with more cells than columns"] == [2]
    assert found.examples["no prompt text"][0] == 3
    assert sum(found.skipped.values()) >= 3


def test_a_file_that_ends_inside_a_cell_loses_that_row_only(tmp_path: Path) -> None:
    found = load(tmp_path, b'prompt\ngood\n"cut in the mid')
    assert texts(found) == ["good"]
    assert dict(found.skipped) == {"row that is not CSV": 1}


@pytest.mark.parametrize("data", [b"", b"prompt\n", b"prompt\n\n\n", b'prompt\n" "\n'])
def test_a_table_with_nothing_in_it_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ArtefactError, match="no usable prompt"):
        load(tmp_path, data)


def test_text_that_is_not_utf8_is_counted(tmp_path: Path) -> None:
    found = load(tmp_path, b"prompt\ngood\ncaf\xe9\n")
    assert (texts(found), dict(found.skipped)) == (["good"], {"text that is not Unicode": 1})
