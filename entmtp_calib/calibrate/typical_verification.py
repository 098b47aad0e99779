"""Does every token of a bank's texts keep to typical acceptance, and is what they leave in the cache right?

There is no plain text that such a text must equal. But a plain forward over it says what the rule allows at every place: the root
of a step is the target's own choice, and a draft is likely enough. Knows no files and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from entmtp_calib.bank import TopologyBank
from entmtp_calib.calibrate.recalibrate import near_tie_bound
from entmtp_calib.engine.acceptance import Typical
from entmtp_calib.engine.decoder import Decoder, Step
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.rehearsal import cache_error
from entmtp_calib.engine.selftest import error_bound
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Policy, Static

_EXACT = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Lawful:
    """A tree or policy on all prompts.

    drafts: accepted ones among the tokens; unlawful: tokens that the rule does not allow; near_ties: of those, how many the
    arithmetic cannot tell from allowed ones; repeated: prompts whose text came out the same a second time; cache_error: as in
    `Verdict`. ok: nothing is wrong.
    """

    arm: str
    prompts: int
    tokens: int
    drafts: int
    unlawful: int
    near_ties: int
    repeated: int
    cache_error: float
    ok: bool


def verify_typical(
    pair: Pair, bank: TopologyBank, prompts: Sequence[tuple[str, Sequence[int]]], stop: StopRule, rule: Typical,
    on_arm: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Lawful]:  # fmt: skip
    """Judge every tree and policy of a bank.

    Args:
        prompts: name and token ids; on_arm: told how many arms are done, of how many.
    """
    arms: list[tuple[str, Policy]] = [(tree.label, Static(index)) for index, tree in enumerate(bank.trees)]
    arms += bank.policies.items()
    found = list[Lawful]()
    for label, policy in arms:
        decoder = Decoder(pair.target, pair.heads, bank.topologies, policy, bank.signal, rule)
        found.append(_judged(label, decoder, rule, prompts, stop))
        on_arm(len(found), len(arms))
    return found


def _judged(label: str, decoder: Decoder, rule: Typical, prompts: Sequence[tuple[str, Sequence[int]]], stop: StopRule) -> Lawful:
    target, tokens, drafts, repeated, error = decoder.target, 0, 0, 0, 0.0
    margins = list[Tensor]()
    for _name, ids in prompts:
        generation = decoder.begin(ids, stop)
        steps = list(decoder.resume(generation))
        error = max(error, cache_error(target, generation.context))
        repeated += [step.tokens for step in decoder.steps(ids, stop)] == [step.tokens for step in steps]
        margins.append(lawful_margins(target, rule, ids, steps))
        tokens, drafts = tokens + len(margins[-1]), drafts + sum(step.accepted for step in steps)
    below = torch.cat(margins)
    unlawful = int((below < 0).sum())
    near = int(((below < 0) & (below >= -near_tie_bound(target) / rule.temperature)).sum())
    wrong = unlawful if target.dtype in _EXACT else unlawful - near
    ok = not wrong and error <= error_bound(target) and (repeated == len(prompts) or target.dtype not in _EXACT)
    return Lawful(label, len(prompts), tokens, drafts, unlawful, near, repeated, error, ok)


@torch.inference_mode()
def lawful_margins(target: Target, rule: Typical, prompt: Sequence[int], steps: Sequence[Step]) -> Tensor:
    """By how much every token of a text keeps to the rule, in nats at its temperature, float32 `[tokens]`; below 0 it does not.

    From one plain forward. A root's margin is 0 where it is the largest logit, else its distance to that, negative; a draft's is
    the log of its probability over the bound.
    """
    text = [token for step in steps for token in step.tokens]
    ids = torch.tensor([[*prompt, *text]], device=target.device)
    columns = torch.arange(ids.shape[1], device=target.device)
    keep = torch.arange(len(prompt) - 1, ids.shape[1] - 1, device=target.device)
    logp = (target.forward(ids, None, columns[None], keep=keep).logits[0].float() / rule.temperature).log_softmax(-1)
    own = logp.gather(-1, ids[0, len(prompt) :, None])[:, 0]
    entropy = -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)
    bound = torch.clamp(rule.alpha * torch.exp(-entropy), max=rule.epsilon).log()
    rooted = torch.tensor([place == 0 for step in steps for place in range(len(step.tokens))], device=target.device)
    return torch.where(rooted, own - logp.amax(-1), own - bound)
