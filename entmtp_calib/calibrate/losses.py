"""What heads are trained to lower: cross-entropy against the target's own distribution, or against the tokens it wrote.

Knows batches of states and heads; nothing of files, optimisers or schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from entmtp_calib.calibrate.states import TextStates
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.target import Target

_BLOCK = 512  # rows of logits that exist at a time


@dataclass(frozen=True, slots=True)
class Batch:
    """Several texts side by side.

    hidden: `[texts, longest, hidden]`, padded with zeros behind each text; rows: int64 `[n]`, which of the `texts · longest` rows
    hold written tokens, text after text; tokens: int64 `[n]`, those tokens; left: int64 `[n]`, how many tokens of the same text
    follow; norm: float32 `[n]`, see `TextStates`.
    """

    hidden: Tensor
    rows: Tensor
    tokens: Tensor
    left: Tensor
    norm: Tensor


def collate(texts: Sequence[TextStates], target: Target) -> Batch:
    """Put texts side by side on the target's device."""
    device = target.device
    hidden = torch.nn.utils.rnn.pad_sequence([text.hidden.to(device, target.dtype) for text in texts], batch_first=True)
    longest = hidden.shape[1]
    places = [torch.arange(index * longest + text.first, index * longest + len(text.tokens)) for index, text in enumerate(texts)]
    left = [torch.arange(len(text.written) - 1, -1, -1) for text in texts]
    return Batch(
        hidden,
        torch.cat(places).to(device),
        torch.cat([text.written for text in texts]).to(device),
        torch.cat(left).to(device),
        torch.cat([text.norm for text in texts]).to(device),
    )


def head_losses(
    heads: DraftHeads,
    target: Target,
    batch: Batch,
    labels: str = "soft",
    dropout: float = 0.0,
    shares: Sequence[float] = (1.0,),
) -> list[Tensor]:
    """Mean loss of every head, in nats, over the positions that it has a token for.

    Args:
        heads: they must borrow the target's LM head.
        labels: "soft" for the target's distribution, "hard" for the tokens that it wrote.
        dropout: share of every head's inputs that is left out at random.
        shares: share of the positions that each head is judged on, drawn at random; the last one for all deeper heads.
    """
    weight = heads.lm_weight()
    flat = batch.hidden.flatten(0, 1)[batch.rows]
    teacher = _soft(flat, batch.norm, weight) if labels == "soft" else _hard(batch.tokens, heads, weight)
    with torch.autocast(target.device.type, target.dtype, enabled=target.dtype != torch.float32):
        states = flat if heads.prefix is None else heads.read(batch.hidden).flatten(0, 1)[batch.rows].to(target.dtype)
    context = heads.start(states, batch.tokens)
    losses = []
    for level in range(heads.depth):
        ahead = level + 1
        known = _some((batch.left >= ahead).nonzero()[:, 0], shares[min(level, len(shares) - 1)])
        with torch.autocast(target.device.type, target.dtype, enabled=target.dtype != torch.float32):
            out = heads.states(level, F.dropout(context[known], dropout, dropout > 0))
        loss = _FrozenHeadLoss.apply(out.to(weight.dtype), weight, teacher, known + ahead)
        losses.append(loss / max(1, len(known)))
        context = heads.extend(context, batch.tokens.roll(-ahead))
    return losses


def _some(rows: Tensor, share: float) -> Tensor:
    """A share of the rows, drawn at random."""
    return rows if share >= 1 else rows[torch.randperm(len(rows))[: max(1, round(share * len(rows)))].to(rows.device)]


class _FrozenHeadLoss(torch.autograd.Function):
    """Cross-entropy against a teacher through a frozen LM head, without keeping logits for the backward pass.

    Per position: `- sum_v p(v) log q(v)` over the draft vocabulary. The teacher's mass may be below 1 where the vocabulary is
    reduced; such positions count less, which keeps q calibrated given that the token is in the vocabulary. Rows go in blocks,
    which bounds the memory for logits.

    Arguments: states `[n, hidden]`, weight `[vocabulary, hidden]`, teacher probabilities `[m, vocabulary]`, and for each state
    its row among them, int64 `[n]`. Returns the sum over states.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, teacher: Tensor, rows: Tensor) -> Tensor:
        total = states.new_zeros((), dtype=torch.float32)
        gradient = torch.empty_like(states, dtype=weight.dtype)
        for block in range(0, len(states), _BLOCK):
            part = slice(block, block + _BLOCK)
            logits = F.linear(states[part], weight).float()
            wanted = teacher[rows[part]].float()
            mass = wanted.sum(-1, keepdim=True)
            norm = logits.logsumexp(-1, keepdim=True)
            total += (mass * norm).sum() - torch.dot(wanted.flatten(), logits.flatten())
            slope = logits.sub_(norm).exp_().mul_(mass).sub_(wanted)
            torch.mm(slope.to(weight.dtype), weight, out=gradient[part])
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.saved_tensors[0] * outer[0], None, None, None


@torch.no_grad()
def _soft(hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
    """The target's probabilities of the draft vocabulary, `[rows, vocabulary]`, in the weights' dtype."""
    found = torch.empty(len(hidden), len(weight), dtype=weight.dtype, device=weight.device)
    for block in range(0, len(hidden), _BLOCK):
        part = slice(block, block + _BLOCK)
        found[part] = F.linear(hidden[part], weight).float().sub_(norm[part, None]).exp_()
    return found


def _hard(tokens: Tensor, heads: DraftHeads, weight: Tensor) -> Tensor:
    """One for the written token, `[rows, vocabulary]`; a row of zeros where it is outside the draft vocabulary."""
    ids = heads.to_target_ids(torch.arange(len(weight), device=weight.device))
    return (tokens[:, None] == ids).to(weight.dtype)
