"""`verify`: is the text of every tree and policy of a bank that of plain decoding?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import _options as opt
from ._output import Column, Output, Table
from ._session import load_of_bank


def verify(
    bank: opt.BankFile,
    task: opt.BankTask = None,
    data: opt.Data = None,
    prompts: Annotated[int, typer.Option(help="How many prompts.", min=1)] = 3,
    model: opt.BankModel = None,
    heads: opt.BankHeads = None,
    max_new_tokens: opt.MaxNewTokens = 64,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Decode prompts with every tree and policy of a bank and plainly; exit 4 if a text differs for no good reason.

    A bank made at a temperature above 0 is verified with samples: under one seed, trees and plain decoding draw the same text.

    In float32 all texts must be identical. In lower precision, texts may part where two logits are nearly equal.
    """
    from entmtp_calib.bank import load_bank
    from entmtp_calib.calibrate.prompts import load_prompts
    from entmtp_calib.engine.acceptance import rule_from
    from entmtp_calib.engine.decoder import autoregressive
    from entmtp_calib.engine.stopping import StopRule
    from entmtp_calib.errors import CheckFailed, UsageError
    from entmtp_calib.template import encode

    screen = Output(json, quiet)
    found = load_bank(bank)
    if found.acceptance["rule"] != "exact":
        raise UsageError(
            f"the bank has {found.acceptance['rule']} acceptance, which is not lossless.", "There is no text to verify."
        )
    chosen = load_prompts(task or found.task, data, prompts, seed).prompts
    pair = load_of_bank(screen, found, model, heads, device, dtype)
    style = found.template["style"]
    stop = StopRule(pair.target.end_ids, max_new_tokens)
    texts = [encode(prompt.messages, pair.tokenizer, style) for prompt in chosen]
    rule = rule_from(found.acceptance, seed)
    plain = [[token for step in autoregressive(pair.target, ids, stop, rule) for token in step.tokens] for ids in texts]
    with screen.progress() as tick:
        rows = _compare(pair, found, texts, plain, stop, rule, tick)
    counts = [Column(name, name.replace("_", " ")) for name in ("prompts", "identical", "near_ties", "diverged")]
    columns = (Column("arm", "tree or policy"), *counts, Column("largest_gap", "largest gap at a parting", ".3g"))
    screen.table(Table("verification", f"Texts against plain decoding, {pair.placement.dtype_name}", columns, rows))
    screen.finish("verify")
    wrong = sum(row["diverged"] for row in rows)
    if wrong:
        raise CheckFailed(f"{wrong} texts differ from plain decoding without a near tie.", "This is a bug; please report it.")


def _compare(pair: Any, bank: Any, texts: list[Any], plain: list[Any], stop: Any, rule: Any, tick: Any) -> list[dict[str, Any]]:
    from entmtp_calib.calibrate.comparison import DIVERGED, IDENTICAL, NEAR_TIE, judge
    from entmtp_calib.engine.decoder import Decoder
    from entmtp_calib.policy import Static

    arms = [(tree.label, Static(index)) for index, tree in enumerate(bank.trees)] + list(bank.policies.items())
    rows = []
    for number, (label, policy) in enumerate(arms, 1):
        decoder = Decoder(pair.target, pair.heads, bank.topologies, policy, bank.signal, rule)
        verdicts = []
        for ids, wanted in zip(texts, plain, strict=True):
            tokens = [token for step in decoder.steps(ids, stop) for token in step.tokens]
            verdicts.append(judge(pair.target, ids, tokens, wanted, rule))
        kinds = [verdict for verdict, _place, _gap in verdicts]
        gaps = [gap for verdict, _place, gap in verdicts if verdict != IDENTICAL]
        rows.append({"arm": label, "prompts": len(kinds), "identical": kinds.count(IDENTICAL), "near_ties": kinds.count(NEAR_TIE),
                     "diverged": kinds.count(DIVERGED), "largest_gap": max(gaps) if gaps else None})  # fmt: skip
        tick("verify", number, len(arms))
    return rows
