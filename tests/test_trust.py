"""Laws of the mark on runs that are too small to trust: in every table and in the bank, from what figures really rest on."""

from __future__ import annotations

from pathlib import Path

import pytest
from entmtp_calib.commands._output import Table
from entmtp_calib.commands._tables import marked

from entmtp_calib.errors import ArtefactError
from entmtp_calib.rundir import RunDir
from entmtp_calib.storage import Journal
from entmtp_calib.trust import SMALL, prompts_used, too_few


def run(folder: Path, **counts: int) -> RunDir:
    splits = {name: {"prompts": count, "hash": ""} for name, count in counts.items()}
    return RunDir.start(folder / "run", {}, {"splits": splits}, {})


@pytest.mark.parametrize(("count", "small"), [(0, True), (1, True), (SMALL - 1, True), (SMALL, False), (1000, False)])
def test_a_part_below_the_bound_is_named_with_its_count(count: int, small: bool) -> None:
    counts = {"search": 40, "fit": 24, "test": count}
    assert too_few(counts) == ({"test": count} if small else {})
    title = marked(Table("name", "Title", (), ()), counts).title
    assert title == (f"Title (too small to trust: test {count} prompts)" if small else "Title")


def test_a_stage_rests_on_the_prompts_that_it_takes_and_not_on_more_than_there_are(tmp_path: Path) -> None:
    made = run(tmp_path, search=40, fit=24, test=20)
    assert prompts_used(made) == {"search": 40, "fit": 24, "test": 20}
    assert prompts_used(made, {"recalibrate": 4, "time": 90}) == {
        "search": 40,
        "fit": 24,
        "test": 20,
        "recalibrate": 4,
        "time": 24,
    }
    made.stage_journal("recalibrate", {"trees": 3, "prompts": 7})
    assert prompts_used(made)["recalibrate"] == prompts_used(made, {"recalibrate": 4})["recalibrate"] == 7


def test_a_stage_that_was_killed_before_its_first_line_is_as_if_not_begun(tmp_path: Path) -> None:
    made = run(tmp_path, search=40, fit=24, test=20)
    made.file("timings.jsonl").write_bytes(b'{"stage": "ti')
    assert prompts_used(made, {"time": 4})["time"] == 4


@pytest.mark.parametrize("line", [{}, {"options": None}, {"options": {}}, {"options": {"prompts": "4"}}])
def test_a_journal_that_does_not_say_how_many_is_refused(tmp_path: Path, line: dict) -> None:
    made = run(tmp_path, search=40, fit=24, test=20)
    Journal(made.file("timings.jsonl")).append(line)
    with pytest.raises(ArtefactError, match="stage time"):
        prompts_used(made)
