"""`decode`: its trace, its figures, what interrupts it, and the same from Python."""

from __future__ import annotations

import errno
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from banks import bank_for, tiny_pair
from conftest import cli, plain
from entmtp_calib.commands import app
from typer.testing import CliRunner

from entmtp_calib import BankDecoder, Guard, Static, UsageError, load_bank, open_bank
from entmtp_calib.calibrate.step_log import COLUMNS, StepLog
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.stopping import StopRule

PROMPT = "Q7: what?"


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny_pair()


@pytest.fixture(scope="module")
def bank_file(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Path:
    path = tmp_path_factory.mktemp("banks") / "bank.json"
    bank_for(pair).save(path)
    return path


@pytest.fixture(autouse=True)
def _in_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair instead of what would be loaded by name; a model that is nowhere stays there."""

    def load(screen: object, bank: object, model: str | None, *_: object) -> Pair:
        assert model is None, "a model was loaded"
        return pair

    monkeypatch.setattr(sys.modules["entmtp_calib.commands.decode"], "load_of_bank", load)
    monkeypatch.setattr("entmtp_calib.calibrate.bank_decoder.load_pair", lambda *_: pair)


def decode(bank: Path, *words: object, prompt: str = PROMPT) -> dict:
    result = cli("decode", "--bank", bank, "--max-new-tokens", 40, "--json", *words, prompt)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_trace_has_one_row_per_step_that_adds_up(bank_file: Path, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"steps.{ending}"
    document = decode(bank_file, "--trace", path)
    frame = pd.read_csv(path) if ending == "csv" else pd.read_parquet(path)
    figures = document["statistics"]
    assert list(frame.columns) == list(COLUMNS)
    assert frame["step"].tolist() == list(range(figures["steps"]))
    assert frame["tokens"].sum() == figures["tokens"] == len(document["ids"])
    assert (frame["tokens"] == frame["accepted"] + 1).all()
    assert frame["position"].tolist() == [
        figures["prompt_tokens"] + done for done in frame["tokens"].cumsum().shift(fill_value=0)
    ]
    assert set(frame["tree"]) <= {"ar", "chain", "wide"}
    ladder = load_bank(bank_file).policies["ladder"]
    wanted = [["ar", "chain", "wide"][ladder.next(0, signal)] for signal in frame["signal"]]
    assert frame["tree"].tolist() == wanted
    assert len(set(wanted)) > 1
    switches = sum(a != b for a, b in pairwise(wanted))
    assert figures["switches_per_100_steps"] == pytest.approx(100 * switches / len(wanted))
    assert (frame["seconds"] > 0).all()
    assert frame["seconds"].sum() < figures["seconds"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_speedup_is_over_plain_decoding_of_a_calibration_made_here(bank_file: Path, tmp_path: Path) -> None:
    here = decode(bank_file)["statistics"]
    assert here["speedup"] == pytest.approx(here["tokens_per_s"] / 100.0)
    bank = load_bank(bank_file)
    for other in ({"cpu": "an abacus"}, {"cores": 4096}):
        replace(bank, measured=bank.measured | other).save(tmp_path / "elsewhere.json")
        assert decode(tmp_path / "elsewhere.json")["statistics"]["speedup"] is None
    replace(bank, trees=bank.trees[1:], policies={"static": Static(1)}, recommended="static").save(tmp_path / "no-ar.json")
    assert decode(tmp_path / "no-ar.json")["statistics"]["speedup"] is None


def test_what_is_slower_than_plain_decoding_is_warned_of_and_nothing_else(bank_file: Path, tmp_path: Path) -> None:
    bank = load_bank(bank_file)
    for plain_rate, slower in ((1e9, True), (1e-9, False)):
        trees = tuple(replace(tree, figures={**tree.figures, "tokens_per_s": plain_rate}) for tree in bank.trees)
        replace(bank, trees=trees).save(tmp_path / "bank.json")
        for policy in ("ladder", "ar"):
            result = cli("decode", "--bank", tmp_path / "bank.json", "--max-new-tokens", 8, "--policy", policy, PROMPT)
            assert ("slower than plain decoding" in result.stderr) == (slower and policy != "ar")


@pytest.mark.parametrize("flag", ["--temperature", "--top-p", "--repetition-penalty", "--min-p", "--cache", "--beams"])
def test_what_a_bank_settles_or_nothing_offers_is_no_option(bank_file: Path, flag: str) -> None:
    """An option that is taken and ignored would be worse than none."""
    result = cli("decode", "--bank", bank_file, flag, "0.7", PROMPT)
    assert result.exit_code == 2
    assert flag in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--trace", "steps.txt"), "neither .csv nor .parquet"),
        (("--trace", "nowhere/steps.csv"), "cannot be written"),
        (("--chat", "--json"), "--chat was given with --json"),
        (("--guard", "--policy", "ar"), "no tree to hold back"),
        (("--stop", ""), "--stop is empty"),
        (("--max-new-tokens", 0), "--max-new-tokens is 0"),
    ],
)
def test_senseless_options_are_refused_before_a_model_is_loaded(
    bank_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli("decode", "--bank", bank_file, "--model", "nowhere", *words, PROMPT)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_parquet_without_its_package_is_refused_and_csv_is_not(
    bank_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import entmtp_calib.calibrate.step_log as step_log

    find = step_log.importlib.util.find_spec
    monkeypatch.setattr(step_log.importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name))
    result = cli("decode", "--bank", bank_file, "--trace", tmp_path / "t.parquet", PROMPT)
    assert result.exit_code == 2
    assert "pyarrow" in result.stderr
    step_log.check_trace_file(tmp_path / "t.csv")


def test_ctrl_c_keeps_text_and_trace(bank_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = decode(bank_file)
    sound, count = StepLog.add, 0

    def add(log: StepLog, step, seconds: float) -> None:
        nonlocal count
        sound(log, step, seconds)
        count += 1
        if count == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(StepLog, "add", add)
    words = ("decode", "--bank", bank_file, "--max-new-tokens", 40, "--trace", tmp_path / "t.csv")
    result = cli(*words, "--json", PROMPT)
    assert result.exit_code == 130
    document = json.loads(result.stdout)
    assert document["status"] == document["statistics"]["ended_by"] == "interrupted"
    frame = pd.read_csv(tmp_path / "t.csv")
    assert len(frame) == document["statistics"]["steps"] == 5
    assert document["ids"] == whole["ids"][: len(document["ids"])] != []
    count = 0
    assert cli(*words, PROMPT).stdout == document["text"] + "\n"


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_reader_that_goes_away_and_a_full_disk_leave_the_trace(
    bank_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise error

    def write(_screen: object) -> Callable[[str], None]:
        return lambda text: print(text, file=Full(), flush=True)

    monkeypatch.setattr(sys.modules["entmtp_calib.commands.decode"], "write_to", write)
    monkeypatch.setattr("entmtp_calib.commands._output.os.dup2", lambda *_: None)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    result = cli("decode", "--bank", bank_file, "--trace", tmp_path / "t.csv", PROMPT)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert len(pd.read_csv(tmp_path / "t.csv")) >= 1


@pytest.mark.parametrize("raw", [b"\xff\xfe", b""])
def test_what_is_no_text_is_refused(bank_file: Path, tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "prompt").write_bytes(raw)
    words = ["decode", "--bank", str(bank_file)]
    for more in (["--file", str(tmp_path / "prompt")], []):
        result = CliRunner().invoke(app, [*words, *more], input=raw)
        assert result.exit_code == 2, result.output
    assert CliRunner().invoke(app, [*words, "lone \ud800 half"]).exit_code == 2


@pytest.mark.parametrize("prompt", ["\x00\x01", " ", "\n\n", "<end>", "雪👩‍👩‍👧\u2028", "[bold]red[/bold]", "{{ x }}"])
def test_odd_prompts_are_prompts(bank_file: Path, prompt: str) -> None:
    document = decode(bank_file, prompt=prompt)
    assert document["ids"] == decode(bank_file, "--policy", "ar", prompt=prompt)["ids"]


def test_five_lines_of_python_do_the_same(bank_file: Path, pair: Pair) -> None:
    model = open_bank(bank_file)
    text = "".join(model.stream(PROMPT, max_new_tokens=40))
    document = decode(bank_file)
    assert text == document["text"]
    wanted = plain(pair.target, model.encode(PROMPT), StopRule(pair.target.end_ids, 40))
    assert document["ids"] == wanted
    assert text == pair.tokenizer.decode(wanted, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_a_program_gets_errors_for_what_cannot_be(bank_file: Path, pair: Pair) -> None:
    with pytest.raises(UsageError, match="no policy"):
        open_bank(bank_file, policy="magic")
    model = BankDecoder(load_bank(bank_file), pair, guard=Guard())
    for prompt in ("", "\ud800", []):
        with pytest.raises(UsageError):
            next(model.stream(prompt))
    with pytest.raises(UsageError, match="stop text"):
        model.steps([1, 2], stop=[""])
    assert math.isfinite(model.plain_tokens_per_s)


def test_importing_the_package_loads_no_torch() -> None:
    code = (
        "import entmtp_calib, sys; assert not {'torch', 'transformers', 'pandas'} & set(sys.modules); "
        "entmtp_calib.open_bank; assert 'torch' in sys.modules and 'pandas' not in sys.modules; "
        "assert not hasattr(entmtp_calib, 'nothing')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
