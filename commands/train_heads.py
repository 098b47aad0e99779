"""`train-heads`: let the target write, and train heads on what it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from entmtp_calib.errors import UsageError

from . import _completion as known
from . import _options as opt
from ._output import Column, Output, Table
from ._session import load


def train_heads(
    out: Annotated[Path, typer.Option(help="Folder for the heads; work files go to OUT/work.")],
    prompts: Annotated[list[str], typer.Option(help="TASK, TASK:COUNT or TASK=FILE:COUNT; may be repeated.")],
    recorded: Annotated[
        list[str] | None,
        typer.Option(help="TASK[=FILE][:COUNT]: conversations to read with their recorded answers.", show_default="none"),
    ] = None,
    base: Annotated[str, typer.Option(help="Target to train for; see --model of run.", autocompletion=known.models)] = "smollm2",
    architecture: Annotated[str, typer.Option(help="hydra, hydra++ or medusa.", autocompletion=known.architectures)] = "hydra",
    heads: Annotated[int, typer.Option(help="Number of heads.", min=1, max=9)] = 4,
    layers: Annotated[int, typer.Option(help="Blocks per head.", min=1)] = 2,
    vocabulary: Annotated[int, typer.Option(help="Most frequent tokens that heads guess among; 0 for all.", min=0)] = 0,
    tokens: Annotated[int, typer.Option(help="Stop writing after this many tokens.", min=1)] = 1_000_000,
    max_prompt: Annotated[int, typer.Option(help="Longest prompt in tokens.", min=1)] = 320,
    max_new_tokens: opt.MaxNewTokens = 256,
    temperature: Annotated[float, typer.Option(help="At which the target writes; 0 is greedy.", min=0)] = 0.0,
    labels: Annotated[
        str, typer.Option(help="soft: the target's distribution; hard: the tokens it wrote.", autocompletion=known.labels)
    ] = "soft",
    depth_weights: Annotated[str, typer.Option(help="Weights of the heads' losses; the last for all deeper heads.")] = "1",
    init: Annotated[str, typer.Option(help="Heads to start from: hydra++ may start from hydra.", show_default="none")] = "",
    depth_shares: Annotated[str, typer.Option(help="Share of positions that each head trains on at a step.")] = "1",
    steps: Annotated[int, typer.Option(help="Optimiser steps.", min=1)] = 3000,
    batch: Annotated[int, typer.Option(help="Positions per step.", min=1)] = 2048,
    rate: Annotated[float, typer.Option(help="Peak learning rate.", min=0)] = 1e-3,
    dropout: Annotated[float, typer.Option(help="Share of a head's inputs left out at a step.", min=0, max=0.9)] = 0.0,
    work: Annotated[Path | None, typer.Option(help="Folder for written text and states.", show_default="OUT/work")] = None,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Distil and train draft heads for a target. Every part resumes where it was killed.

    The target writes; the last thirtieth of the text (at least one shard) is held out and judged while training goes on and at
    the end.
    """
    from entmtp_calib.calibrate.head_judging import calibration_error
    from entmtp_calib.calibrate.head_training import HeadRecipe, make_heads, parse_source
    from entmtp_calib.calibrate.training import TrainingConfig
    from entmtp_calib.engine.heads import ARCHITECTURES

    screen = Output(json, quiet)
    sources = tuple(parse_source(text) for text in prompts)
    for given, names, what in ((architecture, ARCHITECTURES, "architecture"), (labels, ("soft", "hard"), "labels")):
        if given not in names:
            raise UsageError(f"unknown {what} {given!r}.", f"Known: {', '.join(names)}.")
    recipe = HeadRecipe(architecture, heads, layers, vocabulary, sources, tokens, max_prompt, max_new_tokens, seed,
                        TrainingConfig(steps=steps, batch=batch, rate=rate, dropout=dropout, seed=seed, labels=labels,
                                       depth_weights=_weights("weights", depth_weights),
                                       depth_shares=_shares(depth_shares)), temperature, init,
                        recorded=tuple(parse_source(text) for text in recorded or ()))  # fmt: skip
    pair = load(screen, base, None, device, dtype)
    with screen.progress() as tick:
        made = make_heads(pair.target, pair.tokenizer, recipe, out, work or out / "work", tick, screen.say, fresh)
    rows = [row | {"error": calibration_error(made.reliability, int(row["head"]))} for row in made.hit_rates]
    columns = (Column("head", "head"), *(Column(f"top{k}", f"top {k}", ".3f") for k in (1, 2, 4, 10)),
               Column("error", "calibration error", ".3f"))  # fmt: skip
    screen.table(Table("hit_rates", f"Hit rates on {made.positions} held-out tokens, given the true prefix", columns, rows))
    screen.fields("acceptance", made.acceptance, "Mean accepted drafts per step, held-out, greedy")
    screen.keep(reliability=made.reliability)
    screen.say(f"heads: {out}")
    screen.finish("train-heads")


def _weights(name: str, text: str) -> tuple[float, ...]:
    try:
        weights = tuple(float(word) for word in text.split(","))
    except ValueError:
        weights = ()
    if not weights or not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise UsageError(f"--depth-{name} {text!r} is not a list of {name}.", "For example: 1,0.8,0.6.")
    return weights


def _shares(text: str) -> tuple[float, ...]:
    shares = _weights("shares", text)
    if not all(0 < share <= 1 for share in shares):
        raise UsageError(f"--depth-shares {text!r} has a share that is not above 0 and at most 1.")
    return shares
