"""`verify`: is the text of every tree and policy of a bank that of plain decoding?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import _options as opt
from ._output import Column, Output, Table
from ._session import load_of_bank, say_graphs, token_ids

if TYPE_CHECKING:
    from entmtp_calib.calibrate.typical_verification import Lawful
    from entmtp_calib.calibrate.verification import Verdict


def verify(
    bank: opt.BankFile,
    task: opt.BankTask = None,
    data: opt.Data = None,
    prompts: Annotated[int, typer.Option(help="How many prompts.", min=1)] = 3,
    model: opt.BankModel = None,
    heads: opt.BankHeads = None,
    max_new_tokens: opt.MaxNewTokens = 64,
    seed: opt.Seed = 0,
    graphs: opt.Graphs = "auto",
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Decode prompts with every tree and policy of a bank and plainly; exit 4 if a text differs for no good reason.

    Every tree also decodes with dictated guesses, so that each of its paths is accepted once, and the cache that is left is
    compared with that of a straight forward.

    A bank made at a temperature above 0 is verified with samples: under one seed, trees and plain decoding draw the same text.

    In float32 all texts must be identical. In lower precision, texts may part where two logits are nearly equal.

    Typical acceptance is not lossless: there, every token must be one that the rule allows after a plain forward.
    """
    from functools import partial

    from entmtp_calib.bank import load_bank
    from entmtp_calib.calibrate.prompts import load_prompts
    from entmtp_calib.calibrate.typical_verification import verify_typical
    from entmtp_calib.calibrate.verification import verify_bank
    from entmtp_calib.engine.acceptance import Typical, rule_from
    from entmtp_calib.engine.stopping import StopRule
    from entmtp_calib.errors import CheckFailed

    screen = Output(json, quiet)
    found = load_bank(bank)
    chosen = load_prompts(task or found.task, data, prompts, seed).prompts
    pair = load_of_bank(screen, found, model, heads, device, dtype, graphs)
    stop = StopRule(pair.target.end_ids, max_new_tokens)
    texts = token_ids(found, chosen, pair)
    rule: Any = rule_from(found.acceptance, seed)
    judge, show = (verify_typical, _show_typical) if isinstance(rule, Typical) else (verify_bank, _show)
    with screen.progress() as tick:
        verdicts: Any = judge(pair, found, texts, stop, rule, partial(tick, "verify"))
    show(screen, verdicts, pair.placement.dtype_name)
    say_graphs(screen, pair)
    screen.finish("verify")
    wrong = [verdict.arm for verdict in verdicts if not verdict.ok]
    if wrong:
        kept = "texts or caches differ from plain decoding" if rule.lossless else "texts break the rule, or caches differ,"
        raise CheckFailed(f"{kept} without a near tie: {'; '.join(wrong)}.", "This is a bug; please report it.")


def _show_typical(screen: Output, verdicts: list[Lawful], dtype: str) -> None:
    """What texts that depend on the tree are held to."""
    from dataclasses import asdict

    columns = (Column("arm", "tree or policy"), Column("prompts", "prompts"), Column("tokens", "tokens"),
               Column("drafts", "accepted drafts"), Column("unlawful", "not allowed"), Column("near_ties", "near ties"),
               Column("repeated", "same again"), Column("cache_error", "cache error", ".1e"))  # fmt: skip
    title = f"Texts under typical acceptance, which is not lossless: tokens that its rule does not allow, {dtype}"
    screen.table(Table("verification", title, columns, [asdict(verdict) for verdict in verdicts]))


def _show(screen: Output, verdicts: list[Verdict], dtype: str) -> None:
    """The verdicts, and the partings one by one."""
    counts = ("prompts", "identical", "near_ties", "diverged", "wrong_steps")
    columns = (Column("arm", "tree or policy"), *(Column(name, name.replace("_", " ")) for name in counts),
               Column("cache_error", "cache error", ".1e"), Column("largest_gap", "largest gap", ".3g"))  # fmt: skip
    rows = [_row(verdict) for verdict in verdicts]
    screen.table(Table("verification", f"Texts against plain decoding, {dtype}", columns, rows))
    partings = [
        {"prompt": parting.prompt, "arm": parting.arm, "token": parting.token, "gap": parting.gap, "verdict": parting.verdict}
        for verdict in verdicts
        for parting in verdict.partings
    ]
    if not partings:
        screen.keep(partings=[])
        return
    columns = (Column("prompt", "prompt"), Column("arm", "tree or policy"), Column("token", "parts at token"),
               Column("gap", "gap of the two best logits", ".3g"), Column("verdict", "verdict"))  # fmt: skip
    screen.table(Table("partings", "Where texts part", columns, partings))


def _row(verdict: Verdict) -> dict[str, Any]:
    from entmtp_calib.calibrate.comparison import DIVERGED, IDENTICAL, NEAR_TIE

    return {"arm": verdict.arm, "prompts": verdict.prompts, "identical": verdict.count(IDENTICAL),
            "near_ties": verdict.count(NEAR_TIE), "diverged": verdict.count(DIVERGED), "wrong_steps": verdict.wrong_steps,
            "cache_error": verdict.cache_error, "largest_gap": verdict.largest_gap, "ok": verdict.ok}  # fmt: skip
