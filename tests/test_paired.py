"""Intervals cover what they claim to, in simulated runs whose truth is known."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from timed_worlds import copies, timing_rows

from entmtp_calib.calibrate.paired import Noise, noise_of, seconds_per_step, seconds_per_token, speed_ratio, student
from entmtp_calib.calibrate.timing import AR, AR_AGAIN, aa_slack, runs_by_arm


@pytest.mark.parametrize(
    ("coverage", "degrees", "width"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 4, 2.776), (0.95, 10, 2.228), (0.95, 30, 2.042),
     (0.99, 3, 5.841), (0.99, 60, 2.660), (0.8, 5, 1.476), (0.95, 120, 1.980)],
)  # fmt: skip
def test_quantiles_of_student_are_those_of_the_tables(coverage: float, degrees: int, width: float) -> None:
    assert student(coverage, degrees) == pytest.approx(width, abs=6e-4)


def test_with_many_degrees_the_quantile_is_almost_the_normal_one() -> None:
    assert 1.960 < student(0.95, 10**6) < 1.975
    assert student(0.95, 201) == student(0.95, 199)


def coverage(noise: float, prompts: int, rounds: int, taste: float, alike: bool) -> float:
    """Share of simulated runs in which the interval of two equally fast arms holds 1."""
    hits = 0
    for seed in range(300):
        runs = runs_by_arm(timing_rows({}, prompts, rounds, noise, seed, taste))
        hits += not speed_ratio(runs[AR_AGAIN], runs[AR], alike).differs
    return hits / 300


@pytest.mark.parametrize("prompts", [2, 4, 12])
@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_a_comparison_of_equal_arms_holds_one_as_often_as_it_says(noise: float, prompts: int) -> None:
    """300 draws at 95 % lie between 0.92 and 0.98 but for one time in 70."""
    assert 0.92 <= coverage(noise, prompts, 2, 0.0, alike=False) <= 0.98
    assert 0.92 <= coverage(noise, prompts, 2, 0.0, alike=True) <= 0.98


def test_arms_that_do_better_on_some_prompts_are_compared_over_prompts() -> None:
    """Their ratio differs from prompt to prompt, so runs are no independent units of it, and more rounds do not help."""
    assert coverage(0.005, 4, 8, 0.05, alike=False) >= 0.92
    assert coverage(0.005, 4, 8, 0.05, alike=True) < 0.8


def test_the_ratio_is_that_of_pooled_rates_over_the_runs_that_both_have() -> None:
    runs = runs_by_arm(timing_rows({"fast": 0.5}, 5, 3, 0.0, 1))
    base = runs[AR]
    part = [row for row in runs["fast"] if row["round"] < 2]
    there = [row for row in base if row["round"] < 2]
    wanted = sum(row["seconds"] for row in there) / sum(row["seconds"] for row in part)
    found = speed_ratio(part, base)
    assert found.ratio == pytest.approx(wanted)
    assert found.low < found.ratio < found.high
    assert speed_ratio(base, base) == speed_ratio(list(reversed(base)), base)
    assert (speed_ratio(base, base).low, speed_ratio(base, base).high) == (1, 1)


def test_drift_that_arms_share_cancels() -> None:
    rows = timing_rows({"fast": 0.5}, 4, 2, 0.0, 3)
    runs = runs_by_arm([row | {"prefill_seconds": 0.0, "seconds": row["seconds"] - 1} for row in rows])
    found = speed_ratio(runs["fast"], runs[AR])
    assert (found.ratio, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_an_interval_is_at_least_as_wide_as_what_equal_arms_differ_by() -> None:
    runs = runs_by_arm(timing_rows({"fast": 0.5}, 4, 2, 0.0, 3))
    found = speed_ratio(runs["fast"], runs[AR], slack=0.1)
    assert math.log(found.high / found.ratio) == pytest.approx(0.1)
    assert math.log(found.low / found.ratio) == pytest.approx(-0.1)


def test_of_a_single_pair_only_the_pair_of_equal_arms_tells_the_error() -> None:
    runs = runs_by_arm(timing_rows({"fast": 0.5}, 1, 1, 0.01, 0))
    again = speed_ratio(runs[AR_AGAIN], runs[AR], alike=True)
    slack = aa_slack(runs)
    assert slack > 0
    assert not again.differs
    found = speed_ratio(runs["fast"], runs[AR], slack=slack)
    assert math.log(found.high / found.ratio) == pytest.approx(student(0.95, 1) * slack)


def calls(noise: float, seed: int, prompts: int = 4, rounds: int = 2) -> tuple[float, float]:
    """Shares of the pairs of twenty copies that are called different, by their own runs and by the pooled noise."""
    names = list(copies(20))
    runs = runs_by_arm(timing_rows(copies(20), prompts, rounds, noise, seed))
    slack = aa_slack(runs)
    spread = noise_of(runs, seconds_per_step, 1, slack)
    mean = {label: np.mean(list(costs.values())) for label, costs in spread.costs.items()}
    pairs = list(combinations(names, 2))
    own = [speed_ratio(runs[a], runs[b], slack=slack).differs for a, b in pairs]
    pooled = [abs(mean[a] - mean[b]) > math.log(spread.margin(a, b)) for a, b in pairs]
    return float(np.mean(own)), float(np.mean(pooled))


@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_twenty_copies_of_one_tree_are_not_different(noise: float) -> None:
    """Of 190 pairs in each of 30 runs about one in twenty may be called different by chance."""
    own, pooled = np.mean([calls(noise, seed) for seed in range(30)], axis=0)
    assert 0.005 < own < 0.06
    assert 0.005 < pooled < 0.06


def test_a_difference_of_five_percent_is_found_through_half_a_percent_of_noise() -> None:
    for seed in range(30):
        runs = runs_by_arm(timing_rows({"slow": 0.5, "fast": 0.5 / 1.05, "other": 0.6}, 4, 2, 0.005, seed))
        slack = aa_slack(runs)
        found = speed_ratio(runs["fast"], runs["slow"], slack=slack)
        assert found.low > 1, seed
        assert 1.03 < found.ratio < 1.07
        assert noise_of(runs, seconds_per_step, 20, slack).margin("fast", "slow") < 1.05


def test_noise_is_pooled_over_the_arms_that_ran_where_two_arms_ran() -> None:
    rows = timing_rows(copies(6), 4, 3, 0.01, 0)
    late = [row for row in rows if row["arm"] != "copy00" or row["round"] < 1]
    noise = noise_of(runs_by_arm(late), seconds_per_token)
    first = noise_of(runs_by_arm([row for row in rows if row["round"] < 1]), seconds_per_token)
    assert noise.margin("copy00", "copy01") == first.margin("copy02", "copy03")
    assert noise.margin("copy01", "copy02") < noise.margin("copy00", "copy01")


def test_more_comparisons_and_more_slack_widen_the_margin() -> None:
    runs = runs_by_arm(timing_rows(copies(4), 4, 2, 0.01, 0))
    one, many, wide = (noise_of(runs, seconds_per_token, *more).margin("copy00", "copy01") for more in ((1,), (20,), (1, 0.5)))
    assert 1 < one < many < wide
    assert wide == pytest.approx(math.exp(0.5))


def test_where_nothing_was_measured_there_is_no_noise() -> None:
    assert Noise({}).margin("a", "b") == 1
    assert Noise({"a": {("p", 0): 1.0}, "b": {("p", 1): 1.0}}).margin("a", "b") == 1
    assert Noise({"a": {("p", 0): 1.0}, "b": {("p", 0): 2.0}}).margin("a", "b") == 1


def test_one_prompt_in_several_rounds_has_rounds_as_units() -> None:
    runs = runs_by_arm(timing_rows(copies(3), 1, 6, 0.01, 0))
    assert noise_of(runs, seconds_per_token).margin("copy00", "copy01") > 1
    found = speed_ratio(runs["copy00"], runs["copy01"])
    assert found.low < 1 < found.high
