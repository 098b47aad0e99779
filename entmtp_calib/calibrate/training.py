"""Training heads on the target's states.

A batch is a set of texts; its members depend on (seed, step) alone and a checkpoint holds everything that moves, so a killed
training goes on to the same weights. Knows states and heads; nothing of prompts or tokenizers.
"""

from __future__ import annotations

import io
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from entmtp_calib.calibrate.losses import collate, head_losses
from entmtp_calib.calibrate.states import StateFiles
from entmtp_calib.engine.heads import DraftHeads, ResBlock
from entmtp_calib.engine.prefix import PrefixLayer
from entmtp_calib.engine.target import Target
from entmtp_calib.storage import write_atomically

_WINDOW = 512  # texts that are sorted by length together


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How heads are trained.

    steps: optimiser steps; batch: written tokens per step, rounded up to whole texts; rate: peak learning rate, reached after
    `warmup` steps, falling as a cosine to a twentieth; decay: AdamW's weight decay; dropout: share of a head's inputs that a step
    leaves out; seed: order of the texts; labels: "soft" (the target's distribution) or "hard" (the token it wrote);
    depth_weights: weight of each head's loss, the last one for all deeper; depth_shares: share of the positions that a step
    trains each head on, drawn anew every step: deeper heads count in fewer steps of a decoder and need not cost as much.
    """

    steps: int = 3000
    batch: int = 2048
    rate: float = 1e-3
    warmup: int = 100
    decay: float = 0.05
    dropout: float = 0.0
    seed: int = 0
    labels: str = "soft"
    depth_weights: tuple[float, ...] = (1.0,)
    depth_shares: tuple[float, ...] = (1.0,)
    checkpoint_every: int = 200

    def rate_at(self, step: int) -> float:
        """Learning rate of a step."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (0.05 + 0.475 * (1 + math.cos(math.pi * min(1.0, progress))))

    def weight_of(self, head: int) -> float:
        """Weight of a head's loss, heads counted from 0."""
        return self.depth_weights[min(head, len(self.depth_weights) - 1)]


def train(
    heads: DraftHeads,
    target: Target,
    states: StateFiles,
    config: TrainingConfig,
    checkpoint: Path,
    on_step: Callable[[int, list[float]], None] | None = None,
) -> float:
    """Train heads in place. They must borrow the target's LM head; the target is not changed.

    Args:
        states: all training text.
        checkpoint: file that holds progress; training goes on from it where it exists.
        on_step: called with (step, loss per head in nats) after every step.

    Returns:
        Seconds of training, those before an interruption included.
    """
    heads.float().requires_grad_(True)
    optimiser = torch.optim.AdamW(heads.parameters(), lr=config.rate, weight_decay=config.decay, betas=(0.9, 0.95))
    start, seconds = _resume(heads, optimiser, checkpoint)
    clock = time.perf_counter() - seconds
    batches = itertools.islice(schedule(states.sizes, states.lengths, config.batch, config.seed), start, config.steps)
    for step, members in enumerate(batches, start):
        for group in optimiser.param_groups:
            group["lr"] = config.rate_at(step)
        torch.manual_seed(config.seed * 1_000_003 + step)  # dropout and shares are the same after an interruption
        batch = collate([states[text] for text in members], target)
        losses = head_losses(heads, target, batch, config.labels, config.dropout, config.depth_shares)
        optimiser.zero_grad(set_to_none=True)
        torch.stack([config.weight_of(head) * loss for head, loss in enumerate(losses)]).sum().backward()
        nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        optimiser.step()
        if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps:
            _save(heads, optimiser, checkpoint, step + 1, time.perf_counter() - clock)
        if on_step:
            on_step(step + 1, [loss.item() for loss in losses])
    heads.requires_grad_(False)
    return time.perf_counter() - clock


def schedule(sizes: Sequence[int], lengths: Sequence[int], batch: int, seed: int) -> Iterator[list[int]]:
    """Texts of every step, without end: every pass takes each text once, in batches and an order of its own.

    Texts of like length go together, which saves padding; which of them meet is drawn anew in every pass.

    Args:
        sizes: written tokens of every text; lengths: all its tokens.
        batch: a step takes texts until it has this many written tokens; one step of a window may have fewer.
    """
    for number in itertools.count():
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        order = torch.randperm(len(sizes), generator=generator).tolist()
        batches: list[list[int]] = []
        for start in range(0, len(order), _WINDOW):
            batches += _cut(sorted(order[start : start + _WINDOW], key=lambda text: (lengths[text], text)), sizes, batch)
        yield from (batches[index] for index in torch.randperm(len(batches), generator=generator).tolist())


def _cut(order: Sequence[int], sizes: Sequence[int], batch: int) -> Iterator[list[int]]:
    members: list[int] = []
    total = 0
    for text in order:
        members.append(text)
        total += sizes[text]
        if total >= batch:
            yield members
            members, total = [], 0
    if members:
        yield members


def _resume(heads: DraftHeads, optimiser: torch.optim.Optimizer, checkpoint: Path) -> tuple[int, float]:
    """Take up the saved state, if there is one; steps and seconds done."""
    if not checkpoint.exists():
        return 0, 0.0
    saved = torch.load(checkpoint, weights_only=True)
    heads.load_state_dict(saved["heads"])
    optimiser.load_state_dict(saved["optimiser"])
    return int(saved["step"]), float(saved["seconds"])


def _save(heads: DraftHeads, optimiser: torch.optim.Optimizer, checkpoint: Path, step: int, seconds: float) -> None:
    buffer = io.BytesIO()
    parts = {"heads": heads.state_dict(), "optimiser": optimiser.state_dict(), "step": step, "seconds": seconds}
    torch.save(parts, buffer)
    write_atomically(checkpoint, buffer.getvalue())


def initialise(heads: DraftHeads, sample: Tensor, seed: int = 0) -> None:
    """Start every head as the identity on the target's state: it repeats the target's own opinion until it learns better.

    Args:
        sample: some of the target's states, `[n, hidden]`. They give the scale at which the prefix layer hands states on, and its
            inner norms even out their columns, a few of which are ten times larger than the rest and would drown it.
    """
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
    if heads.prefix is not None:
        _initialise_prefix(heads.prefix, sample.float(), torch.Generator().manual_seed(seed))


@torch.no_grad()
def _initialise_prefix(layer: PrefixLayer, sample: Tensor, generator: torch.Generator) -> None:
    for part in (layer.query, layer.key, layer.value, layer.gate, layer.up):
        nn.init.normal_(part.weight, std=part.in_features**-0.5, generator=generator)
    nn.init.zeros_(layer.out.weight)
    nn.init.zeros_(layer.down.weight)
    scale = sample.square().mean(-1, keepdim=True).sqrt()
    columns = (sample / scale).square().mean(0).sqrt()
    layer.final_norm.fill_(float(scale.mean()))
    layer.attention_norm.copy_(1 / columns.clamp(min=1e-3))
    layer.mlp_norm.copy_(1 / columns.clamp(min=1e-3))


def frequent_ids(texts: Iterable[Tensor], size: int, vocabulary: int) -> Tensor:
    """The `size` tokens that were written most often, most frequent first, int64 `[size]`; ties go to the smaller id.

    In this order the first n of them are the draft vocabulary of size n (after FR-Spec, arXiv 2502.14856).
    """
    counts = torch.zeros(vocabulary, dtype=torch.long)
    for tokens in texts:
        counts += torch.bincount(tokens, minlength=vocabulary)
    return counts.argsort(descending=True, stable=True)[:size]
