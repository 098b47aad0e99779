"""Rows of a CSV file as a stream, with the columns that a header names.

Knows CSV and nothing of prompts. What cannot be used is counted; a file without a wanted column is refused.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from entmtp_calib.calibrate.json_rows import open_text
from entmtp_calib.calibrate.tally import Tally
from entmtp_calib.errors import ArtefactError

_LONGEST = 1 << 27  # characters of a cell; the module's own limit is shorter than a long prompt


def is_csv(path: Path) -> bool:
    """Whether a file says by its name that it is CSV, plain or zipped."""
    return path.name.lower().endswith((".csv", ".csv.gz"))


def csv_rows(path: Path, found: Tally, needed: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows of a CSV file by column name; cells are kept as they are, names of columns lose case and outer white space.

    Args:
        needed: columns of which there must be one.

    Raises:
        ArtefactError: no file, or none of the columns in it.
    """
    old_limit = csv.field_size_limit(_LONGEST)
    try:
        with open_text(path, found, newline="") as file:
            reader = csv.reader(file, strict=True)  # strict tells a file that ends inside a cell
            try:
                header = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise ArtefactError(f"{path} is not CSV ({error}).", "Give another file.") from None
            check_columns(header, needed, str(path))
            yield from _rows(reader, [name.strip().lower() for name in header], found)
    finally:
        csv.field_size_limit(old_limit)


def check_columns(there: Sequence[str], needed: Sequence[str], where: str) -> None:
    """Refuse a table without any of the needed columns, and say which it has.

    Raises:
        ArtefactError: none of them is there.
    """
    if not {name.strip().lower() for name in there} & set(needed):
        names = ", ".join(there[:20]) or "none"
        raise ArtefactError(f"{where} has no column with prompts; its columns are: {names}.", f"One must be {_or(needed)}.")


def _rows(reader: Any, names: list[str], found: Tally) -> Iterator[dict[str, Any]]:
    while True:
        found.row += 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            found.skip("row that is not CSV")
            continue
        if len(cells) > len(names):
            found.skip("row with more cells than columns")
        elif cells:  # an empty line is no row
            yield dict(zip(names, cells, strict=False))


def _or(names: Sequence[str]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]
