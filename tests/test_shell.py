"""What a shell does to a command: closed streams, a reader that goes away, a full disk, and two commands in one folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import cli

BANK = Path(__file__).parent / "golden" / "bank-v1.json"
ENTMTP = f"{sys.executable} -m entmtp_calib"
BEGIN = """
import sys
from dataclasses import asdict
from pathlib import Path
from entmtp_calib.calibrate.splits import RunConfig
from entmtp_calib.rundir import RunDir
RunDir.start(Path(sys.argv[1]), asdict(RunConfig("no-model", "no-heads", "humaneval")), {"splits": {}}, {})
print("begun", flush=True)
input()
"""


def shell(line: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_an_empty_one(closed: str) -> None:
    found = shell(f"{ENTMTP} show {BANK} {closed}")
    assert found.returncode == 0, found.stderr
    assert ("n3-d2" in found.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert found.stderr == ""


def test_a_prompt_from_a_closed_stream_is_empty() -> None:
    found = shell(f"{ENTMTP} decode --bank {BANK} <&-")
    assert found.returncode == 2
    assert "the prompt is empty" in found.stderr


def test_a_reader_that_goes_away_is_no_fault() -> None:
    found = shell(f"{ENTMTP} show {BANK} --json | head -c 1; exit ${{PIPESTATUS[0]}}")
    assert found.returncode in (0, 1)
    assert found.stderr == ""


@pytest.mark.parametrize("stderr", ["/dev/full", ">(true)"])
def test_what_nobody_can_be_told_costs_no_result(stderr: str) -> None:
    words = f"{ENTMTP} export {BANK} --to medusa --tree 1"
    found = shell(f"{words} 2> {stderr}")
    assert found.returncode == 0
    assert found.stdout == shell(words).stdout
    assert shell(f"{ENTMTP} show nothing 2> {stderr}").returncode == 3


@pytest.mark.parametrize("words", [f"show {BANK}", f"show {BANK} --json", "--help", "--version", "export --help"])
def test_a_full_disk_is_a_sentence(words: str) -> None:
    found = shell(f"{ENTMTP} {words} > /dev/full")
    assert found.returncode == 1
    assert "No space left" in found.stderr
    assert "hint" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_file_that_may_not_grow_is_a_sentence_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text("[[0], [1]]")
    found = shell(f"ulimit -f 0; {ENTMTP} import --out {tmp_path / 'trees.json'} {tmp_path / 'nodes.json'}")
    assert found.returncode == 1, found.stderr
    assert "File too large" in found.stderr
    assert [item.name for item in tmp_path.iterdir()] == ["nodes.json"]


@pytest.mark.parametrize("command", ["recalibrate", "time", "fit-thresholds"])
def test_two_commands_in_one_run_do_not_write_side_by_side(tmp_path: Path, command: str) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", BEGIN, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        before = sorted(run.rglob("*"))
        busy = cli(command, run)
        shown = cli("show", run)
        process.kill()
    assert busy.exit_code == 1
    assert f"another process is at work in {run}" in busy.stderr.replace("\n", "")
    assert sorted(run.rglob("*")) == before
    assert shown.exit_code == 0
    free = cli(command, run)  # the lock went with the process
    assert "at work" not in free.stderr
    assert free.exit_code == 3


@pytest.mark.parametrize("times", [1, 3])
def test_interrupts_end_in_one_sentence_however_many(tmp_path: Path, times: int) -> None:
    """The second must not break the end of Python, which would show its insides."""
    code = (
        "import os, signal, sys, threading, time\n"
        "from entmtp_calib.commands import main\n"
        "import entmtp_calib.bank as bank\n"
        "def slow(_path):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(30)\n"
        "bank.load_bank = slow\n"
        f"late = [lambda: os.kill(os.getpid(), signal.SIGINT)] * {times - 1}\n"
        "import atexit\n"
        "for again in late: atexit.register(again)\n"
        f"sys.argv = ['entmtp', 'show', {str(BANK)!r}]\n"
        "main()\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, preexec_fn=heeding)
    assert found.returncode == 130, found.stderr
    assert "interrupted" in found.stderr
    assert "Traceback" not in found.stderr


def heeding() -> None:
    """A shell's background jobs ignore interrupts, and so would what they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
