"""Recalibration: every candidate tree decodes by itself, with its own mask and cache, and is compared with its replay.

Runs the decoder on prompts that the search did not see. Knows nothing of seconds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from entmtp_calib.calibrate.candidates import Candidate
from entmtp_calib.calibrate.farm import Farm, Work
from entmtp_calib.calibrate.likelihood import mean_logp
from entmtp_calib.calibrate.loops import looped_tokens
from entmtp_calib.engine.acceptance import GREEDY, Rule
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.errors import EntmtpError
from entmtp_calib.evidence import Trace, accepted_depths
from entmtp_calib.policy import Static
from entmtp_calib.storage import Journal
from entmtp_calib.topology import from_lists

Row = dict[str, Any]
NEAR_TIE = {"float32": 1e-3, "float64": 1e-9}  # logit distance; in 8- and 11-bit floats it is a share of the logit's size
_COARSE_NEAR_TIE = 0.5


@dataclass(frozen=True, slots=True)
class Recalibrated:
    """A candidate with what its own rollouts gave.

    same_prompts: mean accept on the search prompts, at the steps of the tree's own rollouts (by replay where that is exact);
    mean_accept: pooled, on new prompts; prompt_mean: mean over these of the mean accept of each; near_ties: steps where rollout
    and replay differ because two logits are closer than the arithmetic can tell; looped: share of the tokens that stand in
    pieces repeated again and again; logp: mean log probability of a token of the texts on the search prompts, in nats, where they
    are not those of plain decoding.
    """

    candidate: Candidate
    same_prompts: float
    mean_accept: float
    prompt_mean: float
    steps: int
    near_ties: int
    looped: float = 0.0
    logp: float | None = None

    @property
    def bias(self) -> float:
        """Mean accept that the search counted over that of the tree's own rollouts on the same prompts, minus 1."""
        return self.candidate.searched / self.same_prompts - 1 if self.same_prompts else float("nan")


def changed_places(found: Sequence[Recalibrated]) -> list[tuple[str, str]]:
    """Pairs of trees whose order by mean accept is another on new prompts than the search said, worse of the search first."""
    grown = [item for item in found if item.candidate.searched == item.candidate.searched]  # the published tree was not
    ranked = sorted(grown, key=lambda item: item.candidate.searched)
    return [
        (low.candidate.label, high.candidate.label)
        for low, high in itertools.combinations(ranked, 2)
        if low.candidate.searched < high.candidate.searched and low.mean_accept > high.mean_accept
    ]


def recalibrate(
    target: Target,
    drafter: Drafter,
    candidates: Sequence[Candidate],
    prompts: Sequence[tuple[str, Sequence[int]]],
    stop: StopRule,
    journal: Journal,
    rows: list[Row],
    on_rollout: Callable[[int], None] | None = None,
    rule: Rule = GREEDY,
    farm: Farm | None = None,
    seen: Sequence[tuple[str, Sequence[int]]] = (),
) -> list[Recalibrated]:
    """Decode every prompt with every candidate; rows that are in the journal are not measured again.

    Args:
        seen: the search prompts, where acceptance cannot be replayed and must be rolled out on them too.
        rule: how tokens are chosen and drafts accepted.
        farm: processes that share the work, which they know as "recalibrate".

    Raises:
        EntmtpError: a rollout accepts something else than its replay, and no near tie explains it.
    """
    done = {(row["tree"], row["prompt"]): row for row in rows}
    everything = [*prompts, *seen]
    items = [
        [candidate.label, candidate.topology.to_lists(), name]
        for candidate in candidates
        for name, _ids in everything
        if (candidate.label, name) not in done
    ]
    kept = _InOrder(items, journal, len(candidates) * len(everything) - len(items), on_rollout)
    (farm or Farm()).run("recalibrate", items, rollout_work(target, drafter, everything, stop, rule), kept.take)
    done |= {(row["tree"], row["prompt"]): row for row in kept.rows}

    def rows_of(candidate: Candidate, part: Sequence[tuple[str, Sequence[int]]]) -> list[Row]:
        return [done[candidate.label, name] for name, _ids in part]

    return [_summary(candidate, rows_of(candidate, prompts), rows_of(candidate, seen)) for candidate in candidates]


