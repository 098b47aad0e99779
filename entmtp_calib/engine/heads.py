"""Draft heads as torch modules: Medusa (independent), Hydra (sequential) and Hydra++ (sequential, behind a prefix layer).

A head maps a context to logits of a guess, over the whole vocabulary or a part of it. The same four methods (`read`, `start`,
`extend`, `logits`) serve drafting, teacher-forced traces and training, so these cannot disagree. Knows nothing of files, trees or
acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.packing import can_pack, pack, pack_linears, packed_linear
from entmtp_calib.engine.prefix import PrefixLayer, PrefixShape
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError

ARCHITECTURES = ("hydra", "hydra++", "medusa")


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What defines a set of heads, apart from its weights.

    architecture: "hydra", "hydra++" or "medusa"; heads, layers: counts; hidden_size: width of the target's states;
    vocabulary: rows of the LM heads, the target's vocabulary or the size of the draft vocabulary (0: not said, the target's);
    lm_heads: "target" (borrowed), "shared" (one in the file) or "own" (one per head);
    lm_bias: whether LM heads in the file have a bias; reduced: whether `draft_ids` maps guesses to the target's ids;
    prefix: sizes of the prefix layer, Hydra++ only.
    """

    architecture: str
    heads: int
    layers: int
    hidden_size: int
    vocabulary: int
    lm_heads: str = "target"
    lm_bias: bool = False
    reduced: bool = False
    prefix: PrefixShape | None = None


