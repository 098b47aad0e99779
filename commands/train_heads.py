"""`train-heads`: let the target write, and train heads on what it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from entmtp_calib.errors import UsageError

from . import _options as opt
from ._output import Column, Output, Table
from ._session import load


def train_heads(
    out: Annotated[Path, typer.Option(help="Folder for the heads; work files go to OUT/work.")],
    prompts: Annotated[list[str], typer.Option(help="TASK, TASK:COUNT or TASK=FILE:COUNT; may be repeated.")],
    base: Annotated[str, typer.Option(help="Target to train for; see --model of run.", envvar="ENTMTP_MODEL")] = "smollm2",
    architecture: Annotated[str, typer.Option(help="hydra or medusa.")] = "hydra",
    heads: Annotated[int, typer.Option(help="Number of heads.", min=1, max=9)] = 4,
    layers: Annotated[int, typer.Option(help="Blocks per head.", min=1)] = 2,
    vocabulary: Annotated[int, typer.Option(help="Most frequent tokens that heads guess among; 0 for all.", min=0)] = 0,
    tokens: Annotated[int, typer.Option(help="Stop writing after this many tokens.", min=1)] = 1_000_000,
    max_prompt: Annotated[int, typer.Option(help="Longest prompt in tokens.", min=1)] = 320,
    max_new_tokens: opt.MaxNewTokens = 256,
    steps: Annotated[int, typer.Option(help="Optimiser steps.", min=1)] = 3000,
    batch: Annotated[int, typer.Option(help="Positions per step.", min=1)] = 2048,
    rate: Annotated[float, typer.Option(help="Peak learning rate.", min=0)] = 1e-3,
    work: Annotated[Path | None, typer.Option(help="Folder for written text and states.", show_default="OUT/work")] = None,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    fresh: opt.Fresh = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Distil and train draft heads for a target. Every part resumes where it was killed.

    The target writes greedily; the last thirtieth of the text (at least one shard) is held out and judged at the end.
    """
    from entmtp_calib.calibrate.head_training import HeadRecipe, make_heads, parse_source
    from entmtp_calib.calibrate.training import TrainingConfig

    screen = Output(json, quiet)
    sources = tuple(parse_source(text) for text in prompts)
    if architecture not in ("hydra", "medusa"):
        raise UsageError(f"unknown architecture {architecture!r}.", "Known: hydra, medusa.")
    recipe = HeadRecipe(architecture, heads, layers, vocabulary, sources, tokens, max_prompt, max_new_tokens, seed,
                        TrainingConfig(steps=steps, batch=batch, rate=rate, seed=seed))  # fmt: skip
    pair = load(screen, base, None, device, dtype)
    with screen.progress() as tick:
        made = make_heads(pair.target, pair.tokenizer, recipe, out, work or out / "work", tick, screen.say, fresh)
    columns = (Column("head", "head"), *(Column(f"top{k}", f"top {k}", ".3f") for k in (1, 2, 4, 10)))
    screen.table(
        Table("hit_rates", f"Hit rates on {made.positions} held-out tokens, given the true prefix", columns, made.hit_rates)
    )
    screen.fields("acceptance", made.acceptance, "Mean accepted drafts per step, held-out, greedy")
    screen.say(f"heads: {out}")
    screen.finish("train-heads")
