"""Policies: which tree of a bank comes next, or how many nodes of a draft, given what is in use and this step's signal.

Frozen, pure, without torch: the same object drives the decoder, one step at a time, and is replayed over many texts at once.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.errors import ArtefactError
from entmtp_calib.topology import Topology, from_lists

Indices = NDArray[np.int64]


class Policy(Protocol):
    """A pure transition function over indices: of a bank's trees, or of a dynamic policy's own sizes."""

    @property
    def kind(self) -> str:
        """ "static", "ladder", "hysteresis" or "dynamic"."""

    @property
    def members(self) -> tuple[int, ...]:
        """Indices that it can choose, ascending."""

    def next(self, index: int, signal: float) -> int:
        """Index for this step."""

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
        _check_edges("ladder", self.edges, len(self.trees), "trees")

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


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A tree made anew at every step: of a drafted tree the nodes with the greatest path values (after EAGLE-2).

    K bins of the signal as for `Ladder`, each with how many nodes are taken; an index is the number of a bin. With one bin no
    signal is read.

    Raises:
        ArtefactError: edges as for `Ladder`, no node, or more nodes than are drafted.
    """

    edges: tuple[float, ...]
    sizes: tuple[int, ...]
    drafted: Topology
    kind = "dynamic"

    def __post_init__(self) -> None:
        _check_edges("dynamic policy", self.edges, len(self.sizes), "sizes")
        wrong = [size for size in self.sizes if not 1 <= size <= self.drafted.size]
        if wrong:
            many = f"1 to {self.drafted.size}, the nodes of 'drafted'"
            raise ArtefactError(f"the 'sizes' of a dynamic policy are {many}, not {wrong[0]}.")

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(range(len(self.sizes)))

    def next(self, index: int, signal: float) -> int:
        return bisect_right(self.edges, signal)

    def next_many(self, index: Indices, signal: NDArray[np.float64]) -> Indices:
        return np.searchsorted(self.edges, signal, side="right").astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        return {"edges": list(self.edges), "sizes": list(self.sizes), "drafted": self.drafted.to_lists()}


def _check_edges(what: str, edges: tuple[float, ...], bins: int, of: str) -> None:
    if len(edges) != bins - 1:
        raise ArtefactError(f"a {what} over {bins} {of} needs {bins - 1} edges, not {len(edges)}.")
    if not all(math.isfinite(edge) for edge in edges):
        raise ArtefactError(f"the edges of a {what} must be finite numbers.")
    if any(low >= high for low, high in pairwise(edges)):
        raise ArtefactError(f"the edges of a {what} must rise: {list(edges)}.")


def policy_from_json(kind: str, value: Any, trees: int) -> Policy:
    """Read a policy of a bank.

    Args:
        kind: name of the policy, see `Policy.kind`.
        value: what `to_json` wrote.
        trees: number of trees in the bank.

    Raises:
        ArtefactError: a field that is missing, of the wrong type, unknown, or an index outside the bank.
    """
    known: dict[str, tuple[Callable[..., Policy], dict[str, type]]] = {
        "static": (Static, {"index": int}),
        "ladder": (Ladder, {"edges": list, "trees": list}),
        "hysteresis": (Hysteresis, {"on": float, "off": float, "low": int, "high": int}),
        "dynamic": (Dynamic, {"edges": list, "sizes": list, "drafted": Topology}),
    }
    if kind not in known:
        raise ArtefactError(f"unknown policy {kind!r}.", f"Known: {', '.join(known)}.")
    make, fields = known[kind]
    if not isinstance(value, dict) or set(value) != set(fields):
        raise ArtefactError(f"policy {kind!r} must have the fields {', '.join(fields)}.")
    policy = make(**{name: _read(kind, name, value[name], wanted) for name, wanted in fields.items()})
    outside = [index for index in policy.members if not 0 <= index < trees]
    if outside and not isinstance(policy, Dynamic):
        raise ArtefactError(f"policy {kind!r} names tree {outside[0]}, and the bank has {trees} trees.")
    return policy


def _fits_float(value: int | float) -> bool:
    """Whether `float(value)` exists; what is not finite is refused by the policies themselves."""
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def _read(kind: str, name: str, value: Any, wanted: type) -> Any:
    number = (int, float)
    if wanted is Topology:
        return from_lists(value, f"field {name!r} of policy {kind!r}")
    if wanted is int and type(value) is int:
        return value
    if wanted is float and type(value) in number and _fits_float(value):
        return float(value)
    if wanted is list and isinstance(value, list):
        whole = name != "edges"
        items = (int,) if whole else number
        if all(type(item) in items and _fits_float(item) for item in value):
            return tuple(value if whole else map(float, value))
    raise ArtefactError(f"field {name!r} of policy {kind!r} has the value {value!r}, which is not what belongs there.")
