"""Policies: which tree of a bank comes next, given the one in use and this step's signal.

Frozen, pure, without torch: the same object drives the decoder, one step at a time, and is replayed over many texts at once.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.errors import ArtefactError

Indices = NDArray[np.int64]


class Policy(Protocol):
    """A pure transition function over the indices of a bank."""

    @property
    def kind(self) -> str:
        """ "static", "ladder" or "hysteresis"."""

    @property
    def members(self) -> tuple[int, ...]:
        """Indices of the bank that it can choose, ascending."""

    def next(self, index: int, signal: float) -> int:
        """Index of the tree for this step."""

    def next_many(self, index: Indices, signal: NDArray[np.float64]) -> Indices:
        """The same for many texts side by side, `[texts]` each."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, read back by `policy_from_json`."""


@dataclass(frozen=True, slots=True)
class Static:
    """Always the same tree."""

    index: int
    kind = "static"

    @property
    def members(self) -> tuple[int, ...]:
        return (self.index,)

    def next(self, index: int, signal: float) -> int:
        return self.index

    def next_many(self, index: Indices, signal: NDArray[np.float64]) -> Indices:
        return np.full_like(index, self.index)

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index}


@dataclass(frozen=True, slots=True)
class Ladder:
    """K bins of the signal, one tree each: bin k holds `edges[k-1] <= signal < edges[k]`.

    Raises:
        ArtefactError: edges that do not rise, are not finite, or are not one fewer than the trees.
    """

    edges: tuple[float, ...]
    trees: tuple[int, ...]
    kind = "ladder"

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.trees) - 1:
            raise ArtefactError(
                f"a ladder over {len(self.trees)} trees needs {len(self.trees) - 1} edges, not {len(self.edges)}."
            )
        if not all(math.isfinite(edge) for edge in self.edges):
            raise ArtefactError("a ladder's edges must be finite numbers.")
        if any(low >= high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ArtefactError(f"a ladder's edges must rise: {list(self.edges)}.")

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.trees)))

    def next(self, index: int, signal: float) -> int:
        return self.trees[bisect_right(self.edges, signal)]

    def next_many(self, index: Indices, signal: NDArray[np.float64]) -> Indices:
        return np.asarray(self.trees)[np.searchsorted(self.edges, signal, side="right")]

    def to_json(self) -> dict[str, Any]:
        return {"edges": list(self.edges), "trees": list(self.trees)}


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Two trees: `high` from `signal >= on`, `low` from `signal < off`, in between whatever was in use.

    Raises:
        ArtefactError: `off` above `on`, or thresholds that are not finite.
    """

    on: float
    off: float
    low: int
    high: int
    kind = "hysteresis"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.on) and math.isfinite(self.off)):
            raise ArtefactError("hysteresis thresholds must be finite numbers.")
        if self.off > self.on:
            raise ArtefactError(f"hysteresis needs off <= on, not off {self.off} > on {self.on}.")

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted({self.low, self.high}))

    def next(self, index: int, signal: float) -> int:
        if signal >= self.on:
            return self.high
        if signal < self.off or index not in (self.low, self.high):
            return self.low
        return index

    def next_many(self, index: Indices, signal: NDArray[np.float64]) -> Indices:
        return hysteresis(self.on, self.off, self.low, self.high, index, signal)

    def to_json(self) -> dict[str, Any]:
        return {"on": self.on, "off": self.off, "low": self.low, "high": self.high}


def hysteresis(on: Any, off: Any, low: Any, high: Any, index: Indices, signal: NDArray[np.float64]) -> Indices:
    """`Hysteresis.next` for many texts, each with its own rule if thresholds and trees are arrays `[texts]` too."""
    stays = ~(signal < off) & ((index == low) | (index == high))  # a signal that is no number keeps what was in use
    return np.where(signal >= on, high, np.where(stays, index, low))


def policy_from_json(kind: str, value: Any, trees: int) -> Policy:
    """Read a policy of a bank.

    Args:
        kind: "static", "ladder" or "hysteresis".
        value: what `to_json` wrote.
        trees: number of trees in the bank.

    Raises:
        ArtefactError: a field that is missing, of the wrong type, unknown, or an index outside the bank.
    """
    known: dict[str, dict[str, type]] = {
        "static": {"index": int},
        "ladder": {"edges": list, "trees": list},
        "hysteresis": {"on": float, "off": float, "low": int, "high": int},
    }
    fields = known.get(kind)
    if fields is None:
        raise ArtefactError(f"unknown policy {kind!r}.", "Known: static, ladder, hysteresis.")
    if not isinstance(value, dict) or set(value) != set(fields):
        raise ArtefactError(f"policy {kind!r} must have the fields {', '.join(fields)}.")
    read = {name: _read(kind, name, value[name], wanted) for name, wanted in fields.items()}
    policy: Policy
    if kind == "static":
        policy = Static(**read)
    elif kind == "ladder":
        policy = Ladder(**read)
    else:
        policy = Hysteresis(**read)
    outside = [index for index in policy.members if not 0 <= index < trees]
    if outside:
        raise ArtefactError(f"policy {kind!r} names tree {outside[0]}, and the bank has {trees} trees.")
    return policy


def _fits_float(value: int | float) -> bool:
    """Whether `float(value)` exists; what is not finite is refused by the policies themselves."""
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def _read(kind: str, name: str, value: Any, wanted: type) -> Any:
    number = (int, float)
    if wanted is int and type(value) is int:
        return value
    if wanted is float and type(value) in number and _fits_float(value):
        return float(value)
    if wanted is list and isinstance(value, list):
        items = (int,) if name == "trees" else number
        if all(type(item) in items and _fits_float(item) for item in value):
            return tuple(value if name == "trees" else map(float, value))
    raise ArtefactError(f"field {name!r} of policy {kind!r} has the value {value!r}, which is not what belongs there.")
