"""Terminals that are narrow, without colour or without Unicode, and log lines: output bends, it never breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import cli

BANK = Path(__file__).parent / "golden" / "bank-v1.json"
CLEAN = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}


def entmtp(*words: object, **more: str) -> subprocess.CompletedProcess[bytes]:
    """The command line in a process of its own, with bytes as they leave it."""
    command = [sys.executable, "-m", "entmtp_calib", *map(str, words)]
    return subprocess.run(command, env=CLEAN | {"OMP_NUM_THREADS": "1"} | more, capture_output=True, check=False)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii", "utf-8"])
@pytest.mark.parametrize("words", [("show", BANK, "--tree", "n3-d2"), ("--help",), ("export", "--help"), ("show", "nothing-✗")])
def test_an_encoding_without_our_signs_spells_them(encoding: str, words: tuple) -> None:
    found = entmtp(*words, PYTHONIOENCODING=encoding, LC_ALL="C")
    assert found.returncode in (0, 3), found.stderr
    assert b"Traceback" not in found.stderr
    assert b"internal error" not in found.stderr
    found.stdout.decode(encoding)
    found.stderr.decode(encoding)


def test_a_tree_is_drawn_with_what_the_terminal_has() -> None:
    drawn = entmtp("show", BANK, "--tree", "n3-d2", PYTHONIOENCODING="latin-1").stdout.decode("latin-1")
    assert "|- 0" in drawn
    assert "`- 1" in drawn
    assert "× ar" in drawn  # latin-1 has this one
    assert "└─ 1" in entmtp("show", BANK, "--tree", "n3-d2", PYTHONIOENCODING="utf-8").stdout.decode()


def test_json_is_the_same_bytes_for_every_encoding() -> None:
    documents = {entmtp("show", BANK, "--json", PYTHONIOENCODING=name).stdout for name in ("ascii", "cp1252", "utf-8")}
    assert len(documents) == 1
    assert json.loads(documents.pop())["format"] == "entmtp-show"


@pytest.mark.parametrize("columns", ["30", "40", "80"])
def test_a_narrow_terminal_gets_rows_one_below_the_other(columns: str) -> None:
    text = entmtp("show", BANK, "--tree", "n3-d2", COLUMNS=columns, PYTHONIOENCODING="utf-8").stdout.decode()
    lines = text.splitlines()
    assert max(map(len, lines)) <= int(columns)
    if columns == "40":
        assert "mean accept: 0.750" in lines
        assert "tree: n3-d2" in lines
    if columns == "80":
        assert any(line.split() == ["1", "n3-d2", "3", "2", "0.750", "62.5", "1.56"] for line in lines)


def test_no_color_means_none() -> None:
    colour = entmtp("show", BANK, FORCE_COLOR="1")
    plain = entmtp("show", BANK, FORCE_COLOR="1", NO_COLOR="1")
    assert b"\x1b[2m" in colour.stdout or b"\x1b[1m" in colour.stdout
    assert b"\x1b[3" not in plain.stdout
    assert b"\x1b" not in entmtp("show", BANK).stdout


def test_help_has_whole_paragraphs_and_names_in_brackets() -> None:
    """Rich takes brackets for marks, and typer keeps the line breaks of the source."""
    assert "under [command] or for all commands" in " ".join(entmtp("--help").stdout.decode().split())
    wide = entmtp("verify", "--help", COLUMNS="300").stdout.decode().splitlines()
    assert any("so that each of its paths is accepted once" in line and "a straight forward." in line for line in wide)


def test_env_says_what_it_can_where_the_engine_is_broken(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libsomething.so: cannot open shared object file')")
    found = entmtp("env", "--json", PYTHONPATH=str(tmp_path))
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert "libsomething.so" in document["placement"]["problem"]
    assert document["machine"]["cpu"]
    assert document["versions"]["entmtp"]
    found = entmtp("explain", BANK, "hello", PYTHONPATH=str(tmp_path))
    assert found.returncode == 1
    assert b"cannot be imported: libsomething.so" in found.stderr
    assert b"internal error" not in found.stderr


def test_env_says_that_there_is_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("ENTMTP_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert json.loads(cli("env", "--json").stdout)["places"]["cache"].startswith("none: this user has no home folder")


def test_env_spells_variables_as_they_are() -> None:
    assert "ENTMTP_DEVICE  cpu" in entmtp("env", ENTMTP_DEVICE="cpu").stdout.decode()


def test_verbose_shows_what_the_library_does_and_quiet_shows_results_only(tmp_path: Path) -> None:
    words = ("export", BANK, "--to", "medusa", "--tree", 1, "--out", tmp_path / "tree.txt")
    loud, usual, quiet = (entmtp(*words, *more).stderr.decode() for more in (("-v",), (), ("--quiet",)))
    assert "INFO entmtp_calib.storage: wrote" in loud
    assert "INFO" not in usual
    assert loud.count("hydra_choices") == usual.count("hydra_choices")  # what is said is not logged to stderr once more
    assert "medusa_choices" in usual
    assert quiet == ""
