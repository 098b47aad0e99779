"""The farm: every item once, results as of one process, and death noticed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import HashStore

from entmtp_calib.calibrate.farm import Farm
from entmtp_calib.errors import EntmtpError


def in_thread(call: Callable[[], None]) -> tuple[threading.Thread, list[BaseException]]:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, failed


def double(item: Any) -> bytes:
    return str(2 * item).encode()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_item_is_worked_on_once(size: int) -> None:
    store = HashStore() if size > 1 else None
    worked: list[int] = []

    def work(item: int) -> bytes:
        worked.append(item)
        return double(item)

    workers = [in_thread(lambda rank=rank: Farm(rank, size, store).serve({"x": work, "y": double})) for rank in range(1, size)]  # type: ignore[misc]
    farm = Farm(0, size, store)
    for kind, items in (("x", []), ("x", list(range(11))), ("y", [7]), ("y", [8, 9])):
        found: dict[int, bytes] = {}
        farm.run(kind, items, work if kind == "x" else double, found.__setitem__)
        assert found == {item: double(item) for item in items}
    farm.close()
    assert sorted(worked) == list(range(11))
    for thread, failed in workers:
        thread.join(5)
        assert not thread.is_alive()
        assert not failed


def test_a_dead_worker_is_an_error_and_what_was_done_is_kept() -> None:
    store, found = HashStore(), dict[int, bytes]()
    farm = Farm(0, 2, store, dead_after=0.5)
    start = time.monotonic()
    with pytest.raises(EntmtpError, match="process 1 of 2 has died"):
        farm.run("x", [1, 2, 3], double, found.__setitem__)
    assert time.monotonic() - start < 10
    assert found == {1: b"2", 3: b"6"}


def test_a_dead_master_is_an_error_for_the_workers() -> None:
    with pytest.raises(EntmtpError, match="process 0 of 2 has died"):
        Farm(1, 2, HashStore(), dead_after=0.5).serve({})


def test_slow_work_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entmtp_calib.calibrate.farm._BEAT", 0.05)
    store, found = HashStore(), dict[int, bytes]()

    def slow(item: int) -> bytes:
        time.sleep(1)
        return double(item)

    in_thread(lambda: Farm(1, 2, store, dead_after=0.5).serve({"x": slow}))
    farm = Farm(0, 2, store, dead_after=0.5)
    farm.run("x", [1, 2], double, found.__setitem__)
    farm.close()
    assert found == {1: b"2", 2: b"4"}


def test_a_failure_elsewhere_is_told() -> None:
    def fail(item: int) -> bytes:
        raise ValueError("no room")

    store = HashStore()
    _thread, failed = in_thread(lambda: Farm(1, 2, store).serve({"x": fail}))
    with pytest.raises(EntmtpError, match="process 1 failed: ValueError: no room"):
        Farm(0, 2, store).run("x", [1, 2], double, lambda _item, _result: None)
    assert isinstance(failed[0], ValueError)
