"""Signals: the scalar that a policy reads at a step, defined once for the decoder and for the replay.

Works on log probabilities, on one step or on a whole trace alike. Knows nothing of models.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.errors import UsageError

Floats = NDArray[np.float32]
DEFAULT_DEPTH = 4


_NAMES = re.compile(r"(path_value|expected_chain)_([1-9])")


def signal_depth(name: str) -> int:
    """How many heads of the greedy chain a signal needs.

    Raises:
        UsageError: unknown signal.
    """
    match = _NAMES.fullmatch(name)
    if match:
        return int(match[2])
    if name == "base_top1":
        return 0
    raise UsageError(f"unknown signal {name!r}.", "Known: base_top1, path_value_1 … path_value_9, expected_chain_1 … 9.")


def compute_signal(name: str, root_logp: Floats, chain_logp: Floats) -> Floats:
    """The signal of one step or of many.

    `path_value_d` is `p_0 · p_1 · … · p_d`, summed in float32 log space (EntMTP, section 4; EAGLE-2's path value times p_0).
    `expected_chain_d` is `p_1 + p_1 · p_2 + … + p_1 · … · p_d`: how many drafts of a greedy chain of d the heads themselves
    expect to be accepted.

    Args:
        root_logp: log of the target's top-1 probability of the root, float32 `[...]`.
        chain_logp: log of the heads' top-1 probabilities along the greedy chain, float32 `[..., heads]`.

    Returns:
        float32 `[...]`.
    """
    depth = signal_depth(name)
    if name.startswith("expected_chain"):
        path = np.zeros_like(root_logp, np.float32)
        expected = np.zeros_like(root_logp, np.float32)
        for index in range(depth):  # one by one: the same order of additions for a step and for a trace
            path = path + chain_logp[..., index]
            expected = expected + np.exp(path, dtype=np.float32)
        return expected
    total = np.asarray(root_logp, np.float32)
    for index in range(depth):
        total = total + chain_logp[..., index]
    return np.exp(total, dtype=np.float32)
