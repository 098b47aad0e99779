"""Laws of the configuration: flags over environment over file over defaults; nothing misspelt or mistyped passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from conftest import cli
from entmtp_calib.commands import COMMANDS as COMMANDS_OF_THE_TOOL
from entmtp_calib.commands import app
from entmtp_calib.commands._failures import guarded
from entmtp_calib.commands._settings import Defaults

from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.settings import Kind, environment_settings, find_settings, read_settings, unknown_variables

BANK = Path(__file__).parent / "golden" / "bank-v1.json"
SHIPPED = BANK.parent.parent.parent / "docs" / "results" / "gsm8k-bank.json"
COMMANDS = {
    "time": {"rounds": Kind(int), "quiet": Kind(bool), "prompts": Kind(int, low=1)},
    "fit-thresholds": {"signal": Kind(str), "quiet": Kind(bool), "top_p": Kind(float, low=0, high=1)},
    "train-heads": {"prompts": Kind(str, many=True), "quiet": Kind(bool)},
}


def settings(folder: Path, text: str) -> dict:
    path = folder / "entmtp.toml"
    path.write_bytes(text.encode())
    return read_settings(path, COMMANDS)


def test_keys_of_the_top_are_for_all_that_take_them_and_tables_for_one(tmp_path: Path) -> None:
    found = settings(tmp_path, 'quiet = true\nprompts = 3\n[time]\nprompts = 5\n[train-heads]\nprompts = ["a", "b"]\n')
    assert found["time"] == {"quiet": True, "prompts": 5}
    assert found["fit-thresholds"] == {"quiet": True}
    assert found["train-heads"] == {"quiet": True, "prompts": ["a", "b"]}


def test_dashes_windows_line_ends_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    found = settings(tmp_path, "\ufefftop-p = 1\r\n[fit_thresholds]\r\nsignal = 'base_top1'\r\n")
    assert found["fit-thresholds"] == {"top_p": 1, "signal": "base_top1"}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("quite = true", "quite is no option", "quiet"),
        ("[time]\nround = 1", r"\[time\] round is no option", "rounds"),
        ("[time]\nsignal = 'x'", "signal is no option", ""),
        ("[tme]\nrounds = 1", r"\[tme\] is no command", "time"),
        ("[time]\nrounds = '1'", 'rounds is "1", not a whole number', "file"),
        ("[time]\nprompts = 0", "prompts is 0, not a whole number of at least 1", "file"),
        ("top_p = 1.5", "top_p is 1.5, not a number of at least 0 and at most 1", "file"),
        ("top_p = nan", "not a number", "file"),
        ("[time]\nrounds = true", "not a whole number", "file"),
        ("[time]\nrounds = 1.0", "not a whole number", "file"),
        ("quiet = 1", "not true or false", "file"),
        ("top_p = 'much'", "not a number", "file"),
        ("[train-heads]\nprompts = [1]", "not a text", "file"),
        ("top-p = 0.9\ntop_p = 0.8", "top-p and top_p are one name", "one of them"),
        ("[fit-thresholds]\ntop_p = 0.9\ntop-p = 0.8", "top-p and top_p are one name", "one of them"),
        ("[fit-thresholds]\nseed = 1\n[fit_thresholds]\nseed = 2", "are one name", "one of them"),
    ],
)
def test_what_is_unknown_or_of_another_type_is_named(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        settings(tmp_path, text)
    assert hint in error.value.hint


@pytest.mark.parametrize("text", ["[time", "rounds", "a = 1\na = 2", "x = " + "[" * 5000])
def test_what_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtefactError):
        settings(tmp_path, text)
    (tmp_path / "entmtp.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ArtefactError):
        read_settings(tmp_path / "entmtp.toml", COMMANDS)


def test_the_file_is_the_one_that_is_named_or_that_of_the_folder(tmp_path: Path) -> None:
    assert find_settings({}, tmp_path) is None
    (tmp_path / "entmtp.toml").touch()
    assert find_settings({}, tmp_path) == tmp_path / "entmtp.toml"
    (tmp_path / "other.toml").touch()
    assert find_settings({"ENTMTP_CONFIG": str(tmp_path / "other.toml")}, tmp_path) == tmp_path / "other.toml"
    with pytest.raises(ArtefactError, match="ENTMTP_CONFIG"):
        find_settings({"ENTMTP_CONFIG": str(tmp_path / "absent.toml")}, tmp_path)


def test_variables_are_read_by_kind_and_the_commands_own_come_first() -> None:
    there = {"ENTMTP_ROUNDS": "4", "ENTMTP_TIME_ROUNDS": "7", "ENTMTP_QUIET": "yes", "ENTMTP_PROMPTS": ""}
    assert environment_settings(there, "time", COMMANDS["time"]) == {"rounds": 7, "quiet": True}
    assert environment_settings({"ENTMTP_TRAIN_HEADS_PROMPTS": "a b"}, "train-heads", COMMANDS["train-heads"]) == {
        "prompts": ["a b"]
    }
    for name, text in (("ENTMTP_ROUNDS", "many"), ("ENTMTP_TIME_QUIET", "perhaps"), ("ENTMTP_PROMPTS", "0")):
        with pytest.raises(UsageError, match=name):
            environment_settings({name: text}, "time", COMMANDS["time"])


def test_variables_that_nothing_reads_are_found() -> None:
    there = {"ENTMTP_ROUND": "1", "ENTMTP_FOO": "1", "ENTMTP_CONFIG": "x", "ENTMTP_TIME_ROUNDS": "1", "PATH": "y"}
    found = unknown_variables(there, COMMANDS)
    assert found.keys() == {"ENTMTP_ROUND", "ENTMTP_FOO"}
    assert found["ENTMTP_ROUND"] == "Did you mean ENTMTP_ROUNDS?"
    assert "--help" in found["ENTMTP_FOO"]  # and not the names of all there are


def test_flags_come_before_variables_before_the_file_before_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`export` of a bank whose policies mean different trees tells which value of --tree arrived."""
    monkeypatch.chdir(tmp_path)

    def exported(*more: object) -> str:
        result = cli("export", BANK, "--to", "vllm", "--json", *more)
        assert result.exit_code == 0, result.output
        return str(json.loads(result.stdout)["tree"])

    assert exported("--policy", "static") == "n3-d2"
    Path("entmtp.toml").write_text('[export]\ntree = "default-63"\n')
    assert exported() == "default-63"
    monkeypatch.setenv("ENTMTP_TREE", "1")
    assert exported() == "n3-d2"
    monkeypatch.setenv("ENTMTP_EXPORT_TREE", "2")
    assert exported() == "default-63"
    assert exported("--tree", "n3-d2") == "n3-d2"


