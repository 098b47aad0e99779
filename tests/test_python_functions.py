"""Laws of the function headers: documented functions only, whole signatures and docstrings, in a fixed order."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

from entmtp_calib.calibrate.python_functions import function_headers

DOC = '"""A documented function, long enough."""'


def headers(folder: Path, source: str) -> list[str]:
    (folder / "m.py").write_text(source)
    return [header for _name, header in function_headers(folder)]


def test_a_header_is_the_whole_signature_and_docstring(tmp_path: Path) -> None:
    source = f"x = 1\n\n\n@cache\ndef f(\n    a: int,  # why\n    *, b=2,\n) -> int:\n    {DOC}\n    return a\n"
    assert headers(tmp_path, source) == [f"def f(\n    a: int,  # why\n    *, b=2,\n) -> int:\n    {DOC}\n"]


def test_a_method_is_dedented_and_keeps_its_inner_indent(tmp_path: Path) -> None:
    doc = '"""Say what is meant here.\n\n            indented\n        """'
    source = f"class A:\n    def f(self, a):\n        {doc}\n        return a\n"
    assert headers(tmp_path, source) == ['def f(self, a):\n    """Say what is meant here.\n\n        indented\n    """\n']


@pytest.mark.parametrize(
    "source",
    [
        "def f(a):\n    return a\n",
        'def f(a):\n    """Short."""\n    return a\n',
        f"def f(a):\n    {DOC}\n",
        f"def f():\n    {DOC}\n    return 1\n",
        'def f(a):\n    """A docstring that goes on.' + "\n" * 60 + '"""\n    return a\n',
        f"def f(a)\n    {DOC}\n    return a\n",
        f"\0def f(a):\n    {DOC}\n    return a\n",
        "",
    ],
    ids=["no docstring", "short docstring", "no body", "no argument", "too long", "syntax error", "null byte", "empty"],
)
def test_what_asks_for_nothing_is_left_out(tmp_path: Path, source: str) -> None:
    assert headers(tmp_path, source) == []


def test_files_come_in_the_order_of_their_names_and_tests_are_left_out(tmp_path: Path) -> None:
    source = f"def f(a):\n    {DOC}\n    return a\n"
    for name in ("b.py", "a.py", "sub/c.py", "test/d.py", "sub/tests/e.py", "site-packages/f.py", "g.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    (tmp_path / "latin.py").write_bytes(source.encode() + b"# \xe9\n")
    assert [name for name, _header in function_headers(tmp_path)] == ["a.py:1 f", "b.py:1 f", f"{Path('sub/c.py')}:1 f"]


def test_no_source_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w')\ndef f(a):\n    {DOC}\n    return a\n"
    assert len(headers(tmp_path, source)) == 1
    assert not mark.exists()


def test_the_standard_library_gives_named_once_whole_headers() -> None:
    found = list(itertools.islice(function_headers(), 60))
    assert len({name for name, _header in found}) == len(found) == 60
    for _name, header in found:
        ast.parse(header)


@pytest.mark.parametrize("mark", ["\x0c\n", "x = '\x85'\n", "x = '\u2028'\n", "# \x1c\n"])
def test_characters_that_only_look_like_line_ends_do_not_shift_headers(tmp_path: Path, mark: str) -> None:
    assert headers(tmp_path, f"{mark}def f(a):\n    {DOC}\n    return a\n") == [f"def f(a):\n    {DOC}\n"]


def test_a_method_whose_docstring_touches_the_margin_is_dedented(tmp_path: Path) -> None:
    source = 'class A:\n    def f(self, a):\n        """A documented function.\n\nat the margin\n        """\n        return a\n'
    (header,) = headers(tmp_path, source)
    assert header.startswith("def f(self, a):\n")


def test_a_function_on_one_line_gives_away_no_body(tmp_path: Path) -> None:
    found = headers(tmp_path, f"def f(a): {DOC}; return a\n")
    assert not any("return" in header for header in found)


@pytest.mark.parametrize(
    "source", ["x = " + "-" * 200_000 + "1\n", "x = " + "+".join(["1"] * 20_000) + "\n"], ids=["memory", "depth"]
)
def test_a_file_that_python_cannot_parse_is_left_out(tmp_path: Path, source: str) -> None:
    assert headers(tmp_path, source) == []
