"""The decoding loop, draft → choose → verify → accept → commit, and the plain autoregressive loop beside it.

Token ids in, `Step`s out. Rollouts, recalibration, timing, verification and `decode` all iterate these two functions. Knows no
text, files or tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from entmtp_calib.engine.acceptance import GREEDY, Accepted, Rule, accept
from entmtp_calib.engine.context import Context
from entmtp_calib.engine.drafter import Draft, Drafter, draft_tree, entropy_of, top_logp
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.layout import Rows, TreeLayout
from entmtp_calib.engine.limits import check_depth, fit
from entmtp_calib.engine.parts import by_value, drafted_for, parts_of
from entmtp_calib.engine.sight import seen
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.guard import OFF, Guard
from entmtp_calib.policy import Dynamic, Policy
from entmtp_calib.signals import Memory, Signal
from entmtp_calib.topology import Topology

NO_ROOM = -1
"""`Step.index` when the context had no room for the chosen tree and the step went on without one."""
HELD = -2
"""`Step.index` when the guard held trees back and the step went on without one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the root and the drafts that were accepted behind it.

    tokens: committed ids, root first, nothing after an end token or past the cap; accepted: committed drafts, `len(tokens) - 1`;
    index: what the policy chose, NO_ROOM or HELD; signal: what the policy read, NaN if it reads nothing;
    reason: "end", "stop" or "length" on the last step, else "".
    """

    tokens: tuple[int, ...]
    accepted: int
    index: int
    signal: float
    reason: str = ""


class Root(NamedTuple):
    """What the target says at the front of the text.

    token: its next token, int64 `[1]`; certainty: float32 `[2]`, log of its top-1 probability and, if the signal reads it, its
    entropy in nats; hidden: what drafts start from, `[1, hidden]`; position: where the token goes, int64 `[1]`.
    """

    token: Tensor
    certainty: Tensor
    hidden: Tensor
    position: Tensor


class Generation(NamedTuple):
    """A text after its prefill: its caches with the prompt in them, stop rule and first root."""

    context: Context
    stop: StopRule
    root: Root


class Decoder:
    """Tree decoding with a policy over a bank of topologies.

    Holds no state of any text: `steps` can run many times, also interleaved.

    Args:
        target: the model.
        drafter: heads bound to it; may be None if no topology has a node.
        topologies: the bank.
        policy: chooses among them at every step.
        signal: what the policy reads; ignored by static policies.
        rule: how tokens are chosen and nodes accepted.
        guard: holds trees back while they are slower than plain decoding; None to trust them.
        clock: where the guard reads seconds.

    Raises:
        ArtefactError: a tree deeper than the heads, or a rank beyond their vocabulary.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        topologies: Sequence[Topology],
        policy: Policy,
        signal: Signal | str | None = None,
        rule: Rule = GREEDY,
        guard: Guard | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.target, self.drafter, self.policy, self.rule = target, drafter, policy, rule
        self.guard, self.clock = guard, clock
        signal = Signal(signal) if isinstance(signal, str) else signal
        self.signal = None if len(policy.members) == 1 else signal
        self.signal_depth = self.signal.depth if self.signal else 0
        self.bare = TreeLayout(Topology(), target.device)
        drafted = drafted_for(policy, topologies, self.signal_depth)
        check_depth(drafted, drafter)
        self.drafted = TreeLayout(drafted, target.device)
        self.layouts, self.rows = parts_of(policy, topologies, self.drafted)
        self.most = max(policy.sizes) if isinstance(policy, Dynamic) else 0
        self.reader = drafter if self.drafted.levels else None
        self.max_positions = min(target.max_positions, self.reader.max_positions if self.reader else target.max_positions)
        self.rows[NO_ROOM] = self.rows[HELD] = torch.zeros(1, dtype=torch.long, device=target.device)

    def new_context(self) -> Context:
        """Empty caches, for texts that share their beginning."""
        return Context(self.target, self.reader)

    def steps(self, prompt: Sequence[int], stop: StopRule, context: Context | None = None) -> Iterator[Step]:
        """Decode one text.

        Args:
            prompt: token ids, at least one, fewer than the model's positions.
            stop: when the text ends; the cap is lowered to what the context holds.
            context: of `new_context`, for one text at a time; what it holds of the prompt is not computed again.

        Raises:
            UsageError: a prompt that is empty or fills the context.
        """
        return self.resume(self.begin(prompt, stop) if context is None else self.reopen(context, prompt, stop))

    def begin(self, prompt: Sequence[int], stop: StopRule) -> Generation:
        """Prefill: all that happens before the first draft."""
        return self.reopen(self.new_context(), prompt, stop)

    @torch.inference_mode()
    def reopen(self, context: Context, prompt: Sequence[int], stop: StopRule) -> Generation:
        """Prefill what the context does not hold yet."""
        stop = fit(stop, len(prompt), self.target)
        kept = context.keep(prompt, len(prompt) + stop.max_new_tokens + self.drafted.rows)
        out = self.target.prefill(torch.tensor([list(prompt)[kept:]], device=self.target.device), context.cache, kept)
        states = self.read(out.hidden[0], kept, context.memory)
        context.ids += prompt[kept:]
        token = self.rule.choose(self.bare, out.logits[0, -1:], len(prompt) - 1)
        return Generation(context, stop, self._root(out.logits[0, -1], states[-1], token, self.bare.depths + len(prompt)))

    @torch.inference_mode()
    def resume(self, generation: Generation) -> Iterator[Step]:
        """The loop; it may be left after any step."""
        context, stop, root = generation
        text, index, watch = list[int](), self.policy.members[0], self.guard.start() if self.guard else OFF
        held = watch.held
        draft = self.draft(root, held)
        token, _path, value = self.fetch(root, draft, None)
        recall = Memory(self.signal) if self.signal else None
        before: int | None = None  # drafts that the last step with a draft committed
        while True:
            start, length, signal = self.clock(), len(context.ids), value
            if not held:
                signal = float(recall.read(value, before)) if recall else value
                index = self.policy.next(index, signal)
            chosen = self.fitting(index, length, held)
            tokens, reason = stop.cut(text, [token])
            if reason:  # nothing need be verified behind it
                yield Step(tuple(tokens), 0, chosen, signal, reason)
                return
            accepted, root = self.verify(chosen, draft, length, context.cache, context.memory)
            done = (draft.tokens[self.rows[chosen]], accepted)
            held = watch.held or length + 1 >= self.max_positions  # said before this step's end, since drafting comes first
            draft = self.draft(root, held)
            first, (token, path, value) = token, self.fetch(root, draft, done)
            context.ids += (first, *path)
            tokens, reason = stop.cut(text, [first, *path])
            watch = watch.after(len(path) + 1, self.clock() - start, chosen >= 0)
            yield Step(tuple(tokens), len(tokens) - 1, chosen, signal, reason)
            if reason:
                return
            text += tokens
            before = len(path) if chosen >= 0 else before

    def fitting(self, index: int, length: int, held: bool) -> int:
        """The tree that a step verifies: `index` if there is room for it and nothing holds it back."""
        if not held and length + self.layouts[index].depth < self.max_positions:
            return index
        return HELD if held and length + 1 < self.max_positions else NO_ROOM

    def draft(self, root: Root, held: bool = False) -> Draft:
        """Guesses for all that the policy may choose, and the confidence along their chain; the root alone if held."""
        if self.reader is None or held:
            return Draft(root.token, root.certainty.new_zeros(0))
        confidence, dynamic = self.signal_depth > 0, self.most > 0
        draft = draft_tree(
            self.reader, self.drafted, root.hidden, root.token, confidence, self.rule.ranking, root.position, dynamic
        )
        return by_value(draft, self.most) if dynamic else draft

    def read(self, hidden: Tensor, start: int | Tensor, memory: KVCache | None) -> Tensor:
        """What the drafter makes of the target's states at consecutive positions, `[rows, hidden]`."""
        return hidden if self.reader is None else self.reader.read(hidden, start, memory)

    def verify(self, index: int, draft: Draft, length: int, cache: KVCache, memory: KVCache | None) -> tuple[Accepted, Root]:
        """One forward of the root and the chosen nodes; the accepted path, committed, and the next root."""
        return self.advance(self.layout(index, draft), draft.tokens[self.rows[index]], length, cache, memory)

    def advance(
        self, layout: Rows, tokens: Tensor, length: int | Tensor, cache: KVCache, memory: KVCache | None
    ) -> tuple[Accepted, Root]:
        """What `verify` does with the tokens of a tree's rows, int64 `[rows]`.

        The drafter reads the states along the path, which are true ones; rows behind the accepted part are written over by the
        next step's. Nothing here reads a value back from the device.

        Args:
            length: tokens before the root. As a tensor, int64 `[1]`, no shape depends on it: attention goes over the whole
                cache and the mask hides what is not text yet.
        """
        span = length + layout.rows if isinstance(length, int) else cache.capacity
        cache.place(torch.arange(layout.rows, device=tokens.device) + length, span)
        out = self.target.forward(tokens[None], seen(layout.mask, length, span), (layout.depths + length)[None], cache)
        logits = out.logits[0]
        choices = self.rule.choose(layout, logits, length)
        accepted = self.accept(layout, tokens, *self.rule.judge(layout, tokens, logits, choices))
        states = self.read(out.hidden[0].index_select(0, accepted.path), length, memory)
        cache.commit(length, accepted.path)
        # Rows are picked with tensors of one element: an index without dimensions would be read back by the host.
        row, last = accepted.row.reshape(1), accepted.length.reshape(1)
        root = self._root(logits.index_select(0, row)[0], states.index_select(0, last), choices[row], last + length + 1)
        return accepted, root

    def layout(self, index: int, draft: Draft) -> Rows:
        """What the rows of a step are: fixed for a tree of the bank, the draft's own where the best nodes are taken."""
        fixed = self.layouts.get(index, self.bare)
        return fixed if draft.order is None or index < 0 else self.drafted.take(draft.order[: fixed.rows])

    def accept(self, layout: Rows, tokens: Tensor, right: Tensor, score: Tensor | None) -> Accepted:
        """The path that this step commits."""
        return accept(layout, right, score)

    def fetch(self, root: Root, draft: Draft, done: tuple[Tensor, Accepted] | None) -> tuple[int, list[int], float]:
        """The step's one transfer to the host.

        Returns:
            The next root's id, the ids of the drafts just accepted, and what the next signal has of its step alone.
        """
        bits = torch.cat((root.certainty, draft.chain_logp)).view(torch.int32).long()
        parts = [root.token, bits]
        if done is not None:
            tokens, accepted = done
            parts += [accepted.length.reshape(1), tokens[accepted.path]]
        values = torch.cat(parts).cpu().numpy()
        floats = values[1 : 1 + bits.shape[0]].astype(np.int32).view(np.float32)
        rest = values[1 + bits.shape[0] :]
        path = rest[2 : 2 + int(rest[0])].tolist() if done is not None else []
        if self.signal is None or len(floats) < 2 + self.signal_depth:
            return int(values[0]), path, float("nan")
        return int(values[0]), path, float(self.signal.at(floats[0], floats[1], floats[2:]))

    def dummy_root(self) -> Root:
        """A root to time drafts and signals with."""
        target = self.target
        sizes = target.hidden_size, target.vocab_size
        hidden, logits = (torch.zeros(1, size, dtype=target.dtype, device=target.device) for size in sizes)
        return self._root(logits[0], hidden, self.bare.depths, self.bare.depths)

    def _root(self, logits: Tensor, hidden: Tensor, token: Tensor, position: Tensor) -> Root:
        certainty = hidden.new_zeros(2, dtype=torch.float32)
        if self.signal:
            certainty = torch.stack((top_logp(logits), entropy_of(logits) if self.signal.reads_entropy else certainty[0]))
        return Root(token.reshape(1), certainty, hidden.reshape(1, -1), position)


@torch.inference_mode()
def autoregressive(target: Target, prompt: Sequence[int], stop: StopRule, rule: Rule = GREEDY) -> Iterator[Step]:
    """Plain decoding, one token per forward: the baseline of every comparison and the oracle of the tests."""
    stop = fit(stop, len(prompt), target)
    length = len(prompt)
    cache = target.new_cache(length + stop.max_new_tokens)
    out = target.prefill(torch.tensor([list(prompt)], device=target.device), cache)
    slots = torch.arange(length + stop.max_new_tokens, device=target.device)
    seen = torch.ones(1, 1, 1, slots.shape[0], dtype=torch.bool, device=target.device)
    bare = TreeLayout(Topology(), target.device)
    text: list[int] = []
    for written in range(stop.max_new_tokens):
        token = rule.choose(bare, out.logits[0, -1:], length + written - 1)
        tokens, reason = stop.cut(text, [int(token)])
        text += tokens
        yield Step(tuple(tokens), 0, 0, float("nan"), reason)
        if reason:
            return
        here = length + written
        cache.place(slots[here : here + 1], here + 1)
        out = target.forward(token[None], seen[..., : here + 1], slots[None, here : here + 1], cache)
