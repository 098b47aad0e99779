"""How likely texts are under the target: the measure of texts that are not those of plain decoding.

Log probabilities in nats, at temperature 1. Knows no rules, trees or files.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from entmtp_calib.engine.drafter import logp_of
from entmtp_calib.engine.target import Target
from entmtp_calib.evidence import Trace


@torch.inference_mode()
def mean_logp(target: Target, prompt: Sequence[int], text: Sequence[int]) -> float:
    """Mean log probability of a text's tokens under the target, from a plain forward."""
    ids = torch.tensor([[*prompt, *text]], device=target.device)
    columns = torch.arange(ids.shape[1], device=target.device)
    keep = torch.arange(len(prompt) - 1, ids.shape[1] - 1, device=target.device)
    logits = target.forward(ids, None, columns[None], keep=keep).logits[0]
    return float(logp_of(logits, ids[0, len(prompt) :]).mean())


def greedy_logp(traces: Sequence[Trace]) -> float:
    """Mean log probability of a token of greedy texts, pooled: every token is the target's first choice, and traces hold that."""
    return sum(float(trace.root_logp.sum()) for trace in traces) / sum(len(trace) for trace in traces)
