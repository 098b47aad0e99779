"""Training heads on the target's states, against the target's own distribution.

A batch is a set of positions; its order depends on (seed, step) alone and a checkpoint holds everything that moves, so a killed
training goes on to the same weights. Knows states and heads; nothing of prompts or tokenizers.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from entmtp_calib.calibrate.states import States
from entmtp_calib.engine.heads import DraftHeads, ResBlock
from entmtp_calib.engine.target import Target
from entmtp_calib.storage import write_atomically


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How heads are trained.

    steps: optimiser steps; batch: positions per step; rate: peak learning rate, reached after `warmup` steps, falling as a
    cosine to a tenth; decay: AdamW's weight decay; seed: order of the batches.
    """

    steps: int = 3000
    batch: int = 2048
    rate: float = 1e-3
    warmup: int = 100
    decay: float = 0.05
    seed: int = 0
    checkpoint_every: int = 200

    def rate_at(self, step: int) -> float:
        """Learning rate of a step."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress))))


_BLOCK = 512


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
def _teacher(hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
    """The target's probabilities of the draft vocabulary, `[rows, vocabulary]`, in the weights' dtype."""
    found = torch.empty(len(hidden), len(weight), dtype=weight.dtype, device=weight.device)
    for block in range(0, len(hidden), _BLOCK):
        part = slice(block, block + _BLOCK)
        found[part] = F.linear(hidden[part], weight).float().sub_(norm[part, None]).exp_()
    return found


def train(
    heads: DraftHeads,
    target: Target,
    states: States,
    config: TrainingConfig,
    checkpoint: Path,
    on_step: Callable[[int, list[float]], None] | None = None,
) -> None:
    """Train heads in place. They must borrow the target's LM head; the target is not changed.

    Args:
        states: all training text.
        checkpoint: file that holds progress; training goes on from it where it exists.
        on_step: called with (step, loss per head in nats) after every step.
    """
    heads.float().requires_grad_(True).train()
    optimiser = torch.optim.AdamW(heads.parameters(), lr=config.rate, weight_decay=config.decay, betas=(0.9, 0.95))
    start = _resume(heads, optimiser, checkpoint)
    starts = _chunk_starts(states)
    for step in range(start, config.steps):
        for group in optimiser.param_groups:
            group["lr"] = config.rate_at(step)
        rows = _batch_rows(starts, len(states), config, step)
        losses = _losses(heads, target, states.part(rows))
        optimiser.zero_grad(set_to_none=True)
        torch.stack(losses).sum().backward()
        nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        optimiser.step()
        if on_step:
            on_step(step + 1, [loss.item() for loss in losses])
        if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps:
            _save(heads, optimiser, checkpoint, step + 1)
    heads.eval().requires_grad_(False)


_CHUNK = 128


def _chunk_starts(states: States) -> Tensor:
    """Where pieces of consecutive positions begin: heads look ahead, so positions come in runs."""
    return torch.arange(0, max(1, len(states) - _CHUNK), _CHUNK)


def _batch_rows(starts: Tensor, total: int, config: TrainingConfig, step: int) -> Tensor:
    """Rows of a step's batch: pieces in an order shuffled anew in every pass over the text."""
    per_step = max(1, config.batch // _CHUNK)
    per_pass = max(1, len(starts) // per_step)
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step // per_pass)
    order = torch.randperm(len(starts), generator=generator)
    at = (step % per_pass) * per_step
    first = starts[order[at : at + per_step]]
    rows = first[:, None] + torch.arange(_CHUNK)
    return rows.clamp(max=total - 1).flatten()


def _losses(heads: DraftHeads, target: Target, batch: States) -> list[Tensor]:
    """Mean loss of every head over the positions that it has a token for."""
    weight = heads.lm_weight()
    hidden = batch.hidden.to(target.device)
    tokens, left = batch.tokens.to(target.device), batch.left.to(target.device)
    teacher = _teacher(hidden, batch.norm.to(target.device), weight)
    same_piece = torch.arange(len(tokens), device=target.device) % _CHUNK
    context = heads.start(hidden.to(target.dtype), tokens)
    losses = []
    for level in range(heads.depth):
        ahead = level + 1
        known = ((left >= ahead) & (same_piece < _CHUNK - ahead)).nonzero()[:, 0]
        with torch.autocast(target.device.type, target.dtype, enabled=target.dtype != torch.float32):
            out = heads.states(level, context[known])
        loss = _FrozenHeadLoss.apply(out.to(target.dtype), weight, teacher, known + ahead)
        losses.append(loss / max(1, len(known)))
        context = heads.extend(context, tokens.roll(-ahead))
    return losses


def _resume(heads: DraftHeads, optimiser: torch.optim.Optimizer, checkpoint: Path) -> int:
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, weights_only=True)
    heads.load_state_dict(saved["heads"])
    optimiser.load_state_dict(saved["optimiser"])
    return int(saved["step"])


def _save(heads: DraftHeads, optimiser: torch.optim.Optimizer, checkpoint: Path, step: int) -> None:
    buffer = io.BytesIO()
    torch.save({"heads": heads.state_dict(), "optimiser": optimiser.state_dict(), "step": step}, buffer)
    write_atomically(checkpoint, buffer.getvalue())


def initialise(heads: DraftHeads) -> None:
    """Start every head as the identity on the target's state: it repeats the target's own opinion until it learns better."""
    for block in heads.modules():
        if isinstance(block, ResBlock):
            nn.init.zeros_(block.linear.weight)
            nn.init.zeros_(block.linear.bias)
            if isinstance(block.residual, nn.Linear):
                nn.init.zeros_(block.residual.weight)
                nn.init.zeros_(block.residual.bias)
                width = block.residual.out_features
                with torch.no_grad():
                    block.residual.weight[:, :width].copy_(torch.eye(width))


def frequent_ids(states: Sequence[States], size: int, vocabulary: int) -> Tensor:
    """The `size` tokens that were written most often, ascending ids, int64 `[size]`; ties go to the smaller id."""
    counts = torch.zeros(vocabulary, dtype=torch.long)
    for part in states:
        counts += torch.bincount(part.tokens, minlength=vocabulary)
    ids = torch.arange(vocabulary)
    key = counts * vocabulary + (vocabulary - 1 - ids)
    return key.topk(size).indices.sort().values
