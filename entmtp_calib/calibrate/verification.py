"""Is the text of every tree and policy of a bank that of plain decoding, and is what they leave in the cache right?

Every tree and policy decodes with the heads' guesses; then every tree decodes with dictated ones, so that each of its paths is
accepted and committed (`engine.rehearsal`). Knows no files and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from entmtp_calib.bank import TopologyBank
from entmtp_calib.calibrate.comparison import DIVERGED, IDENTICAL, NEAR_TIE, judge
from entmtp_calib.engine.acceptance import Rule
from entmtp_calib.engine.decoder import Decoder, Step, autoregressive
from entmtp_calib.engine.graph_decoder import decoder_with, rehearsal_with
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.rehearsal import Rehearsal, cache_error
from entmtp_calib.engine.selftest import error_bound
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Dynamic, Policy, Static

_EXACT = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and what plain decoding writes after it."""

    name: str
    prompt: list[int]
    text: list[int]


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a text leaves that of plain decoding: token of the text, the gap of the two best logits there, and the verdict."""

    prompt: str
    arm: str
    verdict: str
    token: int
    gap: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """An arm on all prompts.

    wrong_steps: steps with dictated guesses that accepted more or fewer than were true; cache_error: largest relative error of
    the keys and values that a text left behind; both None where guesses are the heads'. ok: nothing is wrong.
    """

    arm: str
    prompts: int
    partings: tuple[Parting, ...]
    ok: bool
    wrong_steps: int | None = None
    cache_error: float | None = None

    def count(self, verdict: str) -> int:
        """How many texts have this verdict."""
        parted = [parting.verdict for parting in self.partings]
        return self.prompts - len(parted) if verdict == IDENTICAL else parted.count(verdict)

    @property
    def largest_gap(self) -> float | None:
        """Of all partings; None if there is none."""
        return max((parting.gap for parting in self.partings), default=None)


def verify_bank(
    pair: Pair,
    bank: TopologyBank,
    prompts: Sequence[tuple[str, Sequence[int]]],
    stop: StopRule,
    rule: Rule,
    on_arm: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Verdict]:
    """Judge every tree and policy of a bank, and every path of every tree.

    In float32 every text must be identical; in lower precision texts may part where two logits are nearly equal.

    Args:
        prompts: name and token ids; on_arm: told how many arms are done, of how many.
    """
    samples = [
        Sample(name, list(ids), [token for step in autoregressive(pair.target, ids, stop, rule) for token in step.tokens])
        for name, ids in prompts
    ]
    arms: list[tuple[str, Policy]] = [(tree.label, Static(index)) for index, tree in enumerate(bank.trees)]
    arms += bank.policies.items()
    trees = [(tree.label, tree.topology, 0) for tree in bank.trees if tree.topology.size]
    trees += [(name, policy.drafted, max(policy.sizes)) for name, policy in arms if isinstance(policy, Dynamic)]
    verdicts, total = list[Verdict](), len(arms) + len(trees)
    for label, policy in arms:
        decoder = decoder_with(pair.graphs, pair.target, pair.heads, bank.topologies, policy, bank.signal, rule)
        verdicts.append(_decoded(label, decoder, samples, stop))
        on_arm(len(verdicts), total)
    for label, tree, best in trees:
        rehearsal = rehearsal_with(pair.graphs, pair.target, pair.heads, tree, rule, best)
        verdicts.append(_rehearsed(f"{label}, every path", rehearsal, samples, stop))
        on_arm(len(verdicts), total)
    return verdicts


def _decoded(label: str, decoder: Decoder, samples: Sequence[Sample], stop: StopRule) -> Verdict:
    """With the heads' own guesses."""
    partings = [
        _parting(label, decoder.target, decoder.rule, sample, list(decoder.steps(sample.prompt, stop))) for sample in samples
    ]
    found = tuple(parting for parting in partings if parting)
    return Verdict(label, len(samples), found, not any(_wrong(decoder.target, parting) for parting in found))


def _rehearsed(label: str, rehearsal: Rehearsal, samples: Sequence[Sample], stop: StopRule) -> Verdict:
    """With dictated guesses, until every path of the tree has had its turn."""
    found, texts, wrong, error = list[Parting](), 0, 0, 0.0
    while not texts or rehearsal.turn < len(rehearsal.paths):
        for sample in samples:
            steps, context = rehearsal.run(sample.prompt, sample.text, stop)
            parting = _parting(label, rehearsal.target, rehearsal.rule, sample, steps)
            found += [parting] if parting else []
            wrong += _wrong_steps(steps, rehearsal.dictated, parting.token if parting else len(sample.text))
            error = max(error, cache_error(rehearsal.target, context))
            texts += 1
    bad = any(_wrong(rehearsal.target, parting) for parting in found) or wrong or error > error_bound(rehearsal.target)
    return Verdict(label, texts, tuple(found), not bad, wrong, error)


def _parting(label: str, target: Target, rule: Rule, sample: Sample, steps: Sequence[Step]) -> Parting | None:
    tokens = [token for step in steps for token in step.tokens]
    verdict, place, gap = judge(target, sample.prompt, tokens, sample.text, rule)
    return None if verdict == IDENTICAL else Parting(sample.name, label, verdict, place, gap)


def _wrong(target: Target, parting: Parting) -> bool:
    return parting.verdict == DIVERGED or (parting.verdict == NEAR_TIE and target.dtype in _EXACT)


def _wrong_steps(steps: Sequence[Step], dictated: Sequence[int], same: int) -> int:
    """Steps within the first `same` tokens that did not accept what was dictated."""
    wrong = written = 0
    for step, true in zip(steps, dictated, strict=False):
        written += len(step.tokens)
        wrong += written <= same and step.index >= 0 and step.accepted != true
    return wrong
