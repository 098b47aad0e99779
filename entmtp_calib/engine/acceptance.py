"""Acceptance rules: what the target chooses after every row, and which drafted nodes are accepted for it.

One rule object serves plain decoding, trees, rollouts and traces, so these cannot disagree. Works on logits and token ids; knows
nothing of models or caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from entmtp_calib.engine.layout import Rows
from entmtp_calib.engine.noise import Perturbation, gumbel
from entmtp_calib.errors import ArtefactError, UsageError


class Accepted(NamedTuple):
    """The accepted path.

    row: the last accepted row, int64 `[]`; length: accepted drafts, root excluded, int64 `[]`; path: rows from the root on,
    int64 `[depth + 1]`, of which the first `length + 1` count.
    """

    row: Tensor
    length: Tensor
    path: Tensor


class Rule(Protocol):
    """How tokens are chosen and nodes accepted."""

    @property
    def lossless(self) -> bool:
        """Whether the text is the one that plain decoding under the same rule writes."""
        ...

    @property
    def ranking(self) -> Perturbation | None:
        """How guesses are ranked for this rule; None for the heads' own order."""
        ...

    def about(self) -> dict[str, Any]:
        """Plain values that `rule_from` reads; seeds are no part of a rule."""
        ...

    def choose(self, layout: Rows, logits: Tensor, start: int | Tensor) -> Tensor:
        """The token after every row, int64 `[rows]`.

        Args:
            logits: `[rows, vocabulary]`; start: position of the root in the whole text, a number or int64 `[1]`.
        """
        ...

    def judge(self, layout: Rows, tokens: Tensor, logits: Tensor, choices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Whether every row is a right continuation of its parent, and what decides between right rows of one depth.

        Returns:
            bool `[rows]`, whose entry for the root counts for nothing, and float `[rows]`, None where at most one row is right.
        """
        ...


@dataclass(frozen=True, slots=True)
class Exact:
    """The token after a node is the target's own choice there, so the text is that of plain decoding.

    At temperature 0 the choice is the largest logit. Above, it is the largest of `logits / temperature + noise` among the tokens
    that the filters leave; the noise is a function of (seed, position, token), so plain decoding, every tree and every policy
    draw the same token, an exact sample of the filtered softmax.

    Args:
        top_k: keep this many tokens, 0 for all; top_p: keep the smallest set of tokens with this much probability;
        coupled: rank guesses with the same noise, which makes them agree with the draw more often; the text does not change.

    Raises:
        UsageError: a value out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    coupled: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"the temperature is {self.temperature}.", "Give 0 for greedy decoding, or a number above it.")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise UsageError(f"top-k is {self.top_k} and top-p {self.top_p}.", "top-k is 0 or more, top-p above 0 and at most 1.")
        if self.temperature == 0 and (self.top_k or self.top_p < 1):
            raise UsageError("top-k and top-p do nothing at temperature 0.", "Give a temperature, or leave them out.")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"the seed is {self.seed}.", "Give a whole number from 0 to 2^63 - 1.")

    @property
    def lossless(self) -> bool:
        return True

    @property
    def ranking(self) -> Perturbation | None:
        return Perturbation(self.temperature, self.seed) if self.temperature and self.coupled else None

    def about(self) -> dict[str, Any]:
        more = {"top_k": self.top_k, "top_p": self.top_p, "coupled": self.coupled} if self.temperature else {}
        return {"rule": "exact", "temperature": self.temperature, **more}

    def choose(self, layout: Rows, logits: Tensor, start: int | Tensor) -> Tensor:
        if not self.temperature:
            return logits.max(-1).indices
        positions = torch.arange(1, 2 + layout.depth, device=logits.device) + start  # rows of one depth share theirs
        noise = self.noise(positions, logits.shape[-1])
        return (self.filtered(logits) + noise[layout.depths]).max(-1).indices

    def pick(self, logits: Tensor, positions: Tensor, seeds: Tensor) -> Tensor:
        """One token for each of several texts, int64 `[rows]`.

        Args:
            logits: `[rows, vocabulary]`; positions: where the tokens go, int64 `[rows]`; seeds: in place of the rule's own.
        """
        if not self.temperature:
            return logits.max(-1).indices
        return (self.filtered(logits) + self.noise(positions, logits.shape[-1], seeds)).max(-1).indices

    def noise(self, positions: Tensor, vocabulary: int, seeds: Tensor | None = None) -> Tensor:
        """Noise of every token at some positions, float32 `[positions, vocabulary]`."""
        seeds = torch.full_like(positions, self.seed) if seeds is None else seeds
        return gumbel(seeds, positions, torch.arange(vocabulary, device=positions.device))

    def judge(self, layout: Rows, tokens: Tensor, logits: Tensor, choices: Tensor) -> tuple[Tensor, Tensor | None]:
        return tokens == choices[layout.parents], None  # siblings differ, so at most one path is right

    def filtered(self, logits: Tensor) -> Tensor:
        """Logits over temperature, float32, minus infinity for tokens that are filtered out."""
        wide = logits.float() / self.temperature
        if self.top_k and self.top_k < wide.shape[-1]:
            wide = wide.masked_fill(wide < wide.topk(self.top_k, -1).values[..., -1:], float("-inf"))
        if self.top_p < 1:
            ordered, order = wide.sort(dim=-1, descending=True, stable=True)
            before = ordered.softmax(-1).cumsum(-1).roll(1, -1)
            before[..., :1].fill_(0)
            dropped = torch.empty_like(before, dtype=torch.bool).scatter_(-1, order, before >= self.top_p)
            wide = wide.masked_fill(dropped, float("-inf"))
        return wide


