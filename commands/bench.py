"""`bench`: a bank beside plain decoding and transformers' own ways, on the same prompts in one run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import _options as opt
from ._output import Column, Output, Table
from ._session import load_of_bank


def bench(
    bank: opt.BankFile,
    task: opt.BankTask = None,
    data: opt.Data = None,
    prompts: Annotated[int, typer.Option(help="How many prompts.", min=1)] = 8,
    rounds: opt.Rounds = 2,
    model: opt.BankModel = None,
    heads: opt.BankHeads = None,
    max_new_tokens: opt.MaxNewTokens = 128,
    seed: opt.Seed = 1,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Time the policies of a bank, plain decoding, the published tree and transformers, interleaved.

    Example: entmtp bench outputs/mine/bank.json --task humaneval --prompts 20
    """
    from entmtp_calib.bank import load_bank
    from entmtp_calib.calibrate.bench import bench_runners
    from entmtp_calib.calibrate.prompts import load_prompts
    from entmtp_calib.calibrate.rounds import interleave
    from entmtp_calib.calibrate.timing import Arm, summarise
    from entmtp_calib.engine.stopping import StopRule
    from entmtp_calib.template import encode
    from entmtp_calib.topology import Topology

    screen = Output(json, quiet)
    found = load_bank(bank)
    chosen = load_prompts(task or found.task, data, prompts, seed).prompts
    pair = load_of_bank(screen, found, model, heads, device, dtype)
    style = found.template["style"]
    texts = [(prompt.id, encode(prompt.messages, pair.tokenizer, style)) for prompt in chosen]
    runners = bench_runners(pair, found, seed)
    rows: list[dict[str, Any]] = []
    total = len(runners) * len(texts) * rounds
    with screen.progress() as tick:
        interleave(runners, texts, StopRule(pair.target.end_ids, max_new_tokens), rounds, seed, rows,
                   on_run=lambda done: tick("bench", done, total))  # fmt: skip
    timed = summarise([Arm(label, Topology()) for label in runners], rows)
    screen.table(_table(timed, len(texts), found.task if task is None else task))
    screen.keep(runs=rows, max_new_tokens=max_new_tokens)
    screen.finish("bench")


def _table(timed: list[Any], prompts: int, task: str) -> Table:
    rows = [
        {"arm": arm.label, "tokens_per_s": arm.tokens_per_s, "tokens_per_step": arm.tokens_per_step, "speedup": arm.speedup,
         "speedup_low": arm.speedup_low, "speedup_high": arm.speedup_high, "cv": arm.cv,
         "interval": f"{arm.speedup_low:.2f}–{arm.speedup_high:.2f}"}
        for arm in sorted(timed, key=lambda arm: -arm.tokens_per_s)
    ]  # fmt: skip
    columns = (Column("arm", "arm"), Column("tokens_per_s", "tokens/s", ".1f"), Column("tokens_per_step", "tokens/step", ".2f"),
               Column("speedup", "× ar", ".2f"), Column("interval", "95 % interval"), Column("cv", "cv", ".1%"))  # fmt: skip
    return Table("bench", f"Tokens per second on {prompts} prompts of {task}, prefill included, interleaved", columns, rows)
