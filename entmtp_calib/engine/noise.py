"""Gumbel noise that is a function of (seed, position, token) and of nothing else.

Adding it to logits and taking the largest draws an exact sample of their softmax, and the same token whatever else is computed,
thrown away or batched beside it (drafter-invariant coupling, Daliri et al., arXiv 2408.07978). There is no generator to advance.
Knows integers and tensors only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # multipliers of SplitMix64 (Steele, Lea and Flood, 2014)
_BITS = 40


def gumbel(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, float32 `[rows, tokens]`.

    Args:
        seeds, positions: int64 `[rows]`; the position is the token's place in the whole text, prompt included.
        tokens: token ids, int64 `[tokens]`.
    """
    keys = _mix(_mix(seeds * _signed(_GOLDEN)) + positions * _signed(_GOLDEN))
    bits = (_mix(keys[:, None] + tokens * _signed(_GOLDEN)) >> (64 - _BITS)) & ((1 << _BITS) - 1)
    uniform = (bits.float() + 0.5) * 2.0**-_BITS
    # -log(1 - u) is exponential, and small values, the large noise, keep their precision.
    return -torch.log(-torch.log1p(-uniform))


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Ranking of guesses by the target's own noise: what the noise makes likely to be drawn is guessed first."""

    temperature: float
    seed: int

    def __call__(self, logits: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
        """Logits to rank by, float32 `[rows, vocabulary]`.

        Args:
            logits: of a head, `[rows, vocabulary]`; positions: of the guessed tokens, int64 `[rows]` or `[1]`;
            ids: the target's ids of the head's vocabulary.
        """
        return logits.float() / self.temperature + gumbel(torch.full_like(positions, self.seed), positions, ids)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, on 64-bit integers that wrap."""
    x = (x ^ _shift(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift(x, 27)) * _signed(_SECOND)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
