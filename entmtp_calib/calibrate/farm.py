"""Work shared between processes: rank 0 runs the command and writes all files, the others compute items for it.

Started by torchrun, on one host or many. Processes talk through torchrun's key-value store alone, so no backend is needed and the
run folder need not be shared. Results come back as bytes, which makes the files those of one process. Knows nothing of models.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from entmtp_calib.errors import EntmtpError

Work = Callable[[Any], bytes]
"""Turns an item, a JSON value, into a result."""
_BEAT, _DEAD_AFTER, _POLL = 2.0, 45.0, 0.02  # seconds


class Farm:
    """The processes of one command.

    Args:
        rank, size: which of how many this is; store: a torch.distributed store, None for one process alone.
        dead_after: seconds without a sign of life after which a process counts as dead.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: Any = None, dead_after: float = _DEAD_AFTER) -> None:
        self.rank, self.size, self.store = rank, size, store
        self._dead_after = dead_after
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._jobs = 0
        self._over = threading.Event()
        if store is not None:
            threading.Thread(target=self._beat, daemon=True).start()

    def run(self, kind: str, items: Sequence[Any], work: Work, done: Callable[[Any, bytes], None]) -> None:
        """Have every item worked on somewhere, and hand results on as they come. For rank 0.

        Args:
            kind: what workers know this work by.
            items: JSON values.
            done: called with (item, result), here and in no fixed order.

        Raises:
            EntmtpError: another process died or failed. What `done` was told stays told.
        """
        waiting = {index for index in range(len(items)) if index % self.size != 0}
        if waiting:
            self._jobs += 1  # workers count the jobs that they see
            self.store.set(f"job/{self._jobs}", json.dumps([kind, list(items)]))
        for index in range(0, len(items), self.size):
            done(items[index], work(items[index]))
            self._collect(waiting, items, done)
        while waiting:
            if not self._collect(waiting, items, done):
                self._watch(range(1, self.size))

    def serve(self, works: Mapping[str, Work]) -> None:
        """Work for rank 0 until it closes the farm. For the other ranks.

        Raises:
            EntmtpError: rank 0 died.
        """
        number = 1
        while True:
            key = f"job/{number}"
            while not self.store.check([key]):
                if self.store.check(["over"]):
                    return
                self._watch([0])
            kind, items = json.loads(self.store.get(key))
            for index in range(self.rank, len(items), self.size):
                try:
                    result = b"+" + works[kind](items[index])
                except Exception as error:
                    self.store.set(f"{key}/{index}", b"-" + f"{type(error).__name__}: {error}".encode())
                    raise
                self.store.set(f"{key}/{index}", result)
            number += 1

    def close(self) -> None:
        """Let the other processes end."""
        if self.store is not None and self.rank == 0:
            self.store.set("over", b"1")
        self._over.set()

    def _collect(self, waiting: set[int], items: Sequence[Any], done: Callable[[Any, bytes], None]) -> bool:
        """Take the results that have come; whether there was one."""
        come = [index for index in sorted(waiting) if self.store.check([f"job/{self._jobs}/{index}"])]
        for index in come:
            key = f"job/{self._jobs}/{index}"
            result = bytes(self.store.get(key))
            self.store.delete_key(key)
            if result[:1] != b"+":
                raise EntmtpError(
                    f"process {index % self.size} failed: {result[1:].decode()}", "What is done is kept; run it again."
                )
            waiting.discard(index)
            done(items[index], result[1:])
        return bool(come)

    def _beat(self) -> None:
        count = 0
        while not self._over.wait(_BEAT if count else 0):
            count += 1
            try:
                self.store.set(f"beat/{self.rank}", str(count))
            except RuntimeError:  # the store went with rank 0; whoever waits will notice
                return

    def _watch(self, ranks: Sequence[int]) -> None:
        """Wait a moment, and give up on a rank that shows no sign of life."""
        time.sleep(_POLL)
        for rank in ranks:
            key = f"beat/{rank}"
            beat = bytes(self.store.get(key)) if self.store.check([key]) else b""
            before, since = self._seen.get(rank, (None, 0.0))
            if beat != before:
                self._seen[rank] = (beat, time.monotonic())
            elif time.monotonic() - since > self._dead_after:
                raise EntmtpError(f"process {rank} of {self.size} has died.", "What is done is kept; run the command again.")


def farm_from_environment() -> Farm:
    """The farm that torchrun started this process for, or one process alone. It is closed when this process ends."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return Farm()
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(iter(rendezvous("env://")))
    farm = Farm(rank, size, store)
    atexit.register(farm.close)
    return farm
