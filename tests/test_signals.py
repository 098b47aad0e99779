"""Laws of signals: what each is, one step and many alike, and what it remembers."""

from __future__ import annotations

import numpy as np
import pytest

from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.signals import Memory, Signal, check_asked, signal_depth, signal_from_json, signal_names, terms

ROOT = np.log(np.array([0.5, 0.8], np.float32))
ENTROPY = np.array([1.5, 0.25], np.float32)
HEADS = np.log(np.array([[0.5, 0.25, 0.1], [0.9, 0.8, 0.7]], np.float32))
COMBINED = Signal("combined", (1.0, 2.0, -1.0, 0.5, 4.0, 8.0))


@pytest.mark.parametrize(
    ("signal", "wanted"),
    [
        (Signal("base_top1"), [0.5, 0.8]),
        (Signal("path_value_1"), [0.25, 0.72]),
        (Signal("path_value_2"), [0.0625, 0.576]),
        (Signal("expected_chain_1"), [0.5, 0.9]),
        (Signal("expected_chain_2"), [0.5 + 0.125, 0.9 + 0.72]),
        (Signal("entropy"), [1.5, 0.25]),
        (Signal("entropy_ema_4"), [1.5, 0.25]),
        (Signal("accepted_ema_8"), [0, 0]),
        (COMBINED, [1 + 1 - 1.5 + 2 + 1, 1 + 1.6 - 0.25 + 3.6 + 5.76]),
    ],
    ids=str,
)
def test_what_a_step_has_by_itself_is_the_same_alone_and_among_many(signal: Signal, wanted: list[float]) -> None:
    many = signal.at(ROOT, ENTROPY, HEADS)
    assert many == pytest.approx(wanted)
    assert many.dtype == np.float32
    assert [signal.at(ROOT[place], ENTROPY[place], HEADS[place]) for place in range(2)] == many.tolist()


def test_the_depth_of_a_signal_is_how_many_heads_it_reads() -> None:
    names = ("base_top1", "path_value_1", "expected_chain_9", "entropy", "entropy_ema_16", "accepted_ema_8")
    assert [Signal(name).depth for name in names] == [0, 1, 9, 0, 0, 0]
    assert COMBINED.depth == 2
    assert [signal_depth(name) for name in names] == [Signal(name).depth for name in names]


@pytest.mark.parametrize(("name", "rate"), [("entropy_ema_4", 1 / 4), ("entropy_ema_16", 1 / 16)])
def test_an_average_of_entropy_is_bias_corrected_over_this_step_and_those_before(name: str, rate: float) -> None:
    values = np.random.default_rng(0).random(12).tolist()
    memory = Memory(Signal(name))
    for step in range(12):
        weights = (1 - rate) ** np.arange(step, -1, -1)
        wanted = float((weights * values[: step + 1]).sum() / weights.sum())
        assert memory.read(values[step], 3 if step else None) == pytest.approx(wanted)


def test_an_average_of_accepted_drafts_is_of_the_steps_before() -> None:
    memory = Memory(Signal("accepted_ema_8"))
    keep = 1 - 2 / 9
    assert [memory.read(0.0, accepted) for accepted in (None, 4, 0, 2)] == pytest.approx(
        [0, 4, 4 * keep / (1 + keep), (4 * keep**2 + 2) / (1 + keep + keep**2)]
    )


def test_a_combined_signal_adds_its_weight_times_the_history() -> None:
    memory, history = Memory(COMBINED), Memory(Signal("accepted_ema_8"))
    for value, accepted in ((1.0, None), (2.0, 3), (0.5, 1)):
        assert memory.read(value, accepted) == pytest.approx(value + 0.5 * history.read(0.0, accepted))


@pytest.mark.parametrize("signal", [Signal("entropy_ema_4"), Signal("accepted_ema_8"), COMBINED, Signal("base_top1")], ids=str)
def test_texts_side_by_side_are_remembered_apart_and_to_the_same_bits(signal: Signal) -> None:
    rng = np.random.default_rng(1)
    values, accepted = rng.random((9, 5)), rng.integers(0, 5, (9, 5))
    memory = Memory(signal)
    many = [memory.read(values[step], accepted[step - 1] if step else None) for step in range(9)]
    for text in range(5):
        alone = Memory(signal)
        for step in range(9):
            wanted = alone.read(float(values[step, text]), int(accepted[step - 1, text]) if step else None)
            assert many[step][text] == wanted


def test_signals_that_do_not_remember_are_what_the_step_has_by_itself() -> None:
    for name in signal_names(3):
        if name == "combined":
            continue
        memory = Memory(Signal(name))
        read = [memory.read(value, accepted) for value, accepted in ((0.25, None), (0.5, 4))]
        assert (read == [0.25, 0.5]) == (not Signal(name).remembers)


def test_every_signal_round_trips_through_json() -> None:
    for signal in (*map(Signal, signal_names(4)[:-1]), COMBINED):
        assert signal_from_json(signal.to_json()) == signal
    assert signal_from_json("base_top1") == Signal("base_top1")
    assert list(signal_from_json(COMBINED.to_json()).to_json()["weights"]) == terms(2)  # type: ignore[index]


@pytest.mark.parametrize(
    "name", ["mood", "path_value_0", "path_value", "entropy_ema_0", "entropy_ema_", "tau", "combined", "auto"]
)
def test_what_is_no_signal_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        Signal(name)
    with pytest.raises(ArtefactError, match="signal"):
        signal_from_json(name)


def test_auto_may_be_asked_for_and_a_typo_may_not() -> None:
    for name in ("auto", "combined", "entropy"):
        check_asked(name)
    with pytest.raises(UsageError, match="mood"):
        check_asked("mood")


def test_weights_belong_to_the_combined_signal_and_are_finite() -> None:
    for name, weights in (("base_top1", (1.0,)), ("combined", (1.0,) * 3), ("combined", (1.0, float("nan"), 1.0, 1.0, 1.0))):
        with pytest.raises(UsageError, match="weights"):
            Signal(name, weights)
