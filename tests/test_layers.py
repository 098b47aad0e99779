"""Imports only point down, files and terminal stay where they belong, and the packages listed are those on disk."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "transformers"}
TERMINAL = {"typer", "rich", "click"}


def modules(folder: str, pattern: str = "*.py") -> Iterator[tuple[Path, set[str]]]:
    """Files of a folder with the names that they import, inside functions too, but not for type checking only."""
    for path in sorted((ROOT / folder).glob(pattern)):
        yield path, set(imports(ast.parse(path.read_text())))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imports(node)


def tops(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_core_knows_no_torch_and_nothing_above_it() -> None:
    for path, names in modules("entmtp_calib"):
        if path.name == "__main__.py":
            continue
        assert not tops(names) & (HEAVY | TERMINAL | {"pandas", "matplotlib"}), path
        assert not any(
            name.startswith(("entmtp_calib.engine", "entmtp_calib.calibrate", "entmtp_calib.commands")) for name in names
        ), path


def test_engine_knows_no_experiments_and_no_terminal() -> None:
    for path, names in modules("entmtp_calib/engine"):
        assert not tops(names) & (TERMINAL | {"pandas", "matplotlib", "datasets"}), path
        assert not any(
            name.startswith(("entmtp_calib.calibrate", "entmtp_calib.commands", "entmtp_calib.bank")) for name in names
        ), path


def test_only_loaders_of_the_engine_touch_files() -> None:
    for path, names in modules("entmtp_calib/engine"):
        if path.name not in ("loading.py", "gguf_files.py", "head_files.py"):
            assert not tops(names) & {"pathlib", "os", "io", "tempfile"}, path


def test_only_the_loader_and_the_attention_import_transformers() -> None:
    for path, names in modules("entmtp_calib", "**/*.py"):
        if path.name not in ("loading.py", "gguf_files.py", "attention.py"):
            assert "transformers" not in tops(names), path


def test_experiments_know_no_terminal() -> None:
    for path, names in modules("entmtp_calib/calibrate"):
        assert not tops(names) & TERMINAL, path
        assert not any(name.startswith("entmtp_calib.commands") for name in names), path


def test_reports_read_experiments_and_only_drawing_knows_matplotlib() -> None:
    for path, names in modules("entmtp_calib/report"):
        assert not tops(names) & TERMINAL, path
        assert not any(name.startswith("entmtp_calib.commands") for name in names), path
    for path, names in modules("entmtp_calib", "**/*.py"):
        assert "matplotlib" not in tops(names) or path.name.startswith("drawing"), path
        below = path.parent.name not in ("report", "commands")
        assert not (below and any(name.startswith("entmtp_calib.report") for name in names)), path


def test_the_library_prints_nothing() -> None:
    for path in (ROOT / "entmtp_calib").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not any(getattr(call.func, "id", "") in ("print", "exit", "eval", "exec") for call in calls), path


def test_importing_the_library_loads_nothing_that_only_some_uses_need() -> None:
    code = "import sys, entmtp_calib.calibrate.pipeline, entmtp_calib.calibrate.bank_decoder; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"datasets", "matplotlib", "pandas", "typer"} & set(loaded)


def test_listed_packages_are_the_folders_on_disk() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    inside = {"entmtp_calib", *(f"entmtp_calib.{path.parent.name}" for path in (ROOT / "entmtp_calib").glob("*/__init__.py"))}
    assert set(setup["packages"]) == inside | {"entmtp_calib.commands", "entmtp_calib.data"}


def test_the_tail_of_the_code_stays_short() -> None:
    """Nine functions in ten under 30 lines, no module over 300."""
    lengths = []
    for path in [*(ROOT / "entmtp_calib").rglob("*.py"), *(ROOT / "commands").glob("*.py")]:
        text = path.read_text()
        assert text.count("\n") <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                doc = ast.get_docstring(node, clean=False)
                lengths.append((node.end_lineno or 0) - node.lineno + 1 - (doc.count("\n") + 1 if doc else 0))
    assert sorted(lengths)[int(0.9 * len(lengths))] <= 30
