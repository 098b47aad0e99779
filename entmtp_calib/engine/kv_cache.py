"""A static key-value cache for one model: rows are written at given slots and the accepted ones are kept.

Knows tensors only. It has no idea of trees, tokens or models; the caller says where rows go (`place`) and which of them
survive (`commit`). Nothing is hung on the model object, so any number of caches can be in use at once.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Keys and values of every layer in one tensor `[layers, 2, batch, kv_heads, capacity, head_dim]`.

    It has the one method that transformers' attention layers call, `update`, and no other part of their cache classes. The
    tensor is allocated at the first update, when the shapes of the keys are known.

    Args:
        layers: number of layers that will call `update`.
        capacity: number of slots. Rows past it raise `IndexError` in `place`.
    """

    is_compileable = False

    def __init__(self, layers: int, capacity: int) -> None:
        self.layers = layers
        self.capacity = capacity
        self.store: Tensor | None = None
        self.seen: set[int] = set()
        self._slots = torch.empty(0, dtype=torch.long)
        self._span = 0

    def reserve(self, capacity: int) -> None:
        """Have at least this many slots; what is in the cache stays."""
        if self.store is not None and capacity > self.capacity:
            *sizes, _slots, width = self.store.shape
            store = self.store.new_zeros(*sizes, capacity, width)
            store[..., : self.capacity, :] = self.store
            self.store = store
        self.capacity = max(self.capacity, capacity)

    def take(self, other: KVCache, rows: int) -> None:
        """Hold what another cache of the same model holds in its first slots; this one must have been written to."""
        if self.store is not None and other.store is not None:
            self.store[..., :rows, :] = other.store[..., :rows, :]

    def rows(self, start: int, count: int) -> Tensor:
        """Keys and values in some slots, as a view; the cache must have been written to."""
        assert self.store is not None, "nothing was written yet"
        return self.store[..., start : start + count, :]

    def place(self, slots: Tensor, span: int) -> None:
        """Say where the next forward writes its rows.

        Args:
            slots: slot of each row of the forward, int64 `[rows]`.
            span: number of leading slots that attention sees, at least the largest slot plus one.

        Raises:
            IndexError: `span` is larger than the capacity.
        """
        if span > self.capacity:
            raise IndexError(f"the cache has {self.capacity} slots and {span} were asked for")
        self._slots = slots
        self._span = span

    def widen(self) -> None:
        """Let the next forward write one more row, behind its last one; the row is scratch."""
        self.place(torch.cat((self._slots, self._slots[-1:] + 1)), self._span + 1)

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write one layer's new rows and return all rows that attention may see (called by the model).

        Args:
            keys: `[batch, kv_heads, rows, head_dim]`; values alike.
            layer_idx: the layer.

        Returns:
            Views of the first `span` slots, `[batch, kv_heads, span, head_dim]` each.
        """
        if self.store is None:
            batch, heads, _rows, width = keys.shape
            self.store = keys.new_zeros(self.layers, 2, batch, heads, self.capacity, width)
        self.seen.add(layer_idx)
        layer = self.store[layer_idx]
        layer[0].index_copy_(2, self._slots, keys)
        layer[1].index_copy_(2, self._slots, values)
        return layer[0, :, :, : self._span], layer[1, :, :, : self._span]

    def commit(self, base: int | Tensor, rows: Tensor) -> None:
        """Move accepted rows to the front: slot `base + i` becomes what slot `base + rows[i]` held.

        Args:
            base: first slot of the forward whose rows are kept; as a tensor, int64 `[1]`, its value stays on the device.
            rows: rows of that forward, ascending, int64 `[kept]`. What lies behind them is forgotten by the next `place`.
        """
        if self.store is None:
            raise RuntimeError("nothing was written yet")
        kept = self.store.index_select(4, rows + base)
        if isinstance(base, int):
            self.store[..., base : base + rows.shape[0], :] = kept
        else:
            self.store.index_copy_(4, torch.arange(rows.shape[0], device=rows.device) + base, kept)

    def select(self, rows: Tensor) -> None:
        """Keep only some members of the batch, int64 `[kept]`."""
        if self.store is not None:
            self.store = self.store.index_select(2, rows)

    def get_seq_length(self, *_: object) -> int:
        """Number of slots in front of the rows being written; transformers asks for it when it sets defaults."""
        return self._span - int(self._slots.shape[0])
