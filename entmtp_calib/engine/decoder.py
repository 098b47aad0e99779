"""The decoding loop, draft → choose → verify → accept → commit, and the plain autoregressive loop beside it.

Token ids in, `Step`s out. Rollouts, recalibration, timing, verification and `decode` all iterate these two functions. Knows no
text, files or tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from entmtp_calib.engine.acceptance import GREEDY, Accepted, Rule, accept
from entmtp_calib.engine.drafter import Draft, Drafter, draft_tree, top_logp
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.policy import Policy
from entmtp_calib.signals import compute_signal, signal_depth
from entmtp_calib.topology import Topology, chain, union

NO_ROOM = -1
"""`Step.index` when the context had no room for the chosen tree and the step went on without one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the root and the drafts that were accepted behind it.

    tokens: committed ids, root first, nothing after an end token or past the cap; accepted: committed drafts, `len(tokens) - 1`;
    index: tree of the bank that was verified; signal: what the policy read, NaN if it reads nothing;
    reason: "end", "stop" or "length" on the last step, else "".
    """

    tokens: tuple[int, ...]
    accepted: int
    index: int
    signal: float
    reason: str = ""


class _Root(NamedTuple):
    """What the target says at the front of the text.

    token: its next token, int64 `[1]`; logp: log of its top-1 probability; hidden: what drafts start from, `[1, hidden]`;
    position: where the token goes, int64 `[1]`.
    """

    token: Tensor
    logp: Tensor
    hidden: Tensor
    position: Tensor


class Generation(NamedTuple):
    """A text after its prefill: its caches (the target's, the drafter's), committed length, stop rule and first root."""

    cache: KVCache
    memory: KVCache | None
    length: int
    stop: StopRule
    root: _Root


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

    Raises:
        ArtefactError: a tree deeper than the heads, or a rank beyond their vocabulary.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        topologies: Sequence[Topology],
        policy: Policy,
        signal: str | None = None,
        rule: Rule = GREEDY,
    ) -> None:
        self.target = target
        self.rule = rule
        self.drafter = drafter
        self.policy = policy
        self.signal = None if len(policy.members) == 1 else signal
        self.signal_depth = signal_depth(self.signal) if self.signal else 0
        self.layouts = {index: TreeLayout(topologies[index], target.device) for index in policy.members}
        self.bare = TreeLayout(Topology(), target.device)
        drafted = union([topologies[index] for index in policy.members] + [chain(self.signal_depth)])
        check_depth(drafted, drafter)
        self.drafted = TreeLayout(drafted, target.device)
        self.reader = drafter if self.drafted.levels else None
        self.max_positions = min(target.max_positions, self.reader.max_positions if self.reader else target.max_positions)
        self.rows = {index: layout.rows_in(self.drafted) for index, layout in self.layouts.items()}
        self.rows[NO_ROOM] = torch.zeros(1, dtype=torch.long, device=target.device)

    def steps(self, prompt: Sequence[int], stop: StopRule) -> Iterator[Step]:
        """Decode one text.

        Args:
            prompt: token ids, at least one, fewer than the model's positions.
            stop: when the text ends; the cap is lowered to what the context holds.

        Raises:
            UsageError: a prompt that is empty or fills the context.
        """
        return self.resume(self.begin(prompt, stop))

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], stop: StopRule) -> Generation:
        """Prefill: all that happens before the first draft."""
        stop = fit(stop, len(prompt), self.target)
        capacity = len(prompt) + stop.max_new_tokens + self.drafted.rows
        cache = self.target.new_cache(capacity)
        memory = self.reader.new_memory(capacity) if self.reader else None
        out = self.target.prefill(torch.tensor([list(prompt)], device=self.target.device), cache)
        states = self.read(out.hidden[0], 0, memory)
        token = self.rule.choose(self.bare, out.logits[0, -1:], len(prompt) - 1)
        root = self._root(out.logits[0, -1], states[-1], token, self.bare.depths + len(prompt))
        return Generation(cache, memory, len(prompt), stop, root)

    @torch.inference_mode()
    def resume(self, generation: Generation) -> Iterator[Step]:
        """The loop; it may be left after any step."""
        cache, memory, length, stop, root = generation
        text, index = list[int](), self.policy.members[0]
        draft = self.draft(root)
        token, _path, signal = self.fetch(root, draft, None)
        while True:
            index = self.policy.next(index, signal)
            tokens, reason = stop.cut(text, [token])
            if reason:  # nothing need be verified behind it
                yield Step(tuple(tokens), 0, index, signal, reason)
                return
            fits = length + self.layouts[index].depth < self.max_positions
            chosen = index if fits else NO_ROOM
            accepted, root = self.verify(chosen, draft, length, cache, memory)
            cache.commit(length, accepted.path)
            tree, draft = draft, self.draft(root)
            first, (token, path, next_signal) = token, self.fetch(root, draft, (tree.tokens[self.rows[chosen]], accepted))
            tokens, reason = stop.cut(text, [first, *path])
            yield Step(tuple(tokens), len(tokens) - 1, chosen, signal, reason)
            if reason:
                return
            text += tokens
            length, signal = length + len(tokens), next_signal

    def draft(self, root: _Root) -> Draft:
        """Guesses for every tree that the policy may choose, and the confidence along the greedy chain."""
        if self.reader is None:
            return Draft(root.token, root.logp.new_zeros(0))
        return draft_tree(
            self.reader, self.drafted, root.hidden, root.token, self.signal_depth > 0, self.rule.ranking, root.position
        )

    def read(self, hidden: Tensor, start: int, memory: KVCache | None) -> Tensor:
        """What the drafter makes of the target's states at consecutive positions, `[rows, hidden]`."""
        return hidden if self.reader is None else self.reader.read(hidden, start, memory)

    def verify(self, index: int, draft: Draft, length: int, cache: KVCache, memory: KVCache | None) -> tuple[Accepted, _Root]:
        """One forward of the root and the chosen tree's nodes; the accepted path and the next root.

        The drafter reads the states along the path, which are true ones; rows behind the accepted part are written over by the
        next step's.
        """
        layout = self.bare if index == NO_ROOM else self.layouts[index]
        tokens = draft.tokens[self.rows[index]]
        slots = torch.arange(length, length + layout.rows, device=tokens.device)
        cache.place(slots, length + layout.rows)
        seen = layout.mask.new_ones(layout.rows, length)
        mask = torch.cat((seen, layout.mask), 1)[None, None]
        out = self.target.forward(tokens[None], mask, (layout.depths + length)[None], cache)
        logits = out.logits[0]
        choices = self.rule.choose(layout, logits, length)
        accepted = self.accept(layout, tokens, *self.rule.judge(layout, tokens, logits, choices))
        states = self.read(out.hidden[0].index_select(0, accepted.path), length, memory)
        position = accepted.length.reshape(1) + length + 1
        return accepted, self._root(logits[accepted.row], states[accepted.length], choices[accepted.row], position)

    def accept(self, layout: TreeLayout, tokens: Tensor, right: Tensor, score: Tensor | None) -> Accepted:
        """The path that this step commits."""
        return accept(layout, right, score)

    def fetch(self, root: _Root, draft: Draft, done: tuple[Tensor, Accepted] | None) -> tuple[int, list[int], float]:
        """The step's one transfer to the host.

        Returns:
            The next root's id, the ids of the drafts just accepted, and the signal for the next choice.
        """
        bits = torch.cat((root.logp.reshape(1), draft.chain_logp)).view(torch.int32).long()
        parts = [root.token, bits]
        if done is not None:
            tokens, accepted = done
            parts += [accepted.length.reshape(1), tokens[accepted.path]]
        values = torch.cat(parts).cpu().numpy()
        floats = values[1 : 1 + bits.shape[0]].astype(np.int32).view(np.float32)
        rest = values[1 + bits.shape[0] :]
        path = rest[2 : 2 + int(rest[0])].tolist() if done is not None else []
        signal = float(compute_signal(self.signal, floats[0], floats[1:])) if self.signal else float("nan")
        return int(values[0]), path, signal

    def dummy_root(self) -> _Root:
        """A root to time drafts with."""
        device = self.target.device
        hidden = torch.zeros(1, self.target.hidden_size, dtype=self.target.dtype, device=device)
        return _Root(self.bare.depths, torch.zeros((), device=device), hidden, self.bare.depths)

    def _root(self, logits: Tensor, hidden: Tensor, token: Tensor, position: Tensor) -> _Root:
        logp = top_logp(logits) if self.signal else hidden.new_zeros((), dtype=torch.float32)
        return _Root(token.reshape(1), logp, hidden.reshape(1, -1), position)


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


