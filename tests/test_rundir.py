"""Laws of a run folder: it belongs to one configuration, resumes by default and starts over only when told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from entmtp_calib.errors import ArtefactError, EntmtpError, UsageError
from entmtp_calib.rundir import STAGES, RunDir

CONFIG = {"model": "tiny", "seed": 0, "max_nodes": 64, "data": None, "temperature": 0.0}
INPUTS = {"target": {"identity": "sha256:t"}, "splits": {"search": {"prompts": 2}}}


def start(path: Path, fresh: bool = False, config: dict[str, Any] | None = None, inputs: dict[str, Any] | None = None) -> RunDir:
    return RunDir.start(path, CONFIG | (config or {}), INPUTS | (inputs or {}), {"provenance": {"n": 1}}, fresh)


def fill(run: RunDir) -> None:
    """A file for every result of every stage."""
    for names in STAGES.values():
        for name in names:
            path = run.file(name) if "." in name else run.file(name) / "00000.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}\n")


def there(run: RunDir) -> set[str]:
    return {name for names in STAGES.values() for name in names if run.file(name).exists()}


@pytest.mark.parametrize("made", [False, True])
def test_a_run_starts_in_a_new_or_empty_folder_and_tells_its_configuration(tmp_path: Path, made: bool) -> None:
    path = tmp_path / "a" / "run"
    if made:
        path.mkdir(parents=True)
    run = start(path)
    assert [item.name for item in path.iterdir()] == ["run.json"]
    assert (run.about["config"], run.about["inputs"]) == (CONFIG, INPUTS)
    assert RunDir.open(path).about == run.about == json.loads((path / "run.json").read_text())


def test_the_same_configuration_reopens_the_run_and_keeps_its_results(tmp_path: Path) -> None:
    fill(start(tmp_path / "run"))
    before = (tmp_path / "run" / "run.json").read_bytes()
    again = RunDir.start(tmp_path / "run", dict(reversed(CONFIG.items())), INPUTS, {"provenance": {"n": 2}})
    assert there(again) == {name for names in STAGES.values() for name in names}
    assert again.about["provenance"] == {"n": 1}
    assert (tmp_path / "run" / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "old"),
    [({"seed": 1}, "0"), ({"n": 3}, "None"), ({"max_nodes": 32}, "64"), ({"model": "big"}, "tiny"), ({"data": "x.json"}, "None")],
)  # fmt: skip
def test_another_option_is_refused_by_its_name_and_both_values(tmp_path: Path, change: dict[str, Any], old: str) -> None:
    fill(start(tmp_path / "run"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    ((name, new),) = change.items()
    with pytest.raises(ArtefactError, match=rf"\b{name} = {old}, not {new}") as error:
        start(tmp_path / "run", config=change)
    assert "--fresh" in error.value.hint
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_another_input_is_refused_by_its_name(tmp_path: Path) -> None:
    start(tmp_path / "run")
    with pytest.raises(ArtefactError, match="target"):
        start(tmp_path / "run", inputs={"target": {"identity": "sha256:" + "x" * 200}})
    with pytest.raises(ArtefactError, match="another run"):
        RunDir.start(tmp_path / "run", {}, INPUTS, {})


def test_fresh_throws_away_all_results_and_takes_the_new_configuration(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    fill(run)
    run.file("notes.txt").write_text("mine")
    again = start(tmp_path / "run", fresh=True, config={"seed": 1})
    assert there(again) == set()
    assert RunDir.open(tmp_path / "run").about["config"]["seed"] == 1
    assert run.file("notes.txt").read_text() == "mine"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_that_holds_something_else_is_never_touched(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "frontier.json").write_text("{}")
    with pytest.raises(UsageError, match="holds no run"):
        start(tmp_path, fresh)
    assert [item.name for item in tmp_path.iterdir()] == ["frontier.json"]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_is_no_folder(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        start(tmp_path / "run", fresh)
    with pytest.raises(ArtefactError):
        RunDir.open(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_half_written_run_is_refused_and_fresh_replaces_it(tmp_path: Path) -> None:
    fill(start(tmp_path / "run"))
    path = tmp_path / "run" / "run.json"
    whole = path.read_bytes()
    for end in (0, 1, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:end])
        for use in (lambda: RunDir.open(tmp_path / "run"), lambda: start(tmp_path / "run")):
            with pytest.raises(ArtefactError, match="run"):
                use()
        assert path.read_bytes() == whole[:end]
    assert there(start(tmp_path / "run", fresh=True)) == set()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "about",
    [None, [], 3, {}, {"format": "entmtp-bank", "version": 1, "config": {}}, {"format": "entmtp-run", "version": 1},
     {"format": "entmtp-run", "version": 1, "config": []}, {"format": "entmtp-run", "version": 2, "config": {}},
     {"format": "entmtp-run", "config": {}}],
)  # fmt: skip
def test_a_run_of_another_kind_or_version_is_refused(tmp_path: Path, about: object) -> None:
    (tmp_path / "run.json").write_text(json.dumps(about))
    with pytest.raises(ArtefactError):
        RunDir.open(tmp_path)
    with pytest.raises(ArtefactError):
        start(tmp_path)


def test_no_run_is_refused_with_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="there is no run") as error:
        RunDir.open(tmp_path / "none")
    assert "entmtp search" in error.value.hint


@pytest.mark.parametrize("stage", STAGES)
def test_clearing_a_stage_clears_it_and_all_after_it(tmp_path: Path, stage: str) -> None:
    run = start(tmp_path / "run")
    fill(run)
    run.clear(stage)
    kept = list(STAGES)[: list(STAGES).index(stage)]
    assert there(run) == {name for earlier in kept for name in STAGES[earlier]}
    assert run.file("run.json").exists()
    run.clear(stage)


def test_a_stage_resumes_with_its_options_and_refuses_others(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    journal, rows = run.stage_journal("time", {"rounds": 3})
    assert rows == []
    journal.append({"arm": "ar"})
    again, rows = RunDir.open(tmp_path / "run").stage_journal("time", {"rounds": 3})
    assert rows == [{"arm": "ar"}]
    assert run.journal_options("timings.jsonl") == {"rounds": 3}
    with pytest.raises(ArtefactError, match=r"other options \(\{'rounds': 3\}\)") as error:
        run.stage_journal("time", {"rounds": 4})
    assert "--fresh" in error.value.hint
    assert again.rows()[1:] == rows


def test_a_fresh_stage_clears_itself_and_what_came_after(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    fill(run)
    _journal, rows = run.stage_journal("recalibrate", {"trees": 8}, fresh=True)
    assert rows == []
    assert there(run) == {*STAGES["search"], "recalibration.jsonl"}
    assert run.journal_options("recalibration.jsonl") == {"trees": 8}


def test_a_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    one, other = start(tmp_path / "one"), start(tmp_path / "other", config={"seed": 1})
    journal, _rows = one.stage_journal("time", {"rounds": 3})
    other.file("timings.jsonl").write_bytes(journal.path.read_bytes())
    with pytest.raises(ArtefactError, match="timings"):
        other.stage_journal("time", {"rounds": 3})


def test_a_torn_first_line_is_begun_again(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    whole = run.stage_journal("time", {"rounds": 3})[0].path.read_bytes()
    for end in range(0, len(whole), 9):
        run.file("timings.jsonl").write_bytes(whole[:end])
        _journal, rows = run.stage_journal("time", {"rounds": 3})
        assert rows == []
        assert run.file("timings.jsonl").read_bytes() == whole


@pytest.mark.parametrize("text", ["", "{}\n", '{"options": 3}\n', "[]\n"])
def test_a_journal_that_tells_no_options_is_refused(tmp_path: Path, text: str) -> None:
    run = start(tmp_path / "run")
    run.file("timings.jsonl").write_text(text)
    with pytest.raises(ArtefactError, match="timings"):
        run.journal_options("timings.jsonl")


def damaged(path: Path, change: dict[str, Any]) -> RunDir:
    about = start(path).about | change
    (path / "run.json").write_text(json.dumps({key: value for key, value in about.items() if value is not ...}))
    return RunDir(path, about)


@pytest.mark.parametrize(
    "change", [{"inputs": None, "fingerprint": "x"}, {"inputs": [], "fingerprint": ...}, {"fingerprint": ...}]
)
def test_a_run_file_without_its_inputs_or_fingerprint_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    damaged(tmp_path / "run", change)
    with pytest.raises(ArtefactError):
        RunDir.open(tmp_path / "run").stage_journal("time", {})
    with pytest.raises(ArtefactError):
        start(tmp_path / "run")


def test_a_start_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / ".run.json.4711.tmp").write_text('{"config"')
    assert start(tmp_path).about["config"] == CONFIG


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(EntmtpError):
        start(tmp_path / "file" / "run")


@pytest.mark.parametrize("part", ["config", "inputs"])
@pytest.mark.parametrize("wrong", [{}, {"more": 1}, {"seed": "0"}])
def test_options_changed_by_hand_are_seen_and_fresh_begins_anew(tmp_path: Path, part: str, wrong: dict) -> None:
    run = RunDir.start(tmp_path, {"seed": 0}, {"target": "a"}, {})
    about = json.loads(run.file("run.json").read_text())
    run.file("run.json").write_text(json.dumps(about | {part: wrong}))
    with pytest.raises(ArtefactError, match="was changed") as refusal:
        RunDir.open(tmp_path)
    assert "--fresh" in refusal.value.hint
    with pytest.raises(ArtefactError, match="was changed"):
        RunDir.start(tmp_path, {"seed": 0}, {"target": "a"}, {})
    assert RunDir.start(tmp_path, {"seed": 0}, {"target": "a"}, {}, fresh=True).about == RunDir.open(tmp_path).about


def test_what_is_no_folder_is_no_place_for_a_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/null"), Path("/dev/null/run")):
        with pytest.raises(UsageError, match="is a file"):
            RunDir.start(place, {}, {}, {})
