"""A stand-in for CUDA graphs on any device: repeats a function and insists that it is one that a graph could hold.

Every operator, shape and constant must be that of the capture, every tensor from outside must lie where it lay, and nothing may
be read back by the host or copied from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HOST = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "lift_fresh", "repeat_interleave",
}  # fmt: skip


def flat(things: Iterable[Any]) -> Iterator[Any]:
    """What is in lists and tuples, however deep."""
    for thing in things:
        if isinstance(thing, (list, tuple)):
            yield from flat(thing)
        else:
            yield thing


class Log(TorchDispatchMode):
    """What a piece of work does, as a graph would hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Any] = []
        self._born: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in HOST, f"{name} waits for the host"
        leaves = [*flat(args), *flat(list((kwargs or {}).values()))]
        if name == "index":
            assert not any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bool for leaf in leaves[1:])
        self.entries.append((str(func), [self._about(leaf) for leaf in leaves]))
        result = func(*args, **(kwargs or {}))
        outside = {leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, torch.Tensor)}
        for leaf in flat([result]):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in outside:
                    self._born[storage._cdata] = storage
        return result

    def _about(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return repr(leaf)
        storage = leaf.untyped_storage()._cdata
        where = "made here" if storage in self._born else leaf.data_ptr()
        return tuple(leaf.shape), leaf.stride(), str(leaf.dtype), where


class Strict:
    """Captures by running the work once and replays by running it again.

    Attributes:
        captures, replays: how many there were.
    """

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        held = self._run(work)

        def replay() -> None:
            self.replays += 1
            assert self._run(work) == held, "a graph would not do this"

        return replay

    @staticmethod
    def _run(work: Callable[[], None]) -> list[Any]:
        with Log() as log:
            work()
        return log.entries
