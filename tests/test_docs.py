"""What the documents show is what happens: examples are run, commands are parsed, those that need no model are run on a made run.

Commands that need a model run in `test_examples`, the Python of the README in `test_real`, what pages tell to change in
`test_adding`. Pasted outputs are looked at in `test_pasted` and `test_results`.
"""

from __future__ import annotations

import doctest
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer.main
from conftest import cli
from entmtp_calib.commands import app
from made_runs import whole

from entmtp_calib.rundir import STAGES

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
OTHERS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "data/README.md", "outputs/README.md")
PAGES = [*(ROOT / name for name in OTHERS), *DOCS]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
TODAYS = [page for page in PAGES if page.name != "log.md"]  # the log says what was run at its dates
EXAMPLES = [page for page in PAGES if ">>> " in page.read_text("utf-8")]
WITHOUT_MODEL = ("show", "report", "compare", "export", "env")
OTHERS_OPTIONS = {"--no-deps", "--nproc-per-node", "--tiny", "--python", "--spec"}  # of pip, torchrun, a benchmark, .ci and pipx
COMMAND = re.compile(r"^(?: {4}|\$ )(?:\$ )?(entmtp [^|>…]+?)(?:\s{2,}#.*)?$", re.MULTILINE)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def shown_commands() -> list[tuple[str, str]]:
    joined = [(page, re.sub(r" *\\\n\s*", " ", page.read_text("utf-8"))) for page in PAGES]
    return [(page.name, found[1]) for page, text in joined for found in COMMAND.finditer(text)]


def scripted_commands() -> list[tuple[str, str]]:
    """Commands of the scripts behind the results, without what their arrays hold."""
    texts = {path.name: path.read_text().replace("\\\n", " ") for path in (ROOT / "benchmarks").glob("*.sh")}
    lines = [(name, line) for name, text in texts.items() for line in re.findall(r"^ *(entmtp [^|\n]+)", text, re.MULTILINE)]
    return [(name, re.sub(r'"\$\{\w+\[@\]\}"', "", line)) for name, line in lines]


@pytest.mark.parametrize("page", EXAMPLES, ids=named)
def test_examples_of_the_documents_run(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8", optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(("page", "line"), shown_commands() + scripted_commands())
def test_commands_of_the_documents_parse(page: str, line: str) -> None:
    group = typer.main.get_command(app)
    name, *words = shlex.split(line)[1:]
    command = group.commands[name]  # type: ignore[attr-defined]
    command.make_context(name, [word for word in words if word != "&"])


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_documents_name_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for name in re.findall(r"`((?:docs|tests|benchmarks|commands|entmtp_calib|\.ci|\.github)/[\w./+-]+\.\w+)`", text):
        assert (ROOT / name).exists(), name
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "line", sorted({line for _page, line in shown_commands() if line.split()[1] in WITHOUT_MODEL and "=" not in line})
)
def test_commands_of_the_documents_that_need_no_model_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results")
    for run in re.findall(r"outputs/\w+", line):
        whole(tmp_path / run)
    result = cli(*shlex.split(line)[1:])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_options_and_targets_that_documents_name_exist(page: Path) -> None:
    group = typer.main.get_command(app)
    commands = [group, *group.commands.values()]  # type: ignore[attr-defined]
    known = {name for command in commands for option in command.params for name in (*option.opts, *option.secondary_opts)}
    text = page.read_text("utf-8")
    codes = (code for code in re.findall(r"`[^`\n]+`", text) if "benchmarks/" not in code)
    named = {option for code in codes for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)}
    assert named <= known | {"--help"} | OTHERS_OPTIONS
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^    make (\w+)", text, re.MULTILINE)) <= set(targets)


@pytest.mark.parametrize(
    "folder", ["entmtp_calib", "entmtp_calib/engine", "entmtp_calib/calibrate", "entmtp_calib/report", "commands"]
)
def test_the_page_on_structure_lists_every_module_and_no_other(folder: str) -> None:
    section = re.split(r"^## ", (ROOT / "docs" / "structure.md").read_text("utf-8"), flags=re.MULTILINE)
    rows = next(part for part in section if part.split("\n")[0].endswith(f"`{folder}/`")).splitlines()
    listed = [name for row in rows if row.startswith("|") for name in re.findall(r"`(\w+\.py)`", row.split("|")[1])]
    there = {path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py", "__main__.py"}
    if folder == "commands":  # the others are named for their commands
        there = {name for name in there if name.startswith("_")}
    assert sorted(listed) == sorted(there)


@pytest.mark.parametrize("page", [*TODAYS, *BENCHMARKS], ids=named)
def test_benchmarks_take_the_options_that_are_shown(page: Path) -> None:
    for name, rest in re.findall(r"python (benchmarks/\w+\.py)([^`\n]*)", page.read_text("utf-8")):
        script = (ROOT / name).read_text("utf-8")
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", rest):
            assert f'"{option}"' in script, (name, option)


def test_the_readme_names_every_page() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert [page.name for page in DOCS if f"`docs/{page.name}`" not in readme] == []


def test_the_page_on_formats_names_every_file_of_a_run_and_every_field_of_a_bank() -> None:
    page = (ROOT / "docs" / "formats.md").read_text("utf-8")
    for name in {name for names in STAGES.values() for name in names}:
        assert f"`{name}" in page, name
    for path in (ROOT / "docs" / "results").glob("*-bank.json"):
        bank = json.loads(path.read_text("utf-8"))
        fields = {*bank, *bank["trees"][0], *(name for policy in bank["policies"].values() for name in policy)}
        assert [name for name in fields - {"format", "version"} if not re.search(rf"\b{name}\b", page)] == []
