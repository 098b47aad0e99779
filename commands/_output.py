"""What goes to the terminal: results on stdout, conversation on stderr.

Answers that stream go out in `_answer.py`, what becomes of failures is in `_failures.py`. Terminals may be narrow, without
colour, or unable to show a sign; none of that is an error.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from ._logging import note

Row = Mapping[str, Any]
_SPELLED = {"–": "-", "×": "x", "…": "...", "→": "->", "≥": ">=", "└": "`", "├": "|", "│": "|", "─": "-", "█": "#"}
"""Signs that not every terminal can show."""


class Column(NamedTuple):
    """A column of a table: key in the rows, heading, how to print a value, and whether a narrow terminal does without it."""

    key: str
    heading: str
    form: str = ""
    minor: bool = False


class Table(NamedTuple):
    """Rows that are printed as a table and, under `name`, are in the JSON document whole."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]


class Output:
    """How a command speaks: a table or JSON on stdout, everything else on stderr.

    Args:
        as_json: one JSON document instead of tables; no progress.
        quiet: results only.
    """

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.silent = as_json or quiet
        self._document: dict[str, Any] = {}

    @property
    def width(self) -> int:
        """Columns of what stdout goes to; 120 for a file."""
        return _stdout().width

    def say(self, text: str) -> None:
        """A line of conversation."""
        note(logging.INFO, text)
        if not self.silent:
            say_aside(text)

    def warn(self, text: str) -> None:
        """A warning; it is shown even when quiet."""
        note(logging.WARNING, text)
        say_aside(f"warning: {text}", "yellow")

    def table(self, table: Table) -> None:
        """Show rows, or keep them for the document."""
        self._document[table.name] = [dict(row) for row in table.rows]
        if not self.as_json:
            _show(table)

    def fields(self, name: str, values: Row, title: str = "") -> None:
        """Show named values, one a line, or keep them for the document."""
        self._document[name] = dict(values)
        if self.as_json:
            return
        if title:
            _echo(title)
        width = max((len(key) for key in values), default=0)
        for key, value in values.items():
            name = key if key.isupper() else key.replace("_", " ")  # variables keep their spelling
            _echo(f"  {name:<{width}}  {_text(value)}")

    def text(self, text: str) -> None:
        """Plain lines on stdout, absent from the document."""
        if not self.as_json:
            _echo(text)

    def keep(self, **values: Any) -> None:
        """Values for the document only."""
        self._document |= values

    def finish(self, kind: str) -> None:
        """Print the document, if one is wanted."""
        if self.as_json:
            _echo(json.dumps({"format": f"entmtp-{kind}", "version": 1, **_finite(self._document)}, indent=1))

    @contextmanager
    def progress(self) -> Iterator[Callable[[str, int, int], None]]:
        """A function that shows how far a job is, with an estimate of what remains."""
        console = _stderr()
        if self.silent or not console.is_terminal:
            yield lambda _what, _done, _total: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
                   TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())  # fmt: skip
        with Progress(*columns, console=console, transient=True) as bars:
            tasks: dict[str, Any] = {}

            def tick(what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bars.add_task(what, total=total)
                bars.update(tasks[what], completed=done, total=total)

            yield tick


def speak_plainly() -> None:
    """Let signs that the terminal's encoding lacks be spelled instead of failing; a closed stream is an empty one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open to the end)
    codecs.register_error("entmtp-spelled", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="entmtp-spelled")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    signs = error.object[error.start : error.end]
    return "".join(_SPELLED.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs), error.end


def say_aside(text: str, style: str | None = None) -> None:
    """A line on stderr; if nobody can read it any more, the work goes on all the same."""
    with suppress(OSError):
        _stderr().print(text, style=style, markup=False, highlight=False)


def _echo(text: str) -> None:
    typer.echo(text, file=sys.stdout)  # without a file, typer writes UTF-8 where Python was told ASCII


def _stdout() -> Console:
    asked = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(file=sys.stdout, width=None if asked else 120, highlight=False)


class _Stderr(Console):
    def on_broken_pipe(self) -> None:
        """Let `say_aside` decide; rich would close stdout and end the program."""
        raise  # rich calls this while it handles the error


def _stderr() -> Console:
    return _Stderr(file=sys.stderr, soft_wrap=True)


def _show(table: Table) -> None:
    """The table; where it is wider than the terminal, without its minor columns, or its rows one below the other."""
    console = _stdout()
    major = [column for column in table.columns if not column.minor]
    for columns in (table.columns, major):
        view = _render(table._replace(columns=columns))
        if console.measure(view, options=console.options.update(max_width=10_000)).minimum <= console.width:
            console.print(view)
            if len(columns) < len(table.columns):
                left_out = "; ".join(column.heading for column in table.columns if column.minor)
                console.print(f"(not shown, the terminal is narrow: {left_out})", style="dim", markup=False)
            return
    console.print(table.title, style="bold", markup=False)
    for row in table.rows:
        lines = (f"{column.heading}: {_cell(row.get(column.key), column.form)}" for column in table.columns)
        console.print("\n".join(lines) + "\n", markup=False)


def _render(table: Table) -> RichTable:
    title = escape(table.title)  # names and reasons come from users' files and may hold brackets
    view = RichTable(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in table.columns:
        numeric = column.form or all(isinstance(row.get(column.key), (int, float)) for row in table.rows)
        view.add_column(column.heading, justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        view.add_row(*(escape(_cell(row.get(column.key), column.form)) for column in table.columns))
    return view


def _cell(value: Any, form: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if form and isinstance(value, (int, float)):
        return format(value, form)
    return _text(value)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _finite(value: Any) -> Any:
    """JSON has no NaN: such values become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
