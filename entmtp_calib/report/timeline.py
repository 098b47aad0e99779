"""The data of the timeline: one text step by step, which tree was chosen, and how every token came.

Replays a trace under the bank's policies; the text needs a tokenizer object, else token ids stand for it. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from entmtp_calib.bank import TopologyBank
from entmtp_calib.policy import Dynamic
from entmtp_calib.replay import Replay
from entmtp_calib.report.figure import Figure, Missing
from entmtp_calib.report.material import Material, read_drafts
from entmtp_calib.report.replays import Replays, of_text
from entmtp_calib.report.switching import policies_that_switch, replayed_bank
from entmtp_calib.text_stream import TextStream

TIMELINE = "timeline"
TITLE = "One text, step by step"
_COLUMNS = ("policy", "step", "position", "tree", "nodes", "by_depth", "signal", "accepted")


def timeline(material: Material, tokenizer: Any = None, prompt: str | None = None) -> Figure | Missing:
    """The steps of one text under the recommended policy, beside static or, if that is recommended, one that switches.

    Args:
        tokenizer: decodes ids; None where there is none.
        prompt: id of the prompt; None takes the one with the median tokens per step.

    Returns:
        Rows are steps, `by_depth` how many nodes of every level are verified; `facts["pieces"]` is the text as
        `(text, depth, step)`, depth 0 for roots.
    """
    bank, part = replayed_bank(material, TIMELINE, TITLE), material.unseen
    if isinstance(bank, Missing):
        return bank
    drafts = read_drafts(material, part) if any(isinstance(policy, Dynamic) for policy in bank.policies.values()) else None
    replays = Replays(bank, material.traces[part], drafts)
    shown = _shown(replays)
    runs = {name: replays.run(bank.policies[name]) for name in shown}
    names = [trace.prompt_id for trace in replays.traces]
    text = (names.index(prompt) if prompt in names else None) if prompt else _median(runs[shown[0]], replays)
    if text is None:
        return Missing(TIMELINE, TITLE, f"the {part} prompts have no {prompt!r}" if prompt else "all texts are empty")
    runs = {name: of_text(run, text) for name, run in runs.items()}
    rows = [row for name, run in runs.items() for row in _rows(name, run, replays)]
    trace = replays.traces[text]
    facts = {"pieces": token_pieces(trace.tokens.tolist(), runs[shown[0]].accepted.tolist(), tokenizer),
             "trees": _labels(bank, shown), "main": shown[0], "prompt": trace.prompt_id,
             "dynamic": bank.policies[shown[0]].kind == "dynamic", "as_text": tokenizer is not None,
             "signal": str(bank.signal)}  # fmt: skip
    notes = _notes(part, trace.prompt_id, bool(prompt), bank.recommended if bank.recommended not in runs else "")
    return Figure(TIMELINE, TITLE, _sentence(rows, runs, facts), _COLUMNS, rows, (), facts, notes)


def _shown(replays: Replays) -> list[str]:
    """The recommended policy if it can be replayed, else static; behind it static or one that switches between trees."""
    bank = replays.bank
    main = bank.recommended if replays.can(bank.policy()) else "static"
    others = ["static", *(name for name in policies_that_switch(bank) if not isinstance(bank.policies[name], Dynamic))]
    return [main, *[name for name in others if name != main and replays.can(bank.policies[name])][:1]]


def _labels(bank: TopologyBank, names: Sequence[str]) -> list[str]:
    """The trees of the bank that some of its policies can take, in the bank's order."""
    policies = [bank.policies[name] for name in names]
    taken = {index for policy in policies if not isinstance(policy, Dynamic) for index in policy.members}
    return [bank.trees[index].label for index in sorted(taken)]


def _notes(part: str, prompt: str, given: bool, instead: str) -> tuple[str, ...]:
    why = "given" if given else "the one with the median tokens per step"
    note = f"Replay of the {part} prompt {prompt}, {why}. "
    note += "A step brings a root from the model itself and the drafts that were accepted behind it."
    more = f" {instead} is recommended and cannot be replayed: the run does not hold path values of these texts."
    return (note + (more if instead else ""),)


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


def _median(run: Replay, replays: Replays) -> int | None:
    """The text whose tokens per step are the median; None if all are empty."""
    steps = np.bincount(run.prompt, minlength=len(replays.traces))
    order = sorted((len(trace) / steps[index], index) for index, trace in enumerate(replays.traces) if steps[index])
    return order[len(order) // 2][1] if order else None


def _rows(name: str, run: Replay, replays: Replays) -> list[dict[str, Any]]:
    policy = replays.bank.policies[name]
    choices, verified = replays.bank.choices(policy), replays.verified(policy, run)
    columns = (run.positions.tolist(), run.index.tolist(), run.accepted.tolist(), run.signals.tolist(), verified)
    return [
        {"policy": name, "step": step, "position": position, "tree": choices[index][0], "nodes": choices[index][1],
         "by_depth": " ".join(map(str, levels)), "signal": value, "accepted": accepted}
        for step, (position, index, accepted, value, levels) in enumerate(zip(*columns, strict=True))
    ]  # fmt: skip


def _sentence(rows: Sequence[Mapping[str, Any]], runs: Mapping[str, Replay], facts: Mapping[str, Any]) -> str:
    main, tokens = runs[facts["main"]], len(facts["pieces"])
    text = (
        f"{tokens} tokens take {len(main.accepted)} steps with {facts['main']}, {tokens / len(main.accepted):.2f} a "
        f"step, at most {int(main.accepted.max())} drafts at once and none at {(main.accepted == 0).mean():.0%} of the steps"
    )
    for name, run in runs.items():
        if name != facts["main"]:
            switches = f"switch {run.switches} times and " if run.switches else ""
            text += f"; {name} would {switches}take {len(run.accepted)} steps"
    if facts["dynamic"]:
        own = [list(map(int, row["by_depth"].split())) for row in rows if row["policy"] == facts["main"]]
        deep = [sum(count > 0 for count in levels) for levels in own]
        reach = f"{min(deep)} to {max(deep)}" if min(deep) < max(deep) else str(max(deep))
        text += f". Its trees are {reach} levels deep: deep where the heads are sure, wide where they are not"
    return text + "."
