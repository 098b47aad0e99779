"""The card of trained heads: a README in their folder that says how they were made and what they hit.

Turns values into Markdown; measures nothing.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from entmtp_calib.calibrate.head_judging import HIT_RANKS, calibration_error
from entmtp_calib.engine.heads import HeadShape
from entmtp_calib.provenance import versions
from entmtp_calib.storage import write_atomically

_NAMES = {"hydra": "Hydra", "hydra++": "Hydra++", "medusa": "Medusa"}
_LABELS = {"soft": "the target's own distribution", "hard": "the tokens that it wrote"}


def write_card(folder: Path, about: dict[str, Any], shape: HeadShape, parameters: int) -> None:
    """Write `README.md` beside the weights.

    Args:
        about: recipe and figures, as in the heads' configuration.
        shape: what the heads are; parameters: how many trained numbers they have.
    """
    among = f"the {shape.vocabulary} tokens most frequent in the text" if shape.reduced else "the whole vocabulary"
    blocks = f"{shape.layers} blocks" if shape.layers > 1 else "1 block"
    head = f"""# {folder.name}

{_NAMES.get(shape.architecture, shape.architecture)} heads for {about["base_name"]}: {shape.heads} heads of {blocks},
{parameters / 1e6:.1f} M parameters, guessing among {among}; the LM head is the target's.
"""
    write_atomically(folder / "README.md", "\n".join((head, _origin(about), _figures(about), _calibration(about))).encode())


def _origin(about: dict[str, Any]) -> str:
    recipe, known = about["recipe"], versions()
    training = recipe["training"]
    sources = _sources(recipe["sources"], "prompts")
    if recipe["recorded"]:
        sources += "\nBesides, it read recorded conversations of\n\n" + _sources(recipe["recorded"], "conversations")
    manner = f"at temperature {recipe['temperature']:g}" if recipe["temperature"] else "greedily"
    command = " ".join(shlex.quote(_local(word)) for word in ["entmtp", *sys.argv[1:]])
    return f"""## How they were made

The target wrote the text itself, {manner}, at most {recipe["max_new_tokens"]} tokens after each prompt. Prompts came from

{sources}
and gave {about["trained_tokens"]} tokens for training and {about["held_out_tokens"]} judged ones that training did not see.
The loss is the cross-entropy against {_LABELS[training["labels"]]};
{_start(recipe["init"])}{training["steps"]} steps of {training["batch"]} tokens, peak rate {training["rate"]}, {_minutes(about)}.

    {command}

torch {known.get("torch", "?")}, transformers {known.get("transformers", "?")}, entmtp {known.get("entmtp", "?")}.
"""


def _figures(about: dict[str, Any]) -> str:
    rates = ([row["head"], *(f"{row[f'top{k}']:.3f}" for k in HIT_RANKS)] for row in about["hit_rates"])
    accepts = ([name.replace("_", " "), f"{value:.3f}"] for name, value in about["acceptance"].items())
    return f"""## Hit rates

Held-out text, given the true prefix: share of positions with the true token among the first k guesses.

{_table(["head", *(f"top {k}" for k in HIT_RANKS)], rates)}
Mean accepted drafts per step, root excluded, greedy, by replay on the same text:

{_table(["tree", "mean accept"], accepts)}
`chain` is the greedy chain at the steps of its own rollout; `chain anywhere` is its mean over all positions, which is larger,
because a rollout takes its next step where the chain before it failed. `tree 16` was grown on one half of the texts and judged on
the other.
"""


def _calibration(about: dict[str, Any]) -> str:
    rows = about["reliability"]
    lines = []
    for depth in sorted({int(row["depth"]) for row in rows}):
        came = {round(row["low"] * 10): row["came_true"] for row in rows if row["depth"] == depth}
        cells = [f"{came[place]:.2f}" if place in came else "-" for place in range(10)]
        lines.append([depth, *cells, f"{calibration_error(rows, depth):.3f}"])
    return f"""## Calibration

What the heads say of their greedy chain to depth d (the product of their top-1 probabilities) against the share that came true:

{_table(["depth", *(f"said 0.{low}–" for low in range(10)), "error"], lines)}
`error` is the mean distance between the two.
"""


def _table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def _sources(sources: Iterable[dict[str, Any]], what: str) -> str:
    lines = ""
    for source in sources:
        file = f" ({Path(source['data']).name})" if source["data"] else ""
        lines += f"- {source['task']}{file}: up to {source['count'] or 'all'} {what}\n"
    return lines


def _start(init: str) -> str:
    return f"starting from {init}, " if init else ""


def _minutes(about: dict[str, Any]) -> str:
    seconds = about["training_seconds"]
    return f"{seconds} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def _local(word: str) -> str:
    """A word of the command line without the part of a path that means nothing elsewhere."""
    head, mark, tail = word.partition("=")
    return f"{head}={Path(tail).name}" if mark and "/" in tail else Path(word).name if word.startswith("/") else word
