"""What is said of an unsteady machine, and that nothing is said of a steady one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from entmtp_calib.commands._timing import resolution, sentences
from timed_worlds import arms_of, timing_rows

from entmtp_calib.calibrate.environment import trouble
from entmtp_calib.calibrate.timing import AR_AGAIN, Timed, summarise

COSTS = {"n1": 0.5, "n2": 0.4}


def measured(noise: float = 0.001) -> list[Timed]:
    return summarise(arms_of(COSTS), timing_rows(COSTS, 4, 2, noise, 0))


def steady(timed: list[Timed]) -> list[Timed]:
    return [replace(arm, cv=0.01) for arm in timed]


def row(load: float, own: float, when: str = "end") -> dict:
    return {"arm": "", "prompt": "", "round": -1, "environment": {"when": when, "load": load, "cores": 2, "own_cores": own}}


def said(timed: list[Timed], *rows: dict) -> str:
    return " ".join(sentences(trouble(timed, rows)))


def test_of_a_steady_machine_nothing_is_said() -> None:
    assert said(steady(measured()), row(2.0, 1.9), row(0.4, 0.9)) == ""


def test_other_processes_are_named_with_the_load_and_what_to_do() -> None:
    text = said(steady(measured()), row(1.2, 1.0), row(2.3, 1.1))
    assert "other processes use about 1.2 cores: load 2.3 on 2 cores" in text
    assert "stop them" in text
    assert "--rounds" in text


def test_only_the_load_at_the_end_counts_which_the_timing_itself_made_part_of() -> None:
    assert said(steady(measured()), row(9.0, 0.0, "start")) == ""


def test_a_machine_that_tells_no_load_is_not_accused() -> None:
    assert said(steady(measured()), row(-1.0, 1.0)) == ""


def test_equal_arms_that_differ_are_told_of_with_the_size_below_which_nothing_counts() -> None:
    timed = [
        replace(arm, speedup=0.977, speedup_low=0.963, speedup_high=0.988) if arm.label == AR_AGAIN else arm
        for arm in steady(measured())
    ]
    text = said(timed)
    assert "0.977, 0.963–0.988" in text
    assert "2.3%" in text


def test_rounds_that_differ_are_told_of_with_the_arm() -> None:
    timed = steady(measured())
    timed[1] = replace(timed[1], cv=0.23)
    assert "rounds of n1 differ by 23%" in said(timed)


def test_what_a_timing_can_tell_apart_is_a_few_times_its_noise() -> None:
    assert 0.0005 < resolution(measured(0.001), True) < resolution(measured(0.02), True) < 0.2


@pytest.mark.parametrize("label", ["n1", "n2"])
def test_figures_do_not_depend_on_what_the_machine_told(label: str) -> None:
    rows = timing_rows(COSTS, 4, 2, 0.01, 0)
    found = {arm.label: arm for arm in summarise(arms_of(COSTS), [row(2.0, 1.0, "start"), *rows, row(3.0, 1.0)])}
    assert found[label] == {arm.label: arm for arm in summarise(arms_of(COSTS), rows)}[label]
