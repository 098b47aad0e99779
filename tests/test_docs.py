"""What the documents show is what happens: their examples are run, their commands are parsed, their links lead somewhere."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
import typer.main
from entmtp_calib.commands import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [page for page in PAGES if ">>> " in page.read_text("utf-8")]
COMMAND = re.compile(r"^(?: {4}|\$ )(?:\$ )?(entmtp [^|>…]+?)(?:\s{2,}#.*)?$", re.MULTILINE)


def shown_commands() -> list[tuple[str, str]]:
    joined = [(page, re.sub(r" *\\\n\s*", " ", page.read_text("utf-8"))) for page in PAGES]
    return [(page.name, found[1]) for page, text in joined for found in COMMAND.finditer(text)]


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.name)
def test_examples_of_the_documents_run(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8", optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(("page", "line"), shown_commands())
def test_commands_of_the_documents_parse(page: str, line: str) -> None:
    group = typer.main.get_command(app)
    name, *words = shlex.split(line)[1:]
    command = group.commands[name]  # type: ignore[attr-defined]
    command.make_context(name, [word for word in words if word != "&"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_documents_name_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for name in re.findall(r"`((?:docs|tests|benchmarks|commands|entmtp_calib)/[\w./+-]+\.\w+)`", text):
        assert (ROOT / name).exists(), name
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
