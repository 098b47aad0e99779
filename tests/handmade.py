"""Traces made by hand and at random, without a model."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from entmtp_calib.evidence import Trace

NEVER = 99  # a rank that no tree holds


def trace(ranks: Sequence[Sequence[int]], signal: Sequence[float] | None = None, name: str = "text") -> Trace:
    """A trace whose heads put the true tokens at these ranks and whose `base_top1` is this signal."""
    table = np.array(ranks, np.int32)
    n, heads = table.shape
    for head in range(heads):
        table[max(0, n - 1 - head) :, head] = -1  # the text has no such token
    logp = np.log(np.array(signal if signal is not None else [0.5] * n, np.float32))
    chain = np.full((n, heads), np.log(0.5), np.float32)
    return Trace(name, np.arange(n, dtype=np.int32), table, np.ones((n, heads), np.float32), logp.astype(np.float32),
                 np.ones(n, np.float32), chain, np.zeros(n, np.int32))  # fmt: skip


def random_trace(rng: random.Random, n: int, heads: int = 4, name: str = "text") -> Trace:
    """A trace in which small ranks are likelier, with a random signal."""
    ranks = [[rng.choice([0, 0, 0, 1, 1, 2, 3, NEVER]) for _ in range(heads)] for _ in range(n)]
    return trace(ranks, [rng.uniform(0.01, 1) for _ in range(n)], name)


def one_step(*ranks: int) -> Trace:
    """A text whose first step meets these ranks and in which nothing else can be accepted."""
    return trace([ranks, *[[NEVER] * len(ranks)] * len(ranks)])
