"""What the rows of a step may see, behind a text whose length the host knows or only the device. Knows masks and lengths."""

from __future__ import annotations

import torch
from torch import Tensor


def seen(mask: Tensor, length: int | Tensor, span: int) -> Tensor:
    """Which of the first `span` slots every row sees: the text before it and, behind that, what its own tree's mask shows it.

    Args:
        mask: of the tree, bool `[rows, rows]`.
        length: tokens of the text. As a number, `span` is `length + rows`; as a tensor, int64 `[1]`, its value stays on the
            device and `span` is anything that holds the rows.

    Returns:
        bool `[1, 1, rows, span]`.
    """
    rows = mask.shape[0]
    if isinstance(length, int):
        return torch.cat((mask.new_ones(rows, length), mask), 1)[None, None]
    behind = torch.arange(span, device=mask.device) - length
    own = mask.index_select(1, behind.clamp(0, rows - 1)) & (behind < rows)
    return (own | (behind < 0))[None, None]
