"""Device work that is captured once and replayed with one launch, as CUDA graphs do, and the buffers that it is bound to.

A capture has fixed addresses and shapes. So its arguments and results live in buffers, and texts get their caches from arenas
of a few sizes, on which every tree of a decoder is captured before the first token. What a step does is the business of
`Decoder.advance`; that a replay does the same is checked here, with other values than it was captured with, before it is used.
Anything that fails leaves decoding as it is without captures, and the reason in `Graphs.reason`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.target import Target

Work = Callable[..., Sequence[Tensor]]
Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Captures a function without arguments or result, and gives another that repeats what it did on the device."""
_WARM_UPS = 3  # what is set up at a first or second call must not be captured
_SMALLEST, _DOUBLED = 512, 2048  # slots of an arena: powers of two, then multiples
_CLOSE = 1e-2  # rounding in 16 bits; a replay that reads the wrong buffer is off by much more


class CudaCapture:
    """Captures on a stream of its own; all captures share one pool of memory for what they compute in between."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(self.device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                work()
        replay: Callable[[], None] = graph.replay
        return replay


class Captured:
    """A function of tensors, captured. Results stay in buffers that the next call writes over.

    Args:
        work: gives tensors whose shapes do not depend on values, and does no harm when it is repeated with the same arguments.
        inputs: its arguments at the time of capture, which become the buffers.
    """

    def __init__(self, work: Work, inputs: Sequence[Tensor], capture: Capture) -> None:
        self.work = work
        self.inputs = tuple(inputs)
        self.outputs = tuple(result.clone() for result in work(*self.inputs))  # this call also sets up what the work keeps
        self._replay = capture(self._run)

    def __call__(self, *values: Tensor | int) -> tuple[Tensor, ...]:
        """Replay with other arguments; numbers fill their buffer."""
        for buffer, value in zip(self.inputs, values, strict=True):
            if isinstance(value, int):
                buffer.fill_(value)
            else:
                buffer.copy_(value)
        self._replay()
        return self.outputs

    def _run(self) -> None:
        # Results are copied to buffers from outside the pool: what is in the pool lasts until any other capture is replayed.
        for buffer, result in zip(self.outputs, self.work(*self.inputs), strict=True):
            buffer.copy_(result)

    def agrees(self, values: Sequence[Tensor | int], kept: Callable[[], Sequence[Tensor]] = tuple) -> bool:
        """Whether a replay gives what the work gives; moves data to the host.

        Args:
            values: other ones than it was captured with; kept: what else the work writes.
        """
        replayed = [tensor.clone() for tensor in (*self(*values), *kept())]
        plain = [*self.work(*self.inputs), *kept()]
        return all(
            torch.allclose(got.double(), wanted.double(), _CLOSE, _CLOSE, True)
            for got, wanted in zip(replayed, plain, strict=True)
        )


@dataclass(eq=False)
class Arena:
    """Caches of a fixed size for one text at a time, and the steps that are captured on them, by decoder and tree."""

    capacity: int
    cache: KVCache
    steps: dict[Any, dict[int, Captured]] = field(default_factory=dict)
    _memories: dict[Drafter, KVCache | None] = field(default_factory=dict)

    def memory(self, drafter: Drafter | None) -> KVCache | None:
        """The memory of a drafter, if it has one."""
        if drafter is not None and drafter not in self._memories:
            self._memories[drafter] = drafter.new_memory(self.capacity)
        return None if drafter is None else self._memories[drafter]


class Graphs:
    """What decoders of one target that take turns share: arenas, and how to capture.

    Args:
        capture: None for CUDA graphs on the target's device.

    Attributes:
        reason: why nothing is captured or replayed any more; None while all is well.
    """

    def __init__(self, target: Target, capture: Capture | None = None) -> None:
        self.target = target
        self.reason = _hindrance(target)
        self.free: list[Arena] = []
        self._arenas: dict[KVCache, Arena] = {}
        self._capture = capture

    def take(self, capacity: int) -> Arena:
        """An arena with at least so many slots; whoever takes it puts it back into `free`."""
        size = rounded(capacity)
        for arena in self.free:
            if arena.capacity == size:
                self.free.remove(arena)
                return arena
        arena = Arena(size, self.target.new_cache(size - 1))
        self._arenas[arena.cache] = arena
        return arena

    def steps(self, cache: KVCache, decoder: object) -> Mapping[int, Captured]:
        """What a decoder may replay on a cache, by tree."""
        arena = self._arenas.get(cache) if self.reason is None else None
        return arena.steps.get(decoder, {}) if arena is not None else {}

    def capture(
        self, work: Work, inputs: Sequence[Tensor], trial: Sequence[Tensor | int], kept: Callable[[], Sequence[Tensor]] = tuple
    ) -> Captured | None:
        """Capture, and check with other arguments; None, with the reason kept, if that fails."""
        if self.reason is not None:
            return None
        try:
            self._capture = self._capture or CudaCapture(self.target.device)
            made = Captured(work, inputs, self._capture)
            if made.agrees(trial, kept):
                return made
            reason = "a replay did not give what the plain step gives"
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # an operator that cannot be captured, no memory
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        self.reason = reason
        self.free.clear()  # their memory may be what is missing
        self._arenas.clear()
        return None


def rounded(capacity: int) -> int:
    """Slots of the arena for so many: few sizes, so that few are captured, and never twice what is needed but for short texts."""
    if capacity > _DOUBLED:
        return -(-capacity // _DOUBLED) * _DOUBLED
    return max(_SMALLEST, 1 << (capacity - 1).bit_length())


def _hindrance(target: Target) -> str | None:
    """Why steps of this target must not be captured: work on another device would run once and never be replayed."""
    places = {parameter.device for parameter in target.model.parameters()}
    return None if places <= {target.device} else "the model is spread over several devices"