class _InOrder:
    """Writes rows in the order of their items, as one process would, in whatever order they come.

    Attributes:
        rows: what was written.
    """

    def __init__(self, items: Sequence[list[Any]], journal: Journal, done: int, told: Callable[[int], None] | None) -> None:
        self.rows: list[Row] = []
        self._items, self._journal, self._done, self._told = items, journal, done, told
        self._waiting: dict[tuple[str, str], Row] = {}

    def take(self, item: list[Any], result: bytes) -> None:
        """A row has come."""
        self._waiting[item[0], item[2]] = json.loads(result)
        while len(self.rows) < len(self._items):
            label, _nodes, name = self._items[len(self.rows)]
            if (label, name) not in self._waiting:
                break
            self.rows.append(self._waiting.pop((label, name)))
            self._journal.append(self.rows[-1])
        self._done += 1
        if self._told:
            self._told(self._done)


def rollout_work(
    target: Target, drafter: Drafter, prompts: Sequence[tuple[str, Sequence[int]]], stop: StopRule, rule: Rule = GREEDY
) -> Work:
    """What a process does with `[label, node lists, name of the prompt]`: the journal's row as JSON."""
    named = dict(prompts)
    decoders: dict[str, Decoder] = {}
    traces: dict[bytes, Trace] = {}

    def work(item: list[Any]) -> bytes:
        label, nodes, name = item
        if label not in decoders:
            decoders[label] = Decoder(target, drafter, [from_lists(nodes)], Static(0), rule=rule)
        return json.dumps(_rollout(decoders[label], label, name, named[name], stop, traces)).encode()

    return work


def _rollout(decoder: Decoder, label: str, name: str, ids: Sequence[int], stop: StopRule, traces: dict[bytes, Trace]) -> Row:
    steps = list(decoder.steps(ids, stop))
    accepted = [step.accepted for step in steps]
    text = [token for step in steps for token in step.tokens]
    row = {"tree": label, "prompt": name, "steps": len(steps), "accepted": sum(accepted), "tokens": len(text),
           "looped": looped_tokens(text), "near_ties": 0}  # fmt: skip
    if not decoder.rule.lossless:  # the text depends on the tree, so there is nothing to replay
        return row | {"logp": mean_logp(decoder.target, ids, text)}
    key = np.asarray([*ids, -1, *text]).tobytes()
    if key not in traces:  # trees write the same text but for near ties
        assert decoder.drafter is not None
        traces[key] = trace_text(decoder.target, decoder.drafter, name, ids, text, decoder.rule.ranking)
    topology = decoder.layouts[0].topology
    return row | {"near_ties": compare(topology, accepted, traces[key], near_tie_bound(decoder.target))}


def compare(topology: Any, accepted: Sequence[int], trace: Trace, bound: float) -> int:
    """Compare a rollout with its replay step by step.

    Args:
        accepted: accepted drafts of every step of the rollout.
        trace: of the rollout's own text.
        bound: logit distance below which ranks are not certain.

    Returns:
        Number of steps that differ at a near tie.

    Raises:
        EntmtpError: a step differs and its logits are clearly apart.
    """
    expected = accepted_depths(topology, trace)
    near = here = 0
    for number in accepted:
        if number != expected[here]:
            depth = min(number, int(expected[here]))
            if trace.margins[here, : depth + 1].min() > bound:
                raise EntmtpError(
                    f"prompt {trace.prompt_id}, position {here}: the tree accepted {number} drafts and its replay "
                    f"{expected[here]}, with logits {trace.margins[here, depth]:.3g} apart.",
                    "This is a bug in the decoder or in the model's support for tree masks; please report it.",
                )
            near += 1
        here += number + 1
    return near


def near_tie_bound(target: Target) -> float:
    """Logit distance below which this target's arithmetic cannot be trusted to order two tokens."""
    return NEAR_TIE.get(str(target.dtype).removeprefix("torch."), _COARSE_NEAR_TIE)


def _summary(candidate: Candidate, rows: list[Row], seen: list[Row]) -> Recalibrated:
    return Recalibrated(
        candidate,
        _pooled(seen) if seen else candidate.replayed,
        _pooled(rows),
        float(np.mean([row["accepted"] / row["steps"] for row in rows])),
        sum(row["steps"] for row in rows),
        sum(row["near_ties"] for row in rows),
        sum(row.get("looped", 0) for row in rows) / max(1, sum(row.get("tokens", 0) for row in rows)),
        _pooled_logp(seen),
    )


def _pooled_logp(rows: list[Row]) -> float | None:
    if not rows or not all("logp" in row for row in rows):
        return None
    return float(sum(row["logp"] * row["tokens"] for row in rows) / sum(row["tokens"] for row in rows))


def _pooled(rows: list[Row]) -> float:
    return sum(row["accepted"] for row in rows) / sum(row["steps"] for row in rows)
