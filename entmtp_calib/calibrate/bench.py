"""A bank beside other ways to decode the same prompts: plain decoding, transformers' own, the published tree.

Runs the model and measures; chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from entmtp_calib.bank import TopologyBank
from entmtp_calib.calibrate.rounds import Run, Runner, clock, decoder_runner
from entmtp_calib.calibrate.timing import AR, AR_AGAIN
from entmtp_calib.engine.acceptance import Exact, Rule, rule_from
from entmtp_calib.engine.decoder import Decoder, autoregressive
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Static
from entmtp_calib.topology import published_default

LOOKUP = 10  # tokens that prompt lookup guesses, as in transformers' documentation


def bench_runners(pair: Pair, bank: TopologyBank, seed: int = 0) -> dict[str, Runner]:
    """Everything that is measured, by name.

    Plain decoding is there twice. transformers' `generate` and its prompt lookup are there where decoding is greedy, since they
    would draw other samples; the published 63-node tree where the heads can fill it.
    """
    rule = rule_from(bank.acceptance, seed)
    runners: dict[str, Runner] = {AR: plain_runner(pair.target, rule), AR_AGAIN: plain_runner(pair.target, rule)}
    for name, policy in bank.policies.items():
        runners[name] = decoder_runner(Decoder(pair.target, pair.heads, bank.topologies, policy, bank.signal, rule))
    if published_default().depth <= pair.heads.depth:
        runners["default-63"] = decoder_runner(Decoder(pair.target, pair.heads, [published_default()], Static(0), rule=rule))
    if rule == Exact(seed=seed):
        runners["generate"] = generate_runner(pair.target)
        runners["prompt lookup"] = generate_runner(pair.target, prompt_lookup_num_tokens=LOOKUP)
    return runners


def plain_runner(target: Target, rule: Rule) -> Runner:
    """Plain decoding."""

    def run(ids: Sequence[int], stop: StopRule) -> Run:
        start = clock(target.device)
        steps = autoregressive(target, ids, stop, rule)
        tokens = list(next(steps).tokens)
        prefilled = clock(target.device)
        tokens += [token for step in steps for token in step.tokens]
        return Run(tokens, len(tokens), prefilled - start, clock(target.device) - start)

    return run


def generate_runner(target: Target, **more: Any) -> Runner:
    """transformers' `generate`, greedy, with the attention that transformers itself would choose; prefill is not told apart."""

    def run(ids: Sequence[int], stop: StopRule) -> Run:
        inputs = torch.tensor([list(ids)], device=target.device)
        options = {"do_sample": False, "use_cache": True, "eos_token_id": sorted(stop.end_ids), "pad_token_id": 0, **more}
        with _own_attention(target):
            start = clock(target.device)
            out = target.model.generate(
                inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=stop.max_new_tokens, **options
            )
            seconds = clock(target.device) - start
        tokens = out[0, len(ids) :].tolist()
        return Run(tokens, 0, 0.0, seconds)

    return run


@contextmanager
def _own_attention(target: Target) -> Iterator[None]:
    ours = target.model.config._attn_implementation
    target.model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        target.model.set_attn_implementation(ours)