def fit(stop: StopRule, prompt_length: int, target: Target) -> StopRule:
    """Lower the cap so that the text stays within the model's positions.

    Raises:
        UsageError: a prompt that is empty or leaves no room, or a cap below 1.
    """
    if prompt_length < 1:
        raise UsageError("the prompt is empty.", "Give at least one token.")
    if stop.max_new_tokens < 1:
        raise UsageError(f"the cap on new tokens is {stop.max_new_tokens}.", "Ask for at least 1.")
    room = target.max_positions - prompt_length
    if room < 1:
        raise UsageError(
            f"the prompt has {prompt_length} tokens and {target.name} takes {target.max_positions}.", "Shorten the prompt."
        )
    return replace(stop, max_new_tokens=min(stop.max_new_tokens, room))


def check_depth(topology: Topology, drafter: Drafter | None) -> None:
    """Refuse a tree that the heads cannot fill.

    Raises:
        ArtefactError: deeper than the number of heads, or no heads at all.
    """
    if topology.depth and drafter is None:
        raise ArtefactError("the tree has nodes and no heads were given.", "Give --heads.")
    if drafter is not None and topology.depth > drafter.depth:
        raise ArtefactError(
            f"the tree is {topology.depth} deep and there are {drafter.depth} heads.", "Use a shallower tree or other heads."
        )
    vocabulary = drafter.vocabulary if drafter is not None else 0
    if topology.max_rank >= vocabulary > 0:
        raise ArtefactError(
            f"the tree asks for guess {topology.max_rank} of a head that has {vocabulary} tokens to guess.",
            "Use a narrower tree.",
        )
