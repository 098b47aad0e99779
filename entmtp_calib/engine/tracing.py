"""Teacher forcing: one pass over a written text that tells what every head would have guessed at every position.

Token ids in, a `Trace` out. Knows nothing of trees, files or how the text came about.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from entmtp_calib.engine.drafter import Drafter, entropy_of, logp_of, top_logp
from entmtp_calib.engine.noise import Perturbation
from entmtp_calib.engine.target import Target
from entmtp_calib.evidence import Trace


@torch.inference_mode()
def trace_text(
    target: Target,
    drafter: Drafter,
    prompt_id: str,
    prompt: Sequence[int],
    text: Sequence[int],
    ranking: Perturbation | None = None,
) -> Trace:
    """Look at a written text with all heads, in one teacher-forced pass.

    Args:
        prompt: token ids before the text, at least one.
        text: the written token ids, at least one.
        ranking: how guesses are ranked, if not by the heads alone.
    """
    ids = torch.tensor([[*prompt, *text]], device=target.device)
    columns = torch.arange(ids.shape[1], device=target.device)
    keep = torch.arange(len(prompt) - 1, ids.shape[1] - 1, device=target.device)
    out = target.forward(ids, None, columns[None], keep=keep)
    logits = out.logits[0].float()
    tokens = ids[0, len(prompt) :]
    ranks, margins, chain, firsts = look(drafter, drafter.read(out.hidden[0])[keep], tokens, ranking, len(prompt))
    return Trace(
        prompt_id=prompt_id,
        tokens=tokens.cpu().numpy().astype(np.int32),
        ranks=ranks.cpu().numpy().astype(np.int32),
        margins=margins.cpu().numpy(),
        root_logp=top_logp(logits).cpu().numpy(),
        entropy=entropy_of(logits).cpu().numpy(),
        chain_logp=chain.cpu().numpy(),
        first_guesses=firsts.cpu().numpy().astype(np.int32),
    )


def look(
    drafter: Drafter, hidden: Tensor, tokens: Tensor, ranking: Perturbation | None = None, start: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ranks, margins, chain confidence and first guesses of every head at every position.

    Args:
        hidden: what the drafter read from the state that chose each token, `[n, hidden]`.
        tokens: int64 `[n]`.
        ranking: how guesses are ranked, if not by the heads alone; start: position of the first token, for it.

    Returns:
        ranks int64, margins and chain_logp float32 `[n, heads]`, first_guesses int64 `[n]`; see `Trace`.
    """
    ids = drafter.to_target_ids(torch.arange(drafter.vocabulary, device=tokens.device))
    positions = torch.arange(start, start + len(tokens), device=tokens.device)
    true = own = drafter.start(hidden, tokens)
    ranks, margins, chain = [], [], []
    for level in range(drafter.depth):
        logits = drafter.logits(level, true).float()
        guessing = drafter.logits(level, own).float() if own is not true else logits
        following = torch.cat((tokens[level + 1 :], tokens.new_full((min(level + 1, len(tokens)),), -1)))
        ranked, chosen = (part if ranking is None else ranking(part, positions + level + 1, ids) for part in (logits, guessing))
        rank, margin = _ranks(ids, ranked, following)
        ranks.append(rank)
        margins.append(margin)
        best = chosen.max(-1).indices
        chain.append(logp_of(guessing, best))
        guesses = ids[best]
        if level == 0:
            firsts = guesses
        if level + 1 < drafter.depth:
            own = drafter.extend(own, guesses)
            true = drafter.extend(true, following.clamp(min=0))
    return torch.stack(ranks, 1), torch.stack(margins, 1), torch.stack(chain, 1), firsts


def _ranks(ids: Tensor, logits: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """Rank of each following token among the guesses (-1 if it cannot be guessed) and its distance to the nearest other."""
    places = _places(ids, following)
    inside = places >= 0
    where = places.clamp(min=0)[:, None]
    own = logits.gather(1, where)
    before = (logits > own) | ((logits == own) & (torch.arange(logits.shape[1], device=logits.device) < where))
    margin = (logits - own).abs().scatter(1, where, float("inf")).amin(1)
    # A token outside the draft vocabulary is a miss at any width; a missing token is marked apart.
    miss = torch.where(following < 0, -1, logits.shape[-1])
    return torch.where(inside, before.sum(1), miss), torch.where(inside, margin, float("inf"))


def _places(ids: Tensor, tokens: Tensor) -> Tensor:
    """Index of each token in the draft vocabulary, or -1."""
    order = ids.argsort()
    found = torch.searchsorted(ids[order], tokens.clamp(min=0)).clamp(max=len(ids) - 1)
    places = order[found]
    return torch.where((ids[places] == tokens) & (tokens >= 0), places, -1)
