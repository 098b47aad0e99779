"""Laws of the log of a run folder: what was asked, with which settings, what was said, why it failed; nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from entmtp_calib.commands._failures import attempt
from entmtp_calib.commands._logging import log_to, logged
from entmtp_calib.commands._output import Output

from entmtp_calib.errors import EntmtpError


def fail(folder: Path, error: BaseException) -> str:
    """What the log holds after a command that begins to log and fails."""

    def command() -> None:
        Output(quiet=True).say("before the log is known")
        log_to(folder)
        raise error

    with logged(False), pytest.raises(typer.Exit):
        attempt(command)
    return (folder / "log.txt").read_text()


def test_a_log_says_what_was_asked_with_which_settings_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["entmtp", "time", "somewhere"])
    monkeypatch.setenv("ENTMTP_ROUNDS", "3")
    monkeypatch.setenv("A_SECRET", "never written")
    log = fail(tmp_path, EntmtpError("the disk is made of cheese.", "Eat it."))
    for text in ("command: entmtp time somewhere", "'ENTMTP_ROUNDS': '3'", "versions: {'python'", "before the log is known",
                 "ERROR entmtp_calib.commands: the disk is made of cheese."):  # fmt: skip
        assert log.count(text) == 1
    assert "never written" not in log
    assert "Traceback" not in log


def test_an_error_that_nobody_expected_is_logged_with_its_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = fail(tmp_path, ValueError("odd"))
    assert "internal error: ValueError: odd" in log
    assert "Traceback (most recent call last)" in log
    assert "Traceback" not in capsys.readouterr().err


def test_a_second_command_appends_and_an_interrupt_is_told(tmp_path: Path) -> None:
    first = fail(tmp_path, EntmtpError("one."))
    second = fail(tmp_path, KeyboardInterrupt())
    assert second.startswith(first)
    assert "interrupted" in second[len(first) :]
