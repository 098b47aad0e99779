"""The data of the timeline: one text step by step, which tree was chosen, and how every token came.

Replays a trace under the bank's policies; the text needs a tokenizer object, else token ids stand for it. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from entmtp_calib.bank import TopologyBank
from entmtp_calib.evidence import Trace
from entmtp_calib.policy import Dynamic, Policy
from entmtp_calib.replay import Replay, Replayer
from entmtp_calib.report.figure import Figure, Missing
from entmtp_calib.report.material import Material
from entmtp_calib.report.switching import policies_that_switch, why_not
from entmtp_calib.text_stream import TextStream

TIMELINE = "timeline"
TITLE = "One text, step by step"


def timeline(material: Material, tokenizer: Any = None, prompt: str | None = None) -> Figure | Missing:
    """The steps of one text under the recommended policy and, if that never switches, under one that does.

    Args:
        tokenizer: decodes ids; None where there is none.
        prompt: id of the prompt; None takes the one with the median tokens per step.

    Returns:
        Rows are steps; `facts["pieces"]` is the text as `(text, depth, step)`, depth 0 for roots.
    """
    missing = why_not(material, TIMELINE, TITLE)
    if missing or material.bank is None:
        return missing or Missing(TIMELINE, TITLE, "there is no bank")
    bank, traces = _replayed(material.bank), material.traces[material.unseen]
    trace = next((trace for trace in traces if trace.prompt_id == prompt), None) if prompt else _median(bank, traces)
    if trace is None:
        return Missing(TIMELINE, TITLE, f"the {material.unseen} prompts have no {prompt!r}")
    chosen = {bank.recommended: bank.policy()}
    if len(bank.policy().members) == 1:
        chosen |= dict(list(policies_that_switch(bank).items())[:1])
    runs = {name: _run(bank, [trace], policy) for name, policy in chosen.items()}
    rows = [row for name, run in runs.items() for row in _rows(name, run, bank)]
    main = runs[bank.recommended]
    pieces = token_pieces(trace.tokens.tolist(), main.accepted.tolist(), tokenizer)
    recommended = material.bank.recommended
    instead = "" if recommended == bank.recommended else f" {recommended} is recommended and cannot be replayed from a trace."
    columns = ("policy", "step", "position", "tree", "nodes", "signal", "accepted")
    facts = {"pieces": pieces, "trees": [tree.label for tree in bank.trees], "main": bank.recommended, "prompt": trace.prompt_id,
             "as_text": tokenizer is not None, "signal": str(bank.signal)}  # fmt: skip
    return Figure(TIMELINE, TITLE, _sentence(trace, runs, bank), columns, rows, (), facts, (
        f"Replay of the {material.unseen} prompt {trace.prompt_id}"
        + (" (given)." if prompt else ", the one with the median tokens per step.")
        + " A step brings a root from the model itself and the drafts that were accepted behind it."
        + instead,
    ))  # fmt: skip


def _replayed(bank: TopologyBank) -> TopologyBank:
    """The bank without dynamic policies, which traces alone cannot replay; static is shown where one is recommended."""
    policies = {name: policy for name, policy in bank.policies.items() if not isinstance(policy, Dynamic)}
    return replace(bank, policies=policies, recommended=bank.recommended if bank.recommended in policies else "static")


def token_pieces(tokens: Sequence[int], accepted: Sequence[int], tokenizer: Any = None) -> list[tuple[str, int, int]]:
    """Text of every token, with the depth of the draft that brought it (0: a root) and the number of its step.

    Bytes of an unfinished character are shown with the token that ends it. Without a tokenizer the text is the id.
    """
    depths = [(depth, step) for step, count in enumerate(accepted) for depth in range(count + 1)]
    if tokenizer is None:
        return [(f"{token} ", *place) for token, place in zip(tokens, depths, strict=True)]
    stream = TextStream(tokenizer)
    pieces = [(stream.push([token]), *place) for token, place in zip(tokens, depths, strict=True)]
    rest = stream.finish()
    return [*pieces[:-1], (pieces[-1][0] + rest, *pieces[-1][1:])] if pieces else []


def _run(bank: TopologyBank, traces: Sequence[Trace], policy: Policy) -> Replay:
    return Replayer(bank.topologies, traces, bank.signal).run(policy)


def _median(bank: TopologyBank, traces: Sequence[Trace]) -> Trace | None:
    """The text whose tokens per step are the median under the recommended policy; None if all are empty."""
    run = _run(bank, traces, bank.policy())
    steps = np.bincount(run.prompt, minlength=len(traces))
    order = sorted((len(trace) / steps[index], index) for index, trace in enumerate(traces) if steps[index])
    return traces[order[len(order) // 2][1]] if order else None


def _rows(name: str, run: Replay, bank: TopologyBank) -> list[dict[str, Any]]:
    columns = (run.positions.tolist(), run.index.tolist(), run.accepted.tolist(), run.signals.tolist())
    return [
        {"policy": name, "step": step, "position": position, "tree": bank.trees[index].label,
         "nodes": bank.trees[index].topology.size, "signal": value, "accepted": accepted}
        for step, (position, index, accepted, value) in enumerate(zip(*columns, strict=True))
    ]  # fmt: skip


def _sentence(trace: Trace, runs: dict[str, Replay], bank: TopologyBank) -> str:
    main = runs[bank.recommended]
    text = (
        f"{len(trace)} tokens take {len(main.accepted)} steps with {bank.recommended}, {len(trace) / len(main.accepted):.2f} a "
        f"step, at most {int(main.accepted.max())} drafts at once and none at {(main.accepted == 0).mean():.0%} of the steps"
    )
    for name, run in runs.items():
        if name != bank.recommended:
            text += f"; {name} would switch {run.switches} times and take {len(run.accepted)} steps"
    return text + "."
