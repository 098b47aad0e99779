"""The card of trained heads: a README in their folder that says how they were made and what they hit.

Turns values into Markdown; measures nothing.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.provenance import versions
from entmtp_calib.storage import write_atomically


def write_card(folder: Path, about: dict[str, Any], heads: DraftHeads) -> None:
    """Write `README.md` beside the weights.

    Args:
        about: recipe and figures, as in the heads' configuration.
    """
    recipe = about["recipe"]
    sources = "".join(
        f"- {s['task']}{' (' + Path(s['data']).name + ')' if s['data'] else ''}: up to {s['count'] or 'all'} prompts\n"
        for s in recipe["sources"]
    )
    shape = heads.shape
    parameters = sum(value.numel() for value in heads.parameters())
    among = f"the {shape.vocabulary} tokens most frequent in the text" if shape.reduced else "the whole vocabulary"
    rows = "".join(
        f"| {row['head']} | " + " | ".join(f"{row[f'top{k}']:.3f}" for k in (1, 2, 4, 10)) + " |\n" for row in about["hit_rates"]
    )
    accepts = "".join(f"| {name.replace('_', ' ')} | {value:.3f} |\n" for name, value in about["acceptance"].items())
    command = " ".join(shlex.quote(_local(word)) for word in ["entmtp", *sys.argv[1:]])
    known = versions()
    training = recipe["training"]
    text = f"""# {folder.name}

{shape.architecture.capitalize()} heads for {about["base_name"]}: {shape.heads} heads of {shape.layers} blocks,
{parameters / 1e6:.1f} M parameters, guessing among {among}; the LM head is the target's.

## How they were made

The target wrote the text itself, greedily, at most {recipe["max_new_tokens"]} tokens after each prompt. Prompts came from

{sources}
and gave {about["trained_tokens"]} tokens for training and {about["held_out_tokens"]} judged ones that training did not see.
The loss is the cross-entropy against the target's own distribution;
{training["steps"]} steps of {training["batch"]} positions, peak rate {training["rate"]}.

    {command}

torch {known.get("torch", "?")}, transformers {known.get("transformers", "?")}, entmtp {known.get("entmtp", "?")}.

## Hit rates

Held-out text, given the true prefix: share of positions with the true token among the first k guesses.

| head | top 1 | top 2 | top 4 | top 10 |
|---|---|---|---|---|
{rows}
Mean accepted drafts per step, root excluded, greedy, by replay on the same text:

| tree | mean accept |
|---|---|
{accepts}"""
    write_atomically(folder / "README.md", text.encode())


def _local(word: str) -> str:
    """A word of the command line without the part of a path that means nothing elsewhere."""
    head, mark, tail = word.partition("=")
    return f"{head}={Path(tail).name}" if mark and "/" in tail else Path(word).name if word.startswith("/") else word