class ResBlock(nn.Module):
    """`R(x) + SiLU(W x)`; R is linear where the widths differ, else the identity (Hydra, Medusa)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.residual = nn.Linear(inputs, outputs) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + F.silu(self.linear(x))


class DraftHeads(nn.Module):
    """A set of heads bound to a target's embedding and, where borrowed, its LM head.

    Head d (from 0) guesses the token d + 1 places after the root. A Hydra head sees the target's state and the embeddings of
    the root and of the d guesses before it; a Medusa head sees the state alone. Hydra++ puts a prefix layer between the states
    and the heads.
    """

    draft_ids: Tensor | None

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.hidden_size
        self.prefix = PrefixLayer(width, shape.prefix) if shape.prefix else None
        self.heads = nn.ModuleList()
        for index in range(shape.heads):
            inputs = (index + 2) * width if self.sequential else width
            self.heads.append(nn.Sequential(ResBlock(inputs, width), *(ResBlock(width, width) for _ in range(shape.layers - 1))))
        count = {"target": 0, "shared": 1, "own": shape.heads}[shape.lm_heads]
        self.lm_heads = nn.ModuleList(nn.Linear(width, shape.vocabulary, bias=shape.lm_bias) for _ in range(count))
        self.register_buffer("draft_ids", torch.zeros(shape.vocabulary, dtype=torch.long) if shape.reduced else None)
        self._embedding: Tensor | None = None
        self._borrowed: tuple[Tensor, Tensor | None] | None = None
        self._packed: Any = None

    @property
    def depth(self) -> int:
        """Number of heads, the deepest tree that they can fill."""
        return self.shape.heads

    @property
    def vocabulary(self) -> int:
        """Number of tokens that a head guesses among."""
        return self.shape.vocabulary

    @property
    def sequential(self) -> bool:
        """Whether a guess depends on the guesses before it."""
        return self.shape.architecture != "medusa"

    @property
    def max_positions(self) -> int:
        """Longest text that the heads were made for."""
        return (self.shape.prefix and self.shape.prefix.max_positions) or 2**31

    def bind(self, target: Target) -> DraftHeads:
        """Move to the target's device and dtype and borrow what the file does not hold.

        Raises:
            ArtefactError: widths or vocabularies that do not fit.
        """
        if self.shape.lm_heads == "target" and not self.shape.reduced and not self.shape.vocabulary:
            self.shape = replace(self.shape, vocabulary=target.vocab_size)  # published files do not say it
        shape = self.shape
        if shape.hidden_size != target.hidden_size:
            raise ArtefactError(
                f"the heads are {shape.hidden_size} wide and {target.name} is {target.hidden_size} wide.",
                "They were made for another model.",
            )
        largest = shape.vocabulary if self.draft_ids is None else int(self.draft_ids.max()) + 1
        if largest > target.vocab_size or (not shape.reduced and shape.vocabulary != target.vocab_size):
            raise ArtefactError(
                f"the heads guess among {largest} tokens and {target.name} has {target.vocab_size}.",
                "They were made for another vocabulary, or lack the map of a reduced one.",
            )
        if self.prefix is not None:
            self.prefix.complete(*target.layer_shape)
            self.shape = replace(shape, prefix=self.prefix.shape)
        self.to(target.device, target.dtype)
        # Detached, because a module would take a Parameter for its own and convert or save it.
        self._embedding = target.embedding.weight.detach()
        if shape.lm_heads == "target":
            borrowed = [None if part is None else part.detach() for part in (target.lm_head.weight, target.lm_head.bias)]
            if self.draft_ids is not None:
                borrowed = [None if part is None else part[self.draft_ids] for part in borrowed]
            self._borrowed = (borrowed[0], borrowed[1])
        return self

    def pack(self) -> DraftHeads:
        """Pack the weights for decoding, where the CPU gains by it; bound heads only, and for good."""
        weight = self._borrowed[0] if self._borrowed is not None else None
        if self._embedding is not None and can_pack(self._embedding.device, self._embedding.dtype):
            pack_linears(self)
            self._packed = None if weight is None else pack(weight)
        return self

    def new_memory(self, capacity: int) -> KVCache | None:
        """What `read` keeps of a text of at most `capacity` tokens; None for heads that look at one state alone."""
        return None if self.prefix is None else KVCache(1, capacity)

    def read(self, hidden: Tensor, start: int | Tensor = 0, memory: KVCache | None = None) -> Tensor:
        """What guesses start from, for consecutive tokens: the target's states, behind the prefix layer where there is one.

        Args:
            hidden: the target's true states, `[rows, hidden]` or `[batch, rows, hidden]`.
            start: position of the first row, and how many rows the memory holds; a number, or int64 `[1]`.
            memory: of `new_memory`; rows from `start` on are written anew. None for a whole text at once.
        """
        if self.prefix is None:
            return hidden
        return self.prefix(hidden, start, memory) if hidden.ndim == 3 else self.prefix(hidden[None], start, memory)[0]

    def start(self, hidden: Tensor, root: Tensor) -> Tensor:
        """Context of the first head.

        Args:
            hidden: what `read` gave for the state that chose the root, `[rows, hidden]`.
            root: token ids, int64 `[rows]`.

        Returns:
            `[rows, 2 hidden]` for Hydra, `[rows, hidden]` for Medusa.
        """
        return self.extend(hidden, root)

    def extend(self, context: Tensor, tokens: Tensor) -> Tensor:
        """Context after one more token, `[rows, width + hidden]` for Hydra; Medusa heads do not look at tokens."""
        if not self.sequential:
            return context
        assert self._embedding is not None, "bind the heads to a target first"
        return torch.cat((context, F.embedding(tokens, self._embedding)), -1)

    def states(self, level: int, context: Tensor) -> Tensor:
        """What head `level` hands to its LM head, `[rows, hidden]`."""
        return self.heads[level](context)

    def logits(self, level: int, context: Tensor) -> Tensor:
        """Logits of head `level` over its vocabulary, `[rows, vocabulary]`."""
        states = self.states(level, context)
        if self._packed is not None and self._borrowed is not None:
            return packed_linear(states, self._packed, self._borrowed[1])
        if self._borrowed is not None:
            return F.linear(states, *self._borrowed)
        return self.lm_heads[level if self.shape.lm_heads == "own" else 0](states)

    def lm_weight(self) -> Tensor:
        """Rows of the target's LM head that these heads borrow, `[vocabulary, hidden]`."""
        assert self._borrowed is not None, "these heads have an LM head of their own, or are not bound"
        return self._borrowed[0]

    def to_target_ids(self, guesses: Tensor) -> Tensor:
        """Target token ids of indices into the draft vocabulary."""
        return guesses if self.draft_ids is None else self.draft_ids[guesses]
