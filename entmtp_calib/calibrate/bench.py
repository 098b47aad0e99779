"""A bank beside other ways to decode the same prompts: plain decoding, transformers' own, the published tree, other heads.

Runs the model and measures; chooses nothing but the prompts, which no calibration of the bank has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from entmtp_calib.bank import TopologyBank
from entmtp_calib.calibrate.likelihood import mean_logp
from entmtp_calib.calibrate.paired import speed_ratio
from entmtp_calib.calibrate.prompts import Prompt, load_prompts
from entmtp_calib.calibrate.rounds import Run, Runner, clock, decoder_runner
from entmtp_calib.calibrate.timing import AR, AR_AGAIN, Row, aa_slack, runs_by_arm
from entmtp_calib.engine.acceptance import Exact, Rule, rule_from
from entmtp_calib.engine.decoder import autoregressive
from entmtp_calib.engine.graph_decoder import decoder_with
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import UsageError, did_you_mean
from entmtp_calib.policy import Static
from entmtp_calib.topology import Topology, published_default

PUBLISHED, GENERATE, PROMPT_LOOKUP = "default-63", "generate", "prompt lookup"
"""Names of arms that are no policy of a bank."""
LOOKUP = 10  # tokens that prompt lookup guesses, as in transformers' documentation


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to decode; nodes: what it verifies at a step besides the root, at most, None where that is not ours to say."""

    run: Runner
    nodes: int | None


@dataclass(frozen=True, slots=True)
class Texts:
    """What a way to decode wrote.

    same: share of the prompts after which it wrote what plain decoding wrote; logp: mean log probability of its tokens under the
    target at temperature 1, in nats.
    """

    same: float
    logp: float


def unseen_prompts(bank: TopologyBank, task: str | None, data: str | None, count: int, seed: int) -> tuple[list[Prompt], str]:
    """Prompts to measure on: of the bank's own task those that its calibration kept for tests, else any.

    Returns:
        At most `count` prompts, and a warning where some may have been seen, or "".
    """
    if task not in (None, bank.task):
        return load_prompts(str(task), data, count, seed).prompts, ""
    kept = bank.splits.get("test", {}).get("ids", [])
    if not kept:
        return load_prompts(bank.task, data, count, seed).prompts, "this bank does not say which prompts it was not made from"
    place = {name: index for index, name in enumerate(kept)}
    found = [prompt for prompt in load_prompts(bank.task, data, None, seed).prompts if prompt.id in place]
    if not found:
        found = load_prompts(bank.task, data, count, seed).prompts
        return found, "none of the prompts that the bank kept for tests is in this set"
    return sorted(found, key=lambda prompt: place[prompt.id])[:count], ""


def contestants(pair: Pair, bank: TopologyBank, seed: int = 0, others: Mapping[str, Any] | None = None) -> dict[str, Contestant]:
    """Everything that is measured, by name.

    Plain decoding is there twice. transformers' `generate` and its prompt lookup are there where decoding is greedy, since they
    would draw other samples; the published 63-node tree where the heads can fill it.

    Args:
        others: other heads by name, to run the published tree with.
    """
    rule, published = rule_from(bank.acceptance, seed), published_default()
    plain = Contestant(_plain(pair, rule), 0)
    found = {AR: plain, AR_AGAIN: plain}
    for name, policy in bank.policies.items():
        decoder = decoder_with(pair.graphs, pair.target, pair.heads, bank.topologies, policy, bank.signal, rule)
        found[name] = Contestant(decoder_runner(decoder), max(bank.choices(policy)[index][1] for index in policy.members))
    for label, heads in {PUBLISHED: pair.heads, **{_with(name): heads for name, heads in (others or {}).items()}}.items():
        if published.depth <= heads.depth:
            decoder = decoder_with(pair.graphs, pair.target, heads, [published], Static(0), rule=rule)
            found[label] = Contestant(decoder_runner(decoder), published.size)
    if rule == Exact(seed=seed):
        found[GENERATE] = Contestant(generate_runner(pair.target), None)
        found[PROMPT_LOOKUP] = Contestant(generate_runner(pair.target, prompt_lookup_num_tokens=LOOKUP), None)
    return found


def check_arms(names: Sequence[str], bank: TopologyBank, others: Sequence[str] = ()) -> None:
    """Refuse a name that no arm can have, before anything is loaded.

    Args:
        others: names of other heads.

    Raises:
        UsageError: there is no such arm.
    """
    known = [AR, AR_AGAIN, *bank.policies, PUBLISHED, *map(_with, others), GENERATE, PROMPT_LOOKUP]
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise UsageError(f"there is no arm {unknown!r}.", did_you_mean(unknown, known))


def only_these(found: Mapping[str, Contestant], names: Sequence[str]) -> dict[str, Contestant]:
    """The arms of these names and plain decoding; all for no name.

    Raises:
        UsageError: these heads, or this acceptance, have no such arm.
    """
    lacking = next((name for name in names if name not in found), None)
    if lacking is not None:
        raise UsageError(f"the arm {lacking!r} cannot run here.", f"There are: {', '.join(found)}.")
    return {name: one for name, one in found.items() if not names or name in (*names, AR, AR_AGAIN)}


def over_static(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """How many times as fast as the bank's static tree every other arm is, with intervals; empty where that was not timed."""
    runs = runs_by_arm(rows)
    found, slack = {}, aa_slack(runs)
    for label, own in runs.items() if "static" in runs else ():
        if label != "static":
            ratio = speed_ratio(own, runs["static"], slack=slack)
            found[label] = {"over_static": ratio.ratio, "over_static_low": ratio.low, "over_static_high": ratio.high,
                            "over_static_interval": f"{ratio.low:.3f}–{ratio.high:.3f}"}  # fmt: skip
    return found


def _with(heads: str) -> str:
    """Name of the arm of other heads."""
    return f"{heads}, {PUBLISHED}"


def _plain(pair: Pair, rule: Rule) -> Runner:
    """Plain decoding, captured where the trees are."""
    if pair.graphs is None:
        return plain_runner(pair.target, rule)
    return decoder_runner(decoder_with(pair.graphs, pair.target, None, [Topology()], Static(0), rule=rule))


class Scribe:
    """Runners that remember what they wrote, so that texts can be judged after all measuring is done."""

    def __init__(self) -> None:
        self._texts: dict[str, dict[tuple[int, ...], list[int]]] = {}

    def watch(self, label: str, runner: Runner) -> Runner:
        """The same runner, with its texts kept."""
        own = self._texts.setdefault(label, {})

        def run(ids: Sequence[int], stop: StopRule) -> Run:
            found = runner(ids, stop)
            own[tuple(ids)] = found.tokens
            return found

        return run

    def judge(self, target: Target) -> dict[str, Texts]:
        """What each runner's texts are like; every text is scored once."""
        scores: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
        judged = {}
        for label, own in self._texts.items():
            total, tokens = 0.0, 0
            for ids, text in own.items():
                key = (ids, tuple(text))
                if key not in scores:
                    scores[key] = mean_logp(target, ids, text) if text else 0.0
                total, tokens = total + scores[key] * len(text), tokens + len(text)
            same = sum(text == self._texts[AR][ids] for ids, text in own.items()) / len(own)
            judged[label] = Texts(same, total / max(1, tokens))
        return judged


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
