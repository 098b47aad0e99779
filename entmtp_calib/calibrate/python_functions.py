"""Headers of functions in the Python standard library, as programming requests.

Knows Python sources only: reads them as text, imports and runs none.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "ensurepip", "turtledemo"}
_MAX_LINES = 40


def function_headers(folder: Path | None = None) -> Iterator[tuple[str, str]]:
    """Signature and docstring of every documented function, in the order of the file names.

    Args:
        folder: where to look; the running Python's standard library if None.

    Yields:
        `(file:line name, header)`, the header dedented and ending in a newline.
    """
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED & set(relative.parts):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (OSError, ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        lines = source.split("\n")  # str.splitlines would also break at form feeds and the like, which Python's parser does not
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and _worth_asking(node):
                header = lines[node.lineno - 1 : node.body[0].end_lineno]
                yield f"{relative}:{node.lineno} {node.name}", "".join(_dedent(line, node.col_offset) + "\n" for line in header)


def _worth_asking(node: ast.FunctionDef) -> bool:
    """Documented, with a body to write on lines of its own, and short enough for a prompt."""
    doc = ast.get_docstring(node)
    first = node.body[0]
    return bool(
        doc
        and len(doc) > 20
        and len(node.body) > 1
        and node.args.args
        and (first.end_lineno or 0) - node.lineno < _MAX_LINES
        and node.body[1].lineno > (first.end_lineno or 0)
    )


def _dedent(line: str, margin: int) -> str:
    """A line without at most `margin` leading blanks; a docstring may begin further left than its function."""
    return line[min(margin, len(line) - len(line.lstrip())) :] if line.strip() else ""
