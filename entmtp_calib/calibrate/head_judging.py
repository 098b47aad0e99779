"""What held-out text says of heads: hit rates, accepted drafts and whether their confidence can be believed.

Reads states of texts and heads; trains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from entmtp_calib.calibrate.search import grow
from entmtp_calib.calibrate.states import StateFiles, TextStates
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.tracing import look
from entmtp_calib.evidence import Trace, mean_accept
from entmtp_calib.topology import chain, published_default

HIT_RANKS = (1, 2, 4, 10)
_BINS = 10


@dataclass(frozen=True, slots=True)
class HeadFigures:
    """Figures of heads on texts that training did not see.

    hit_rates: per head, share of positions with the true token among the first k guesses, given the true prefix;
    acceptance: mean accepted drafts per step of trees, and of the chain over all positions;
    reliability: see `reliability`; positions: tokens judged.
    """

    hit_rates: list[dict[str, float]]
    acceptance: dict[str, float]
    reliability: list[dict[str, float]]
    positions: int


def judge(traces: Sequence[Trace]) -> HeadFigures:
    """Judge heads by traces; the 16-node tree is grown on one half of them and judged on the other."""
    depth = traces[0].heads
    half = len(traces) // 2
    tree = grow(list(traces[:half]), 16, depth).order
    ranks = np.concatenate([trace.ranks for trace in traces])
    acceptance = {
        "chain": mean_accept(chain(depth), traces),
        "chain_anywhere": float((np.cumprod(ranks == 0, 1)).sum(1).mean()),
        "tree_16": mean_accept(tree, traces[half:]),
    }
    if published_default().depth <= depth:
        acceptance["default_63"] = mean_accept(published_default(), traces)
    return HeadFigures(hit_rates(traces), acceptance, reliability(traces), len(ranks))


def hit_rates(traces: Sequence[Trace]) -> list[dict[str, float]]:
    """Per head, share of positions that have the true token among the first k guesses."""
    ranks = np.concatenate([trace.ranks for trace in traces])
    rows = []
    for head in range(ranks.shape[1]):
        known = ranks[ranks[:, head] >= 0, head]
        rows.append({"head": head + 1} | {f"top{k}": float((known < k).mean()) for k in HIT_RANKS})
    return rows


def reliability(traces: Sequence[Trace], bins: int = _BINS) -> list[dict[str, float]]:
    """Confidence of the heads' greedy chain against what came true.

    The confidence at depth d is the product of the heads' top-1 probabilities to depth d; it comes true where the target writes
    these d tokens.

    Returns:
        One row for every depth and occupied bin of equal width: depth, low and high edge, positions, mean confidence, share that
        came true.
    """
    ranks = np.concatenate([trace.ranks for trace in traces])
    confidence = np.exp(np.cumsum(np.concatenate([trace.chain_logp for trace in traces]), 1, dtype=np.float64))
    true = np.cumprod(ranks == 0, 1).astype(bool)
    rows = []
    for depth in range(1, ranks.shape[1] + 1):
        known = ranks[:, depth - 1] >= 0
        said, came = confidence[known, depth - 1], true[known, depth - 1]
        places = np.minimum((said * bins).astype(int), bins - 1)
        for place in np.unique(places):
            inside = places == place
            rows.append({"depth": depth, "low": float(place / bins), "high": float((place + 1) / bins),
                         "positions": int(inside.sum()), "confidence": float(said[inside].mean()),
                         "came_true": float(came[inside].mean())})  # fmt: skip
    return rows


def calibration_error(rows: Sequence[dict[str, float]], depth: int) -> float:
    """Expected calibration error at a depth: mean distance of confidence and outcome over the bins, by their positions."""
    mine = [row for row in rows if row["depth"] == depth]
    total = sum(row["positions"] for row in mine)
    return sum(row["positions"] * abs(row["confidence"] - row["came_true"]) for row in mine) / max(1, total)


@torch.inference_mode()
def traces_of(states: StateFiles, heads: DraftHeads, texts: int) -> list[Trace]:
    """Traces of the first texts from their states alone; what only the target knows is left at zero."""
    return [_trace(heads, states[text]) for text in range(min(texts, len(states)))]


def _trace(heads: DraftHeads, text: TextStates) -> Trace:
    device, dtype = heads.lm_weight().device, heads.lm_weight().dtype
    read = heads.read(text.hidden.to(device, dtype))[text.first :]
    ranks, margins, chain_logp, firsts = look(heads, read, text.written.to(device))
    blank = np.zeros(len(text.written), np.float32)
    return Trace(
        prompt_id="",
        tokens=_numpy(text.written),
        ranks=_numpy(ranks),
        margins=margins.cpu().numpy(),
        root_logp=blank,
        entropy=blank,
        chain_logp=chain_logp.cpu().numpy(),
        first_guesses=_numpy(firsts),
    )


def _numpy(values: torch.Tensor) -> np.ndarray:
    return values.cpu().numpy().astype(np.int32)
