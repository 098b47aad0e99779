"""A decoded prompt told step by step: the tree and why it, the guesses, and what became of them.

Runs the decoder and keeps what it saw; draws nothing and prints nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from entmtp_calib.bank import TopologyBank
from entmtp_calib.engine.acceptance import Accepted, rule_from
from entmtp_calib.engine.decoder import Decoder, Step
from entmtp_calib.engine.layout import Rows
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.policy import Dynamic, Hysteresis, Ladder, Policy
from entmtp_calib.text_stream import TextStream
from entmtp_calib.topology import Node


@dataclass(frozen=True, slots=True)
class Guess:
    """A node of the tree with its guess; right: the target would have it after this very parent; accepted: it was committed."""

    node: Node
    token: int
    text: str
    right: bool
    accepted: bool


@dataclass(frozen=True, slots=True)
class ToldStep:
    """A step of the decoder, in tokens and in words.

    number: from 1; tree: label; signal: what the policy read, None if it reads nothing; why: why this tree; root: the token that
    the target itself had chosen; guesses: of the verified tree, empty where none was verified; text: what the step committed,
    `accepted` drafts behind the root; next: the token that the target chose behind them, None where the text ends; ending: why
    no further guess was accepted, "" if there was none.
    """

    number: int
    tree: str
    nodes: int
    signal: float | None
    why: str
    root: str
    guesses: tuple[Guess, ...]
    accepted: int
    text: str
    next: str | None
    ending: str


@dataclass(frozen=True, slots=True)
class Narration:
    """The first steps of a text, and the whole text.

    signal: what the policy reads, None if it has no choice; text: without special tokens; steps, tokens: of the whole text;
    reason: how it ended.
    """

    policy: str
    signal: str | None
    told: tuple[ToldStep, ...]
    text: str
    steps: int
    tokens: int
    reason: str


class _Witness(Decoder):
    """A decoder that remembers what the last verification saw.

    Attributes:
        seen: nodes, their tokens, and whether each is right after its parent; None if nothing was verified.
    """

    seen: tuple[tuple[Node, ...], list[int], list[bool]] | None = None

    def accept(self, layout: Rows, tokens: Tensor, right: Tensor, score: Tensor | None) -> Accepted:
        self.seen = (layout.nodes(), tokens[1:].tolist(), right[1:].tolist())
        return super().accept(layout, tokens, right, score)


def narrate(
    pair: Pair, bank: TopologyBank, policy: str, ids: Sequence[int], stop: StopRule, limit: int, seed: int = 0
) -> Narration:
    """Decode a prompt with a policy of a bank and tell its first steps.

    Args:
        ids: the prompt; limit: how many steps to tell; the text is written to its end in any case.

    Raises:
        UsageError: no such policy, or a prompt that does not fit.
    """
    chosen = bank.policy(policy)
    decoder = _Witness(pair.target, pair.heads, bank.topologies, chosen, bank.signal, rule_from(bank.acceptance, seed))
    told: list[ToldStep] = []
    steps: list[Step] = []
    for step in decoder.steps(ids, stop):
        if told and len(steps) == len(told):  # only now it is known what the target chose behind the last step
            told[-1] = _continued(told[-1], _text(pair, step.tokens[:1]), decoder.rule.lossless)
        if len(told) < limit:
            why = explain_choice(chosen, step.signal, first=not told)
            told.append(_tell(pair, bank.choices(chosen), len(told) + 1, step, decoder.seen, why))
        steps.append(step)
        decoder.seen = None
    name = bank.recommended if policy == "auto" else policy
    signal = None if decoder.signal is None else str(decoder.signal)
    stream = TextStream(pair.tokenizer)
    text = "".join([*(stream.push(step.tokens) for step in steps), stream.finish()])
    return Narration(name, signal, tuple(told), text, len(steps), sum(len(step.tokens) for step in steps), steps[-1].reason)


def explain_choice(policy: Policy, signal: float, first: bool = False) -> str:
    """Why a policy takes the tree that it takes, in words; "" where it has no choice."""
    if len(policy.members) == 1:
        return ""
    if isinstance(policy, Hysteresis):
        if signal >= policy.on:
            return f"at least {policy.on:.3g}"
        if signal < policy.off:
            return f"below {policy.off:.3g}"
        then = "where a text begins with this tree" if first else "so the tree stays"
        return f"between {policy.off:.3g} and {policy.on:.3g}, {then}"
    if isinstance(policy, Ladder | Dynamic):
        place = bisect_right(policy.edges, signal)
        bounds = [f"at least {edge:.3g}" for edge in policy.edges[:place][-1:]]
        return " and ".join(bounds + [f"below {edge:.3g}" for edge in policy.edges[place:][:1]])
    return ""


def _tell(pair: Pair, choices: Sequence[tuple[str, int]], number: int, step: Step, seen: Any, why: str) -> ToldStep:
    label, nodes = choices[step.index] if step.index >= 0 else ("none", 0)
    return ToldStep(
        number=number, tree=label, nodes=nodes,
        signal=None if math.isnan(step.signal) else step.signal,
        why=why if step.index >= 0 else "the context has no room for a tree",
        root=_text(pair, step.tokens[:1]),
        guesses=_guesses(seen, step, lambda token: _text(pair, [token])) if seen else (),
        accepted=step.accepted, text=_text(pair, step.tokens), next=None,
        ending={"end": "the text ends here", "stop": "the text ends at a stop text", "length": "the text may not be longer"}.get(
            step.reason, ""),
    )  # fmt: skip


def _guesses(seen: tuple[tuple[Node, ...], list[int], list[bool]], step: Step, text: Callable[[int], str]) -> tuple[Guess, ...]:
    """Guesses in the order (depth, ranks); the accepted ones are the right ones that spell the committed tokens."""
    path: list[Node] = [()]
    found = []
    for node, token, right in zip(*seen, strict=True):
        depth = len(node)
        taken = right and depth == len(path) <= step.accepted and node[:-1] == path[-1] and token == step.tokens[depth]
        if taken:
            path.append(node)
        found.append(Guess(node, token, text(token), right, taken))
    return tuple(found)


def _continued(step: ToldStep, token: str, lossless: bool) -> ToldStep:
    """The step with what came behind it and why that was no guess."""
    path = next((guess.node for guess in reversed(step.guesses) if guess.accepted), ())
    offered = sum(guess.node[:-1] == path for guess in step.guesses)
    if not offered:
        ending = "the tree ends here" if step.guesses else ""
    elif lossless:
        ending = "the only guess was wrong" if offered == 1 else f"none of {offered} guesses was that"
    else:
        ending = ("the only guess was not" if offered == 1 else f"none of {offered} guesses was") + " likely enough"
    return replace(step, next=token, ending=ending)


def _text(pair: Pair, tokens: Sequence[int]) -> str:
    return str(pair.tokenizer.decode(list(tokens)))


def guesses_along(step: ToldStep) -> list[tuple[Guess, ...]]:
    """The guesses that counted, level by level: the children of the root and of every accepted guess."""
    levels, parent = [], list[int]()
    while children := tuple(guess for guess in step.guesses if guess.node[:-1] == tuple(parent)):
        levels.append(children)
        taken = [guess for guess in children if guess.accepted]
        if not taken:
            break
        parent = list(taken[0].node)
    return levels
