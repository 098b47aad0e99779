"""Text for many prompts at once, greedy or sampled: what self-rollouts and distillation read.

Plain batched autoregressive decoding, made for throughput. It knows nothing of heads or trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from entmtp_calib.engine.acceptance import GREEDY, Exact
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target

POSITIONS = 1 << 15
"""Most positions of a batch, all rows together: what keeps the cache of long prompts small."""
_SHRINK_AT = 0.75  # drop finished rows from the cache when fewer than this share still write


@torch.inference_mode()
def write(
    target: Target,
    prompts: Sequence[Sequence[int]],
    stop: StopRule,
    batch: int = 32,
    rule: Exact = GREEDY,
    seeds: Sequence[int] | None = None,
    positions: int = POSITIONS,
) -> Iterator[tuple[int, list[int]]]:
    """Continue every prompt.

    Prompts of like length share a batch. Rows are padded on the left; padding is masked and has no position.

    Args:
        prompts: token ids of each prompt, none empty.
        stop: when a text ends.
        batch: most rows that run together.
        rule: how tokens are chosen.
        seeds: one for every prompt, in place of the rule's.
        positions: most positions of a batch, padding and new tokens included; a longer prompt runs alone.

    Yields:
        `(index of the prompt, its new token ids)`, a batch at a time, in the order of their lengths.

    Raises:
        UsageError: a token id that the target does not have.
    """
    for ids in prompts:
        target.check(ids)
    for members in _batches([len(ids) for ids in prompts], batch, positions, stop.max_new_tokens):
        own = [seeds[i] if seeds else rule.seed for i in members]
        texts = _Batch(target, [prompts[i] for i in members], stop, rule, own).run()
        yield from zip(members, texts, strict=True)


def _batches(lengths: Sequence[int], rows: int, positions: int, new: int) -> Iterator[list[int]]:
    """Prompts in the order of their lengths, cut so that no batch has more rows or positions than may be."""
    members: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if len(members) == rows or (members and (len(members) + 1) * (lengths[index] + new) > positions):
            yield members
            members = []
        members.append(index)
    if members:
        yield members


class _Batch:
    """One batch in flight: the cache, the padding and the texts so far."""

    def __init__(self, target: Target, prompts: list[Sequence[int]], stop: StopRule, rule: Exact, seeds: list[int]) -> None:
        self.target = target
        self.rule = rule
        self.seeds = torch.tensor(seeds, device=target.device)
        self.stop = stop
        self.width = max(len(prompt) for prompt in prompts)
        self.pads = torch.tensor([self.width - len(prompt) for prompt in prompts], device=target.device)
        self.ids = torch.tensor([[0] * (self.width - len(prompt)) + list(prompt) for prompt in prompts], device=target.device)
        self.cache = target.new_cache(self.width + stop.max_new_tokens)
        self.texts: list[list[int]] = [[] for _ in prompts]
        self.live = list(range(len(prompts)))
        self.over: set[int] = set()

    def run(self) -> list[list[int]]:
        tokens = self._forward(self.ids, torch.arange(self.width, device=self.target.device), self.cache)
        column = self.width
        while True:
            done = set()
            for row, token in enumerate(tokens.tolist()):
                text = self.texts[self.live[row]]
                if self.live[row] in self.over:
                    done.add(row)
                    continue
                kept, reason = self.stop.cut(text, [token])
                text.extend(kept)
                if reason:
                    done.add(row)
                    self.over.add(self.live[row])
            if len(done) == len(self.live):
                return self.texts
            if len(done) > (1 - _SHRINK_AT) * len(self.live):
                tokens = self._drop(done, tokens)
            slot = torch.tensor([column], device=self.target.device)
            tokens = self._forward(tokens[:, None], slot, self.cache)
            column += 1

    def _forward(self, ids: Tensor, slots: Tensor, cache: KVCache) -> Tensor:
        """Next token of every row after writing `ids` at `slots`."""
        span = int(slots[-1]) + 1
        columns = torch.arange(span, device=ids.device)
        causal = columns[None, None, :] <= slots[None, :, None]
        real = columns[None, None, :] >= self.pads[:, None, None]
        own = columns[None, None, :] == slots[None, :, None]  # padding looks at itself, or softmax has nothing
        positions = (slots[None, :] - self.pads[:, None]).clamp(min=0)
        cache.place(slots, span)
        out = self.target.forward(ids, (causal & real | own)[:, None], positions, cache, keep=1)
        return self.rule.pick(out.logits[:, -1], positions[:, -1] + 1, self.seeds)

    def _drop(self, done: set[int], tokens: Tensor) -> Tensor:
        kept = [row for row in range(len(self.live)) if row not in done]
        rows = torch.tensor(kept, device=tokens.device)
        self.live = [self.live[row] for row in kept]
        self.pads = self.pads[rows]
        self.seeds = self.seeds[rows]
        self.cache.select(rows)
        return tokens[rows]
