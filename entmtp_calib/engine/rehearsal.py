"""A decoder that is dictated its guesses: the true text on one path of the tree after another, wrong tokens everywhere else.

Heads seldom guess a deep side branch, so a mask, a position or a cache row that is wrong there would go unseen for long. Here
every path has its turn, must be accepted to its end and no further, and leaves its rows in the cache. Judges nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from entmtp_calib.engine.acceptance import GREEDY, Rule
from entmtp_calib.engine.context import Context
from entmtp_calib.engine.decoder import Decoder, Root, Step
from entmtp_calib.engine.drafter import Draft, Drafter
from entmtp_calib.engine.parts import by_value
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Dynamic, Static
from entmtp_calib.topology import Node, Topology


class Rehearsal(Decoder):
    """Decodes texts that are known beforehand.

    Args:
        target, drafter, rule: as for `Decoder`; the drafter only keeps its memory.
        topology: the tree whose paths have their turns, to every node and to none, over all texts.
        best: how many of its nodes are verified at a step, the path among them and the others at random; 0 for all.

    Attributes:
        dictated: drafts that were true in every step of the last text; turn: paths that had their turn so far.
    """

    def __init__(self, target: Target, drafter: Drafter | None, topology: Topology, rule: Rule = GREEDY, best: int = 0) -> None:
        super().__init__(target, drafter, [topology], Dynamic((), (best,), topology) if best else Static(0), rule=rule)
        self.paths = [(), *(node for node in self.drafted.topology.nodes if len(node) <= (best or len(node)))]
        self.turn = 0
        self.dictated: list[int] = []
        self._text: list[int] = []
        self._start = 0

    def run(self, prompt: Sequence[int], text: Sequence[int], stop: StopRule) -> tuple[list[Step], Context]:
        """Decode a prompt whose text is known; the steps, and the caches that they leave."""
        self._text, self._start, self.dictated = list(text), len(prompt), []
        generation = self.begin(prompt, stop)
        return list(self.resume(generation)), generation.context

    def draft(self, root: Root, held: bool = False) -> Draft:
        here = int(root.position) - self._start  # place of the root in the text
        path = self.paths[self.turn % len(self.paths)]
        self.turn += 1
        tokens = [int(root.token)]
        for node in self.drafted.topology.nodes:
            place = here + len(node)
            true = self._text[place] if place < len(self._text) else 0
            right = node == path[: len(node)] and place < len(self._text)
            tokens.append(true if right else (true + 1 + node[-1]) % self.target.vocab_size)
        self.dictated.append(min(len(path), max(0, len(self._text) - 1 - here)))
        made = torch.tensor(tokens, device=self.target.device), root.certainty.new_zeros(0)
        return by_value(Draft(*made, self._values(path)), self.most) if self.most else Draft(*made)

    def _values(self, path: Node) -> Tensor:
        """Path values by which a path is taken but others may go before it, falling along every path, float32 `[rows]`."""
        rng, value, before = random.Random(self.turn), dict[Node, float]({(): 0.0}), self.most - len(path)
        for node in self.drafted.topology.nodes:
            above = value[node[:-1]]
            if node == path[: len(node)]:
                value[node] = -1.0
            elif above > -1 and before and rng.random() < 0.5:
                value[node], before = above - (1 + above) * rng.random(), before - 1
            else:
                value[node] = min(above, -1.0) - rng.random()
        return torch.tensor(list(value.values()), device=self.target.device)


@torch.inference_mode()
def cache_error(target: Target, context: Context) -> float:
    """Relative error of the keys and values of a text against those of a straight forward over it, the largest of all slots."""
    other = target.new_cache(len(context.ids))
    target.prefill(torch.tensor([context.ids], device=target.device), other)
    assert context.cache.store is not None
    assert other.store is not None
    got, wanted = (store[..., : len(context.ids), :].float() for store in (context.cache.store, other.store))
    by_slot = (0, 1, 2, 3, 5)
    scale = wanted.square().sum(by_slot).sqrt().clamp(min=1e-12)
    return float(((got - wanted).square().sum(by_slot).sqrt() / scale).nan_to_num(float("inf")).max())
