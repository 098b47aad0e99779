"""Gumbel noise that is a function of (seed, position, token) and of nothing else.

Adding it to logits and taking the largest draws an exact sample of their softmax, and the same token whatever else is computed,
thrown away or batched beside it (drafter-invariant coupling, Daliri et al., arXiv 2408.07978). There is no generator to advance.
Knows integers and tensors only.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # multipliers of SplitMix64 (Steele, Lea and Flood, 2014)
_BITS = 40


def gumbel(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Standard Gumbel noise, float32 `[rows, vocabulary]`.

    Args:
        seeds, positions: int64 `[rows]`; the position is the token's place in the whole text, prompt included.
    """
    keys = _mix(_mix(seeds * _signed(_GOLDEN)) + positions * _signed(_GOLDEN))
    tokens = torch.arange(vocabulary, device=positions.device) * _signed(_GOLDEN)
    bits = (_mix(keys[:, None] + tokens) >> (64 - _BITS)) & ((1 << _BITS) - 1)
    uniform = (bits.float() + 0.5) * 2.0**-_BITS
    # -log(1 - u) is exponential, and small values, the large noise, keep their precision.
    return -torch.log(-torch.log1p(-uniform))


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
