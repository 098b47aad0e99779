"""Tree decoding beside plain decoding on one prompt: same text or not, why not, and how fast.

The core of `verify` and of the side-by-side at the end of a run. Knows nothing of files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from entmtp_calib.bank import TopologyBank
from entmtp_calib.calibrate.likelihood import mean_logp
from entmtp_calib.calibrate.recalibrate import near_tie_bound
from entmtp_calib.engine.acceptance import GREEDY, Exact, Rule, rule_from
from entmtp_calib.engine.decoder import Decoder, Step, autoregressive
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target

IDENTICAL, NEAR_TIE, DIVERGED = "identical", "near tie", "diverged"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A prompt decoded with a bank and without.

    verdict: "identical", "near tie" (the texts part where two logits are closer than the arithmetic can tell) or "diverged";
    parted_at: first token that differs, -1 if none does; gap: distance of the two best logits there;
    logp, plain_logp: mean log probability of the tokens of either text under the target, in nats, for acceptance that is not
    lossless; 0 otherwise.
    """

    text: str
    verdict: str
    parted_at: int
    gap: float
    tokens: int
    tokens_per_step: float
    tokens_per_s: float
    plain_tokens_per_s: float
    logp: float = 0.0
    plain_logp: float = 0.0

    @property
    def same_text(self) -> bool:
        """Whether both wrote the same token ids."""
        return self.verdict == IDENTICAL


def compare_with_plain(
    pair: Pair, bank: TopologyBank, policy: str, ids: Sequence[int], stop: StopRule, seed: int = 0
) -> Comparison:
    """Decode a prompt with a policy of a bank and plainly, each after a warm-up."""
    rule = rule_from(bank.acceptance, seed)
    decoder = Decoder(pair.target, pair.heads, bank.topologies, bank.policy(policy), bank.signal, rule)
    warm = replace(stop, max_new_tokens=min(8, stop.max_new_tokens))
    for _step in (*decoder.steps(ids, warm), *autoregressive(pair.target, ids, warm, rule)):
        pass
    start = time.perf_counter()
    steps = list(decoder.steps(ids, stop))
    middle = time.perf_counter()
    plain = list(autoregressive(pair.target, ids, stop, rule))
    end = time.perf_counter()
    tokens, wanted = _tokens(steps), _tokens(plain)
    verdict, parted, gap = judge(pair.target, ids, tokens, wanted, rule)
    logps = (0.0, 0.0) if rule.lossless else (mean_logp(pair.target, ids, tokens), mean_logp(pair.target, ids, wanted))
    return Comparison(
        pair.tokenizer.decode(tokens, skip_special_tokens=True),
        verdict, parted, gap, len(tokens), len(tokens) / len(steps),
        len(tokens) / (middle - start), len(wanted) / (end - middle), *logps,
    )  # fmt: skip


def judge(
    target: Target, prompt: Sequence[int], tokens: list[int], wanted: list[int], rule: Rule = GREEDY
) -> tuple[str, int, float]:
    """Say how two texts of one prompt differ.

    Returns:
        Verdict, first token that differs (-1 if none), and the gap of the two best logits there (0 if none differs).
    """
    if tokens == wanted:
        return IDENTICAL, -1, 0.0
    shorter = min(len(tokens), len(wanted))
    parted = next((place for place in range(shorter) if tokens[place] != wanted[place]), shorter)
    gap = top_two_gap(target, [*prompt, *wanted[:parted]], rule)
    return (NEAR_TIE if gap <= near_tie_bound(target) else DIVERGED), parted, gap


@torch.inference_mode()
def top_two_gap(target: Target, ids: Sequence[int], rule: Rule = GREEDY) -> float:
    """Distance of the two logits after `ids` that are best for the rule, noise included, from a plain forward."""
    cache = target.new_cache(len(ids))
    logits = target.prefill(torch.tensor([list(ids)], device=target.device), cache).logits[0, -1].float()
    if isinstance(rule, Exact) and rule.temperature:
        logits = rule.filtered(logits) + rule.noise(torch.tensor([len(ids)], device=target.device), len(logits))[0]
    best, second = logits.topk(2).values.tolist()
    return float(best - second)


def _tokens(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]