def parsed(command: str, *words: str) -> dict:
    """The options with which a command would run."""
    functions = {name: guarded(function) for name, function, _panel in COMMANDS_OF_THE_TOOL}
    root = typer.main.get_command(app)
    found = root.commands[command].make_context(command, list(words), default_map=Defaults(command, functions))  # type: ignore
    return found.params


PLACES = {"file": 0, "variable": 1, "flag": 2}
KINDS = {  # command, option, what stands in the file, in the variable and behind the flag, and what each of them means
    "number": ("search", "max_nodes", ("5", "6", ["--max-nodes", "7"]), (5, 6, 7)),
    "fraction": ("search", "temperature", ("1", "0.5", ["--temperature", "0.25"]), (1.0, 0.5, 0.25)),
    "text": ("show", "tree", ("'a'", "b", ["--tree", "c"]), ("a", "b", "c")),
    "path": ("run", "out", ("'a'", "b/c", ["--out", "d"]), (Path("a"), Path("b/c"), Path("d"))),
    "list": ("run", "stop", ("['a', 'b']", "c", ["--stop", "d", "--stop", "e"]), (["a", "b"], ["c"], ["d", "e"])),
    "list of one": ("run", "stop", ("'a'", "c", ["--stop", "d"]), (["a"], ["c"], ["d"])),
    "switch": ("show", "quiet", ("true", "no", ["--quiet"]), (True, False, True)),
    "switch with two names": ("run", "coupled", ("false", "on", ["--uncoupled"]), (False, True, False)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "given", [("file",), ("variable",), ("file", "variable"), ("file", "flag"), ("file", "variable", "flag")]
)
def test_every_kind_of_option_comes_from_every_place(
    kind: str, given: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, option, (text, variable, flags), wanted = KINDS[kind]
    words = ["x"] if command == "show" else ["--out", "x"] if option != "out" else []
    if "file" in given:
        Path("entmtp.toml").write_text(f"[{command}]\n{option} = {text}\n")
    if "variable" in given:
        monkeypatch.setenv(f"ENTMTP_{option.upper()}", variable)
    found = parsed(command, *words, *(flags if "flag" in given else []))[option]
    if isinstance(wanted[0], Path | list):  # older releases of typer convert these only where the command is called
        assert isinstance(found, (str, Path) if isinstance(wanted[0], Path) else (list, tuple))
        found = type(wanted[0])(found)
    assert found == wanted[PLACES[given[-1]]]
    assert type(found) is type(wanted[0])


def test_the_commands_own_variable_comes_first_for_required_options_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENTMTP_BANK", "a.json")
    assert str(parsed("decode", "hello")["bank"]) == "a.json"
    monkeypatch.setenv("ENTMTP_DECODE_BANK", "b.json")
    assert str(parsed("decode", "hello")["bank"]) == "b.json"
    assert str(parsed("decode", "hello", "--bank", "c.json")["bank"]) == "c.json"


def test_a_required_option_may_come_from_the_file_and_env_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("export", BANK, "--tree", 1).exit_code == 2
    Path("mine.toml").write_text('[export]\nto = "medusa"\n')
    monkeypatch.setenv("ENTMTP_CONFIG", "mine.toml")
    assert cli("export", BANK, "--tree", 1).stdout == "[[0], [1], [0, 0]]\n"
    document = json.loads(cli("env", "--json").stdout)
    assert document["settings"] == {"file": "mine.toml", "ENTMTP_CONFIG": "mine.toml"}


def test_a_broken_file_is_one_sentence_and_a_strange_variable_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("entmtp.toml").write_text("quite = true\n")
    result = cli("show", BANK)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Did you mean quiet?" in result.stderr
    assert cli("--help").exit_code == 0
    assert "Examples:" in cli("show", "--help").stdout
    assert cli("export", BANK).exit_code == 2
    assert "quite" in cli("export", BANK).stderr  # not the option that could stand in the file
    Path("entmtp.toml").unlink()
    monkeypatch.setenv("ENTMTP_QUITE", "1")
    result = cli("show", BANK)
    assert result.exit_code == 0
    assert "Did you mean ENTMTP_QUIET?" in " ".join(result.stderr.split())


def test_help_tells_the_defaults_of_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("entmtp.toml").write_text("[export]\npolicy = 'ladder'\n")
    assert cli("export", "--help").stdout.count("[default: auto]") == 1


PAPER_IN = {
    "flag": (("--preset", "paper"), "", {}),
    "variable": ((), "", {"ENTMTP_PRESET": "paper"}),
    "file": ((), "preset = 'paper'\n", {}),
}
NODES_IN = {
    "flag": (("--max-nodes", "7"), "", {}),
    "variable": ((), "", {"ENTMTP_MAX_NODES": "7"}),
    "file": ((), "max-nodes = 7\n", {}),
    "default": ((), "", {}),
}


@pytest.mark.parametrize("preset", PAPER_IN)
@pytest.mark.parametrize("option", NODES_IN)
def test_the_higher_place_wins_over_a_preset_too(
    preset: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags, text, variables = (a + b if not isinstance(a, dict) else a | b
                              for a, b in zip(PAPER_IN[preset], NODES_IN[option], strict=True))  # fmt: skip
    Path("entmtp.toml").write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen = []
    monkeypatch.setattr("entmtp_calib.commands.pipeline.start_run", lambda _screen, _out, config, *_more: seen.append(config))
    result = cli("search", "--out", "run", *flags)
    if option == preset:
        assert "set by --preset paper" in result.stderr
        return
    places = ("flag", "variable", "file", "default")
    assert seen[0].acceptance == "typical"
    assert seen[0].max_nodes == (7 if places.index(option) < places.index(preset) else 89)


def completed(words: str, shell: str = "bash") -> list[str]:
    """What the shell offers at the end of a line."""
    code = "from entmtp_calib.commands import main; main()"
    place = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1), "_TYPER_COMPLETE_ARGS": words}
    there = os.environ | place | {"_ENTMTP_COMPLETE": f"complete_{shell}"}
    return subprocess.run(
        [sys.executable, "-c", code], env=there, capture_output=True, text=True, check=False
    ).stdout.split()  # fmt: skip


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("entmtp expo", {"export", "export-heads"}),
        ("entmtp export --to med", {"medusa"}),
        ("entmtp run --heads smollm2-h", {"smollm2-hydra", "smollm2-hydra++"}),
        ("entmtp decode --policy l", {"ladder"}),
        ("entmtp explain --policy d", {"dynamic"}),
        ("entmtp bench --graphs o", {"on", "off"}),
        (f"entmtp show {BANK} --tree n", {"n3-d2"}),
        (f"entmtp show {SHIPPED} --tree d", {"dynamic"}),
        (f"entmtp export --to vllm {BANK} --tree d", {"default-63"}),
        ("entmtp export no-such-file --tree ", set()),
    ],
)
def test_the_shell_completes_commands_values_and_trees(words: str, wanted: set[str]) -> None:
    assert set(completed(words)) == wanted


def test_completed_values_are_those_that_are_taken() -> None:
    from entmtp_calib.commands import _completion as known

    from entmtp_calib import graph_mode
    from entmtp_calib.calibrate import bank_rules, conversations, splits
    from entmtp_calib.engine import heads
    from entmtp_calib.engine.loading import EMBEDDED, choose_placement
    from entmtp_calib.signals import check_asked
    from entmtp_calib.template import STYLES

    pairs = (
        (known.graph_modes, graph_mode.MODES), (known.turns, conversations.TURNS), (known.long_prompts, splits.LONG_PROMPTS),
        (known.styles, STYLES), (known.acceptances, splits.ACCEPTANCES), (known.schedules, splits.SCHEDULES),
        (known.bank_rules, bank_rules.RULES), (known.architectures, heads.ARCHITECTURES), (known.models, EMBEDDED),
    )  # fmt: skip
    for offered, taken in pairs:
        assert sorted(offered()) == sorted(taken)
    for signal in known.signals():
        check_asked(signal)
    for dtype in known.dtypes():
        choose_placement("cpu", dtype)
