"""Signals: the scalar that a policy reads at a step, defined once for the decoder and for the replay.

A signal is a value of the step at hand and, for some, what it remembers of the steps before it in the same text. Works on one
step or on many side by side. Knows nothing of models, trees or files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.errors import ArtefactError, UsageError

Floats = NDArray[np.float32]

AUTO, COMBINED, HISTORY = "auto", "combined", "accepted_ema_8"
_PLAIN = ("intercept", "base_top1", "entropy", HISTORY)
"""Terms of `combined` before those of the chain, `path_1 …`: the heads' own path values `p_1`, `p_1 · p_2`, …"""
_NAMES = re.compile(r"(path_value|expected_chain)_([1-9])|base_top1|entropy|(entropy|accepted)_ema_([1-9][0-9]?)|combined")
_KNOWN = ("base_top1, path_value_1 … path_value_9, expected_chain_1 … 9, entropy, entropy_ema_4, entropy_ema_16, accepted_ema_8, "
          "combined, or auto.")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signal:
    """What a policy reads.

    `base_top1` is the target's top-1 probability of the root. `path_value_d` is `p_0 · p_1 · … · p_d`, summed in float32 logs
    (EntMTP, section 4; EAGLE-2's path value times p_0). `expected_chain_d` is `p_1 + p_1 · p_2 + … + p_1 · … · p_d`: how many
    drafts of a greedy chain of d the heads themselves expect to be accepted. `entropy` is the target's at the root, in nats.
    `entropy_ema_w` is its mean over this step and those before, bias-corrected, weights falling by 1 - 1/w a step;
    `accepted_ema_s` the same of the drafts accepted in the steps before, weights falling by 1 - 2/(s+1), and 0 at the first step.
    `combined` is a weighted sum of some of these, fitted to accepted drafts.

    Args:
        name: one of these.
        weights: of `combined`, the terms of `terms`; empty for the others.

    Raises:
        UsageError: unknown name, or weights where there should be none, or too few or not finite.
    """

    name: str
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not _NAMES.fullmatch(self.name):
            raise UsageError(f"unknown signal {self.name!r}.", f"Known: {_KNOWN}")
        wrong = len(self.weights) < len(_PLAIN) if self.name == COMBINED else bool(self.weights)
        if wrong or not all(map(math.isfinite, self.weights)):
            raise UsageError(
                f"signal {self.name!r} has the weights {list(self.weights)}.", "combined is fitted by fit-thresholds."
            )

    def __str__(self) -> str:
        return self.name

    @property
    def depth(self) -> int:
        """How many heads of the greedy chain it needs."""
        return len(self.weights) - len(_PLAIN) if self.name == COMBINED else signal_depth(self.name)

    @property
    def reads_entropy(self) -> bool:
        """Whether the target's entropy is needed."""
        return self.name == COMBINED or self.name.startswith("entropy")

    @property
    def remembers(self) -> bool:
        """Whether its value depends on the steps before."""
        return self.name == COMBINED or "_ema_" in self.name

    def at(self, root_logp: Floats, entropy: Floats, chain_logp: Floats) -> Floats:
        """The part of the signal that a step has by itself.

        Args:
            root_logp: log of the target's top-1 probability of the root, float32 `[...]`.
            entropy: nats, of the target there, float32 `[...]`; not read unless `reads_entropy`.
            chain_logp: log of the heads' top-1 probabilities along the greedy chain, float32 `[..., heads]`.

        Returns:
            float32 `[...]`, the same bits for a step alone and among many.
        """
        if self.name.startswith("accepted"):
            return np.zeros_like(root_logp, np.float32)
        if self.name.startswith("entropy"):
            return np.asarray(entropy, np.float32)
        if self.name == COMBINED:
            terms = instant_terms(root_logp, entropy, chain_logp, self.depth)
            weights = np.asarray(self.weights[:3] + self.weights[4:], np.float32)
            return _total([weight * term for weight, term in zip(weights, terms, strict=True)])
        if self.name.startswith("expected"):
            return _total([np.zeros_like(root_logp, np.float32), *paths(chain_logp, self.depth)])
        total = np.asarray(root_logp, np.float32)
        for index in range(self.depth):  # one by one: the same order of additions for a step and for a trace
            total = total + chain_logp[..., index]
        return np.exp(total, dtype=np.float32)

    def to_json(self) -> str | dict[str, Any]:
        """The name alone, or with the weights by term."""
        if not self.weights:
            return self.name
        return {"name": self.name, "weights": dict(zip(terms(self.depth), self.weights, strict=True))}


