"""Which arms go on: only those that may still matter, decided from the rows alone, within the budget."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from timed_worlds import arms_of, copies, timing_rows

from entmtp_calib.calibrate.racing import LEAST_ROUNDS, Race, seconds_of, spent
from entmtp_calib.calibrate.rounds import Rounds, Run, Runner, run_race
from entmtp_calib.calibrate.timing import AR, AR_AGAIN, Row
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.errors import UsageError
from entmtp_calib.storage import Journal

STOP = StopRule(frozenset(), 10)
PROMPTS = [(f"p{number}", [number, 1, 2]) for number in range(4)]
COSTS = {"small": 0.5, "middle": 0.4, "equal": 0.4, "slow": 0.55, "hopeless": 2.0}


class Killed(Exception):
    pass


class World:
    """Runners whose times come from a seed and from how often they were called on a prompt; no clock.

    Args:
        fuel: runs before the process is killed.
    """

    def __init__(self, costs: dict[str, float], noise: float, fuel: int = 10**9) -> None:
        self.fuel = fuel
        self.calls: list[str] = []
        self.runners = {label: self._runner(label, cost, noise) for label, cost in {AR: 1.0, **costs, AR_AGAIN: 1.0}.items()}

    def _runner(self, label: str, cost: float, noise: float) -> Runner:
        def run(ids: list[int], stop: StopRule) -> Run:
            if len(self.calls) >= self.fuel:
                raise Killed
            self.calls.append(label)
            luck = random.Random(f"{label} {ids} {len(self.calls)}").gauss(0, noise)
            seconds = cost * 10 * (1 + ids[0] / 10) * (1 + luck)
            return Run(list(range(10)), 10, 1.0, 1.0 + seconds)

        return run


class Quiet:
    """A watch that says nothing of the machine."""

    def start(self) -> Row:
        return {"arm": "", "prompt": "", "round": -1, "environment": {"when": "start"}}

    def end(self) -> Row:
        return {"arm": "", "prompt": "", "round": -1, "environment": {"when": "end"}}


def race_of(costs: dict[str, float], rounds: int | None, budget: float | None = None) -> Race:
    return Race(tuple(arms_of(costs)), rounds, budget)


def run(world: World, race: Race, rows: list[Row], journal: Journal | None = None) -> list[Row]:
    run_race(race, Rounds(world.runners, PROMPTS, STOP, 0, rows, journal), Quiet())
    return rows


def rounds_by_arm(rows: list[Row]) -> dict[str, int]:
    return {label: len({row["round"] for row in rows if row["arm"] == label and row["round"] >= 0}) for label in (AR, *COSTS)}


def test_arms_that_a_smaller_tree_beats_stop_and_the_rest_goes_on() -> None:
    rows = run(World(COSTS, 0.002), race_of(COSTS, 6), [])
    found = rounds_by_arm(rows)
    assert found == {AR: 6, "small": 6, "middle": 6, "equal": found["equal"], "slow": LEAST_ROUNDS, "hopeless": LEAST_ROUNDS}
    assert found["equal"] < 6
    assert len([row for row in rows if row["arm"] == AR_AGAIN and row["round"] >= 0]) == 6 * len(PROMPTS)


def test_every_arm_runs_twice_before_it_can_stop() -> None:
    rows = run(World(COSTS, 0.002), race_of(COSTS, LEAST_ROUNDS), [])
    assert set(rounds_by_arm(rows).values()) == {LEAST_ROUNDS}


def test_through_much_noise_no_arm_but_the_hopeless_stops() -> None:
    found = rounds_by_arm(run(World(COSTS, 0.2), race_of(COSTS, 4), []))
    assert found["middle"] == found["equal"] == 4


def test_a_tree_with_more_tokens_per_step_is_judged_by_them() -> None:
    """By its timed runs alone `slow` is out; over more prompts it gains more tokens per step than the trees before it."""
    worth = {AR: 1.0, **dict.fromkeys(COSTS, 1.0), "slow": 3.0}
    race = Race(tuple(arms_of(COSTS)), 4, None, worth)
    assert rounds_by_arm(run(World(COSTS, 0.002), race, []))["slow"] == 4


def test_when_only_plain_decoding_is_left_the_race_is_over() -> None:
    bad = {"hopeless": 2.0, "worse": 3.0}
    rows = run(World(bad, 0.002), race_of(bad, 100), [])
    assert max(row["round"] for row in rows) == LEAST_ROUNDS - 1


def test_without_trees_all_rounds_are_run() -> None:
    assert max(row["round"] for row in run(World({}, 0.01), race_of({}, 5), [])) == 4


def test_no_round_is_begun_that_the_budget_does_not_hold() -> None:
    whole = run(World(COSTS, 0.002), race_of(COSTS, 8), [])
    for budget in (500, 1200, 2500):
        race = race_of(COSTS, None, budget)
        rows = run(World(COSTS, 0.002), race, [])
        assert spent(rows) <= budget
        last = max(row["round"] for row in rows)
        again = next(number for number, _labels in reversed(list(race.schedule(rows))))
        assert again == last
        kept = race.survivors([arm.label for arm in race.arms], rows, last + 1)
        assert spent(rows) + race.next_round(kept, rows, last + 1) > budget
    assert spent(whole) > 500


def test_the_first_round_is_run_whatever_the_budget() -> None:
    rows = run(World(COSTS, 0.002), race_of(COSTS, None, 1.0), [])
    assert set(rounds_by_arm(rows).values()) == {1}
    assert spent(rows) > 1


def test_rounds_bound_a_race_with_a_budget_too() -> None:
    rows = run(World(COSTS, 0.002), race_of(COSTS, 3, 1e9), [])
    assert max(row["round"] for row in rows) == 2


@pytest.mark.parametrize(("rounds", "budget"), [(5, None), (None, 1500.0)])
def test_a_killed_race_goes_on_and_decides_from_the_journal_alone(
    tmp_path: Path, rounds: int | None, budget: float | None
) -> None:
    race = race_of(COSTS, rounds, budget)
    for fuel in (1, 9, 40, 77, 100):
        journal = Journal(tmp_path / f"{rounds}-{fuel}.jsonl")
        with pytest.raises(Killed):
            run(World(COSTS, 0.002, fuel), race, [], journal)
        rows = run(World(COSTS, 0.002), race, journal.rows(), journal)
        assert journal.rows() == rows
        keys = [(row["arm"], row["prompt"], row["round"]) for row in rows if row["round"] >= 0]
        assert len(set(keys)) == len(keys)
        for number, labels in race.schedule(rows):
            ran = {row["arm"] for row in rows if row["round"] == number}
            assert ran == set(labels)
            assert len([row for row in rows if row["round"] == number]) == len(labels) * len(PROMPTS)
        untouched = World(COSTS, 0.002)
        assert run(untouched, race, journal.rows(), journal) == rows
        assert not untouched.calls
        assert journal.rows() == rows


def test_order_is_random_within_a_round_and_fixed_by_the_seed() -> None:
    orders = [[row["arm"] for row in run(World(COSTS, 0.0), race_of(COSTS, 1), []) if row["round"] == 0] for _ in range(2)]
    assert orders[0] == orders[1]
    by_prompt = {tuple(orders[0][start : start + 7]) for start in range(0, 28, 7)}
    assert len(by_prompt) > 1
    assert all(sorted(order) == sorted(by_prompt.copy().pop()) for order in by_prompt)


def test_every_arm_is_warmed_up_once_a_session_and_warm_ups_are_marked() -> None:
    rows = run(World(COSTS, 0.0), race_of(COSTS, 3), [])
    warm = [row["arm"] for row in rows if row["round"] == -1 and "seconds" in row]
    assert sorted(warm) == sorted([AR, AR_AGAIN, *COSTS])


def test_the_machine_is_written_down_before_the_first_run_and_after_the_last() -> None:
    rows = run(World(COSTS, 0.0), race_of(COSTS, 1), [])
    assert (rows[0]["environment"]["when"], rows[-1]["environment"]["when"]) == ("start", "end")
    assert sum("environment" in row for row in rows) == 2


@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_of_twenty_copies_none_is_dropped_as_slower_before_it_is_known(noise: float) -> None:
    """A copy can be dropped as no faster than a smaller one; the smallest of them stays in nearly every run."""
    stayed = 0
    for seed in range(20):
        race = Race(tuple(arms_of(copies(20))), 3)
        rows = timing_rows(copies(20), 4, 3, noise, seed)
        stayed += "copy00" in race.survivors([arm.label for arm in race.arms], rows, 3)
    assert stayed == 20


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1h", 3600), ("1.5m", 90)])
def test_a_budget_is_a_length_of_time(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-5s", "0s", "10 minutes", "nanm", "infh", "1d"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no length of time"):
        seconds_of(text)
