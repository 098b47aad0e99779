"""`decode`: write the answer to a prompt with a bank, as it comes, or hold a conversation."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import _completion as known
from . import _options as opt
from ._answer import Limits, answer, tell, write_to
from ._output import Output
from ._session import load_of_bank, say_graphs

if TYPE_CHECKING:
    from entmtp_calib.calibrate.bank_decoder import BankDecoder
    from entmtp_calib.calibrate.step_log import StepLog


def decode(
    bank: Annotated[Path, typer.Option(help="bank.json of a run.")],
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; without it, --file or standard input.", show_default="none")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file, byte for byte.", show_default="none")] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="auto (what the bank recommends), static, ladder, hysteresis, dynamic, or ar.",
            autocompletion=known.policies_and_ar,
        ),
    ] = "auto",
    chat: Annotated[bool, typer.Option("--chat", help="Hold a conversation; an empty line ends it.", show_default="off")] = False,
    guard: Annotated[
        bool, typer.Option("--guard", help="Hold trees back while they are slower than plain decoding.", show_default="off")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write one row per step to this .csv or .parquet file.", show_default="none")
    ] = None,
    model: opt.BankModel = None,
    heads: opt.BankHeads = None,
    max_new_tokens: opt.MaxNewTokens = 256,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a bank timed on another machine or dtype.", show_default="off")
    ] = False,
    stop: Annotated[
        list[str] | None, typer.Option(help="A text after which it ends; may be repeated.", show_default="none")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the noise, if the bank was made at a temperature above 0.", min=0)] = 0,
    graphs: opt.Graphs = "auto",
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Decode a prompt with the trees and the policy of a bank. With exact acceptance, the text is that of plain decoding.

    A bank that was made at a temperature above 0 samples at that temperature: one seed gives one text, whatever the tree.
    """
    from entmtp_calib.bank import load_bank
    from entmtp_calib.guard import Guard

    screen, limits = Output(json, quiet), Limits(max_new_tokens, tuple(stop or ()))
    _check(limits, chat, guard and policy == "ar", json, file)
    found = load_bank(bank)
    if policy != "ar":
        found.policy(policy)  # a typo should not cost a model's loading time
    text = prompt if chat else read_prompt(prompt, file)

    from entmtp_calib.calibrate.bank_decoder import BankDecoder
    from entmtp_calib.calibrate.step_log import StepLog, check_trace_file

    if trace is not None:
        check_trace_file(trace)
    pair = load_of_bank(screen, found, model, heads, device, dtype, graphs)
    decoder = BankDecoder(found, pair, policy, seed, Guard() if guard else None)
    _say_where(screen, decoder.elsewhere, strict)
    log = StepLog(decoder.labels, decoder.plain_tokens_per_s)
    try:
        _run(screen, decoder, log, text, limits, chat)
    finally:
        if trace is not None:
            log.save(trace)
            screen.say(f"{len(log.rows)} steps are in {trace}")


def _check(limits: Limits, chat: bool, idle_guard: bool, json: bool, file: Path | None) -> None:
    """Refuse what cannot be right before anything is loaded."""
    from entmtp_calib.errors import UsageError

    if limits.max_new_tokens < 1:
        raise UsageError(f"--max-new-tokens is {limits.max_new_tokens}.", "Ask for at least 1.")
    if "" in limits.stop:
        raise UsageError("--stop is empty.", "Leave it out, or give a text.")
    if chat and (json or file is not None):
        raise UsageError(f"--chat was given with {'--json' if json else '--file'}.", "A chat reads lines and writes text.")
    if idle_guard:
        raise UsageError("--guard was given with --policy ar.", "There is no tree to hold back.")


def read_prompt(prompt: str | None, file: Path | None) -> str:
    from entmtp_calib.errors import UsageError

    if prompt is not None and file is not None:
        raise UsageError("a prompt and --file were given.", "Give one of them.")
    try:
        if file is not None:
            text = file.read_bytes().decode()
        else:
            text = prompt if prompt is not None else sys.stdin.buffer.read().decode()
        text.encode()
    except (OSError, UnicodeError) as error:
        where = file or ("standard input" if prompt is None else "the prompt")
        raise UsageError(f"{where} cannot be read as UTF-8 text ({error}).", "Give other text.") from None
    if not text:
        raise UsageError("the prompt is empty.", "Give it as an argument, with --file, or on standard input.")
    return text


def _say_where(screen: Output, elsewhere: list[str], strict: bool) -> None:
    """Say where the bank's timings may not hold, or refuse it."""
    from entmtp_calib.errors import ArtefactError

    if elsewhere and strict:
        raise ArtefactError(f"the bank was timed elsewhere ({', '.join(elsewhere)}).", "Time it here, or leave out --strict.")
    if elsewhere:
        screen.warn(f"the bank was timed elsewhere ({', '.join(elsewhere)}): its trees hold, its choice among them may not")


def _run(screen: Output, model: BankDecoder, log: StepLog, text: str | None, limits: Limits, talk: bool) -> None:
    from ._chat import chat

    if talk:
        chat(screen, model, log, text, limits)
        say_graphs(screen, model.pair)
        return
    assert text is not None
    found = answer(model, log, model.encode(text), limits, write_to(screen))
    tell(screen, model.policy, found.figures)
    say_graphs(screen, model.pair)
    if found.figures.speedup < 1 and model.policy != "ar":
        screen.warn(f"this was slower than plain decoding in the bank's calibration ({found.figures.speedup:.2f} ×)")
    statistics = {"policy": model.policy} | asdict(found.figures)
    screen.keep(text=found.text, ids=found.ids, statistics=statistics, status="interrupted" if found.interrupted else "complete")
    screen.finish("decode")
    if found.interrupted:
        raise typer.Exit(130)