class Memory:
    """What a signal remembers of a text, or of many read side by side; begun anew for every text."""

    def __init__(self, signal: Signal) -> None:
        _, _, span = signal.name.partition("_ema_")
        own = signal.name.startswith("entropy_ema_")
        self._values = _Average(1 / int(span)) if own else None
        self._weight = 1.0 if signal.name.startswith("accepted") else signal.weights[3] if signal.weights else 0.0
        self._accepted = _Average(2 / (int(span or HISTORY.rpartition("_")[2]) + 1)) if self._weight else None
        self._mean: Any = 0.0

    def read(self, value: Any, accepted: Any) -> Any:
        """The signal of the next step.

        Args:
            value: what `Signal.at` gives for it, float or float64 `[texts]`.
            accepted: drafts that the step before it committed, int or `[texts]`; None at the first.
        """
        if self._values:
            value = self._values.add(value)
        if self._accepted:
            if accepted is not None:
                self._mean = self._accepted.add(accepted)
            value = value + self._weight * self._mean
        return value


class _Average:
    """A moving average whose weights fall by `1 - rate` a step and are divided by their sum."""

    def __init__(self, rate: float) -> None:
        self._keep = 1 - rate
        self._sum: Any = 0.0
        self._weights = 0.0

    def add(self, value: Any) -> Any:
        self._sum = self._keep * self._sum + value
        self._weights = self._keep * self._weights + 1.0
        return self._sum / self._weights


def check_asked(name: str) -> None:
    """Refuse what is neither a signal nor `auto`, which leaves the choice to a calibration.

    Raises:
        UsageError: it is neither.
    """
    if name != AUTO:
        signal_depth(name)


def signal_depth(name: str) -> int:
    """How many heads of the greedy chain a signal needs; 0 for `combined`, whose weights tell.

    Raises:
        UsageError: unknown signal.
    """
    match = _NAMES.fullmatch(name)
    if match is None:
        raise UsageError(f"unknown signal {name!r}.", f"Known: {_KNOWN}")
    return int(match[2] or 0)


def signal_names(depth: int) -> list[str]:
    """The signals that are tried with so many heads, the simplest first; `combined` last, since it has to be fitted."""
    chains = [f"{kind}_{d}" for kind in ("path_value", "expected_chain") for d in range(1, min(depth, 9) + 1)]
    return ["base_top1", *chains, "entropy", "entropy_ema_4", "entropy_ema_16", HISTORY, COMBINED]


def signal_from_json(value: Any) -> Signal:
    """Read the signal of a bank.

    Raises:
        ArtefactError: not what `to_json` writes.
    """
    try:
        if isinstance(value, str):
            return Signal(value)
        if isinstance(value, Mapping) and set(value) == {"name", "weights"} and isinstance(value["weights"], Mapping):
            given = value["weights"]
            wanted = terms(len(given) - len(_PLAIN))
            if set(given) == set(wanted) and all(type(weight) in (int, float) for weight in given.values()):
                return Signal(str(value["name"]), tuple(float(given[term]) for term in wanted))
    except (UsageError, OverflowError) as error:
        raise ArtefactError(f"field 'signal': {error}", getattr(error, "hint", "")) from None
    raise ArtefactError(f"field 'signal' is {str(value)[:60]!r}, which is no signal.")


def terms(depth: int) -> list[str]:
    """Names of the terms of `combined`, in the order of its weights."""
    return [*_PLAIN, *(f"path_{d}" for d in range(1, depth + 1))]


def instant_terms(root_logp: Floats, entropy: Floats, chain_logp: Floats, depth: int) -> list[Floats]:
    """Values of the terms of `combined` that a step has by itself, which is all but the history; see `Signal.at`."""
    return [np.ones_like(root_logp, np.float32), np.exp(root_logp, dtype=np.float32), np.asarray(entropy, np.float32),
            *paths(chain_logp, depth)]  # fmt: skip


def paths(chain_logp: Floats, depth: int) -> list[Floats]:
    """The heads' own path values along the greedy chain, `p_1`, `p_1 · p_2`, …, float32 `[...]` each."""
    found, path = [], np.zeros(chain_logp.shape[:-1], np.float32)
    for index in range(depth):
        path = path + chain_logp[..., index]
        found.append(np.exp(path, dtype=np.float32))
    return found


def _total(parts: list[Floats]) -> Floats:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
