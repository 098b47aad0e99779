"""Outputs that README and results show are in today's words: each line is a title, headings, a row, a field or a sentence.

Numbers are not looked at; `test_results` does that where the files are there. Headings are those of the tables that commands
make, sentences those that stand in the code.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from entmtp_calib.commands._output import Table
from entmtp_calib.commands._side_by_side import _figures
from entmtp_calib.commands._tables import generalisation_table, policy_table, recalibration_table
from entmtp_calib.commands._timing import profile_table, timing_table
from entmtp_calib.commands.bench import bench_table

from entmtp_calib import load_bank
from entmtp_calib.calibrate.step_profile import PARTS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "results.md"]
COMMANDS = ("entmtp", "bash", "python", "pip", "git", "cd", "make", "source", "torchrun")
OTHERS = ("prompts ─ search", "Here's a Python function", "n8-d4: ")
"""The picture of the pipeline, an answer that `test_real` writes again, and a tree that `test_results` draws."""
WILD = "\0"
SPREAD = SimpleNamespace(median=1.0, low=1.0, high=1.0)
OLDER = ("over_static", "over_static_interval")  # columns that a bench measured earlier does not have
FIELDS = {"prompt", "same_text", "tokens", "tokens_per_step", "tokens_per_s", "plain_tokens_per_s"}


def tables() -> dict[str, Table]:
    """Every table that may be pasted, by the first two words of its title."""
    bank = load_bank(ROOT / "docs" / "results" / "gsm8k-bank.json")
    profile = SimpleNamespace(parts=dict.fromkeys(PARTS, SPREAD), step=SPREAD, bare=SPREAD, steps=1)
    made = (recalibration_table([]), generalisation_table([]), timing_table([], {}), policy_table(bank),
            bench_table("Tokens per second", []), profile_table("t", profile))  # type: ignore[arg-type]  # fmt: skip
    return {" ".join(table.title.split()[:2]): table for table in made}


def template(node: ast.AST) -> str | None:
    """The text of an expression, with `WILD` for what is filled in; None if it is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or WILD for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = template(node.left), template(node.right)
        return None if sides == (None, None) else "".join(side or WILD for side in sides)
    return None


def sentences() -> list[re.Pattern[str]]:
    """Patterns of all texts of at least three words in the commands."""
    trees = [ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / "commands").glob("*.py"))]
    texts = {template(node) for tree in trees for node in ast.walk(tree)} - {None}
    said = [text.strip("\n") for text in texts if len(re.findall(r"[^\W\d_]{2,}", text or "")) >= 3]
    return [re.compile(".+".join(map(re.escape, text.split(WILD)))) for text in said]


def blocks(page: Path) -> Iterator[list[str]]:
    """Indented blocks that are neither commands, examples nor ours alone."""
    text = re.sub(r"```.*?```", "", re.sub(r"^    ", "\t", page.read_text("utf-8"), flags=re.MULTILINE), flags=re.DOTALL)
    for found in re.findall(r"(?:^(?:\t.*)?\n)+", text, re.MULTILINE):
        lines = [line[1:].rstrip() for line in found.strip("\n").splitlines()]
        if lines and lines[0].startswith(COMMANDS):  # what stands behind them is their output
            lines = lines[lines.index("") + 1 :] if "" in lines else []
        if lines and not lines[0].startswith((*OTHERS, ">>>")):
            yield lines


def unexplained(lines: list[str]) -> list[str]:
    """What stands in a pasted block and comes from no command of today, and headings that it lacks."""
    known, said, strange = tables(), sentences(), list[str]()
    fields = {name.replace("_", " ") for name in _figures(SimpleNamespace(**dict.fromkeys(FIELDS, 1)))} | {"prompt"}
    headings, free = Counter[str](), False  # headings still to come; whether lines may say anything: rows and answers
    for number, line in enumerate(lines):
        table = known.get(" ".join(line.split()[:2]))
        if table:
            older = "× static" not in " ".join(lines[number : number + 3])
            columns = [column.heading for column in table.columns if not (older and column.key in OLDER)]
            headings, free = headings + Counter(" ".join(columns).split()), True
        elif headings:
            words = Counter(line.split())
            strange += (words - headings).elements()
            headings = headings - words if words & headings else Counter()
        elif any(re.match(rf"  {name}  ", line) for name in fields) or any(pattern.fullmatch(line) for pattern in said):
            free = line.startswith("Held-out prompt")
        elif line.strip() and not free:
            strange.append(line)
    return [*strange, *headings.elements()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pasted_lines_are_in_the_words_of_todays_commands(page: Path) -> None:
    pasted = list(blocks(page))
    assert pasted
    assert [line for block in pasted for line in unexplained(block)] == []


def test_another_heading_another_sentence_and_another_field_are_noticed() -> None:
    page = next(block for block in blocks(PAGES[1]) if any(line.startswith("Timing") for line in block))
    assert "ms/stride" in unexplained([line.replace("ms/step", "ms/stride") for line in page])
    assert unexplained([line.replace("drafting  tokens/s", "drafting") for line in page])
    assert len(unexplained([line.replace("A/A check", "B/B check") for line in page])) == 1
    assert unexplained(["  same text           True"]) == []
    assert len(unexplained(["  same words          True"])) == 1
