"""Greedy acceptance: which drafted nodes the target itself would have written.

Works on the target's choice after every row; knows nothing of models or caches.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from entmtp_calib.engine.layout import TreeLayout


class Accepted(NamedTuple):
    """The accepted path.

    row: the last accepted row, int64 `[]`; length: accepted drafts, root excluded, int64 `[]`; path: rows from the root on,
    int64 `[depth + 1]`, of which the first `length + 1` count.
    """

    row: Tensor
    length: Tensor
    path: Tensor


def choose(logits: Tensor) -> Tensor:
    """The target's own next token after every row, int64 `[...]`: the one place where a token is chosen at temperature 0."""
    return logits.max(-1).indices


def accept(layout: TreeLayout, tokens: Tensor, choices: Tensor) -> Accepted:
    """Follow the target's choices through the tree.

    A node is right if its token is the target's choice after its parent; it is accepted if it and all its ancestors are right.
    Siblings differ, so at most one path is accepted.

    Args:
        tokens: drafted tokens, int64 `[rows]`, the root first.
        choices: the target's choice after each row, int64 `[rows]`.
    """
    right = tokens == choices[layout.parents]
    right[0] = True
    broken = (layout.mask & ~right).any(-1)
    reach = layout.depths.masked_fill(broken, -1)
    length, row = reach.max(0)
    return Accepted(row, length, layout.paths[row])
