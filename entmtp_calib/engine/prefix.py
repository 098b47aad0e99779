"""The prefix layer of Hydra++: one decoder layer over the target's final states, which lets guesses look back at the whole text.

A Llama layer with its final norm, and its keys and values in a cache of its own. Rows in are the target's true states, never
guessed ones. Knows nothing of trees, heads or files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.errors import ArtefactError


@dataclass(frozen=True, slots=True)
class PrefixShape:
    """Sizes of a prefix layer.

    query_width, kv_width: columns of the queries and of the keys, all heads together; inner: width of the MLP;
    head_dim, rope_theta, eps: as in Llama, 0 where the file does not say it and the target's hold;
    max_positions: positions that the layer was made for, 0 for the target's.
    """

    query_width: int
    kv_width: int
    inner: int
    head_dim: int = 0
    rope_theta: float = 0.0
    eps: float = 0.0
    max_positions: int = 0


class PrefixLayer(nn.Module):
    """Attention and MLP with pre-norms, and a norm at the end.

    Args:
        width: width of the target's states.
        shape: the other sizes; all of them must be known before the first forward.
    """

    def __init__(self, width: int, shape: PrefixShape) -> None:
        super().__init__()
        self.shape = shape
        self.query = nn.Linear(width, shape.query_width, bias=False)
        self.key = nn.Linear(width, shape.kv_width, bias=False)
        self.value = nn.Linear(width, shape.kv_width, bias=False)
        self.out = nn.Linear(shape.query_width, width, bias=False)
        self.gate = nn.Linear(width, shape.inner, bias=False)
        self.up = nn.Linear(width, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, width, bias=False)
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.final_norm = nn.Parameter(torch.ones(width))

    def complete(self, head_dim: int, rope_theta: float, eps: float) -> None:
        """Take from the target what the file did not say.

        Raises:
            ArtefactError: widths that heads of this size do not divide, more key heads than query heads can share, or a rotary
                embedding that neither the file nor the target gives as one number.
        """
        said = self.shape
        self.shape = replace(
            said, head_dim=said.head_dim or head_dim, rope_theta=said.rope_theta or rope_theta, eps=said.eps or eps
        )
        columns = self.shape.head_dim
        if not self.shape.rope_theta:
            raise ArtefactError(
                "the target scales its rotary embedding, and the head file does not say what its prefix layer uses.",
                "Add rope_theta to the heads' config.json if it is plain; scaled ones are not supported.",
            )
        if said.query_width % columns or said.kv_width % columns or said.query_width % said.kv_width or columns % 2:
            raise ArtefactError(
                f"the prefix layer has {said.query_width} query and {said.kv_width} key columns, no whole heads of {columns}.",
                "Its configuration must say head_dim, or the heads were made for another model.",
            )

    def forward(self, hidden: Tensor, start: int | Tensor = 0, memory: KVCache | None = None) -> Tensor:
        """Mix states with those before them.

        Args:
            hidden: the target's states of consecutive tokens, `[batch, rows, hidden]`.
            start: position of the first of them; 0 without a memory. As a tensor, int64 `[1]`, no shape depends on it.
            memory: keys and values of the earlier tokens; those of these rows are written behind them.

        Returns:
            `[batch, rows, hidden]`.
        """
        hidden = hidden + self.out(self._attend(self._norm(hidden, self.attention_norm), start, memory))
        x = self._norm(hidden, self.mlp_norm)
        return self._norm(hidden + self.down(F.silu(self.gate(x)) * self.up(x)), self.final_norm)

    def _attend(self, x: Tensor, start: int | Tensor, memory: KVCache | None) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device) + start
        query, key, value = (self._split(part(x)) for part in (self.query, self.key, self.value))
        query, key = self._rotate(query, positions), self._rotate(key, positions)
        if memory is not None:
            memory.place(positions, start + x.shape[1] if isinstance(start, int) else memory.capacity)
            key, value = memory.update(key, value, 0)
        mask = None
        if isinstance(start, Tensor) or start:  # behind earlier rows; the mask of a whole text is implied
            mask = torch.arange(key.shape[2], device=x.device) <= positions[:, None]
        mixed = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(2)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, self.shape.head_dim)).transpose(1, 2)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary position embedding in Llama's order: the first half of a head's columns turns with the second."""
        half = self.shape.head_dim // 2
        powers = torch.arange(half, device=x.device, dtype=torch.float32) / half
        angles = positions[:, None].float() * self.shape.rope_theta**-powers
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.shape.eps)).to(x.dtype) * weight.to(x.dtype)