@dataclass(frozen=True, slots=True)
class Typical:
    """The published typical acceptance (Medusa, Hydra, EntMTP): a draft is right if `p > min(epsilon, alpha · exp(-H))`.

    p is the target's probability of the draft and H its entropy in nats, both at the given temperature. The root is the largest
    logit; of the longest accepted paths the likeliest is kept. Deterministic, and not lossless: the text depends on the tree.

    Raises:
        UsageError: a temperature or bound that is not above 0.
    """

    temperature: float = 0.7
    epsilon: float = 0.09
    alpha: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf") or not 0 < self.epsilon <= 1 or not 0 < self.alpha < float("inf"):
            raise UsageError("typical acceptance needs a temperature, epsilon and alpha above 0.", "The paper's: 0.7, 0.09, 0.3.")

    @property
    def lossless(self) -> bool:
        return False

    @property
    def ranking(self) -> Perturbation | None:
        return None

    def about(self) -> dict[str, Any]:
        return {"rule": "typical", "temperature": self.temperature, "epsilon": self.epsilon, "alpha": self.alpha}

    def choose(self, layout: Rows, logits: Tensor, start: int | Tensor) -> Tensor:
        return logits.max(-1).indices

    def judge(self, layout: Rows, tokens: Tensor, logits: Tensor, choices: Tensor) -> tuple[Tensor, Tensor | None]:
        logp = (logits.float() / self.temperature).log_softmax(-1)
        entropy = -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)
        bound = torch.clamp(self.alpha * torch.exp(-entropy), max=self.epsilon)[layout.parents]
        own = logp[layout.parents, tokens]
        right = own.exp() > bound
        own[:1].fill_(0)
        return right, (layout.mask * own).sum(-1)


GREEDY = Exact()


def rule_from(about: Mapping[str, Any], seed: int = 0) -> Rule:
    """The rule that a file describes.

    Raises:
        ArtefactError: an unknown rule or field. UsageError: a value out of its range.
    """
    values = {key: value for key, value in about.items() if key != "rule"}
    try:
        if about["rule"] == "exact":
            return Exact(**values, seed=seed)
        if about["rule"] == "typical":
            return Typical(**values)
    except (KeyError, TypeError):
        pass
    raise ArtefactError(f"acceptance {dict(about)} is not known.", "Known rules: exact, typical.")


def accept(layout: Rows, right: Tensor, score: Tensor | None = None, members: Tensor | None = None) -> Accepted:
    """The longest path on which every node is right; of several, the one with the largest score, then the first.

    Args:
        right: bool `[rows]`; score: float `[rows]` or None.
        members: bool `[rows]`, rows that may be committed, a tree with its root; None for all.
    """
    reach = closure(layout, right).long() * (layout.depths + 1) - 1
    if members is not None:
        reach = reach.masked_fill(~members, -1)
    length, row = reach.max(0)
    if score is not None:
        row = score.masked_fill(reach < length, float("-inf")).max(0).indices
    return Accepted(row, length, layout.paths.index_select(0, row.reshape(1))[0])


def closure(layout: Rows, right: Tensor) -> Tensor:
    """Rows that are right and whose ancestors all are, bool `[rows]`; the root always is."""
    right = right.clone()
    right[:1].fill_(True)  # assigning to `right[0]` would copy the value from the host
    return ~(layout.mask & ~right).any(-1)
