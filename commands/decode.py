"""`decode`: write the answer to a prompt with a bank, as it comes."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from . import _options as opt
from ._output import Output
from ._session import load_of_bank


def decode(
    bank: Annotated[Path, typer.Option(help="bank.json of a run.", envvar="ENTMTP_BANK")],
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; without it, --file or standard input.", show_default="none")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file, byte for byte.", show_default="none")] = None,
    policy: Annotated[str, typer.Option(help="auto (what the bank recommends), static, ladder, hysteresis, or ar.")] = "auto",
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
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Decode a prompt with the trees and the policy of a bank. The text is that of plain decoding.

    A bank that was made at a temperature above 0 samples at that temperature: one seed gives one text, whatever the tree.
    """
    from entmtp_calib.bank import load_bank
    from entmtp_calib.errors import UsageError

    screen = Output(json, quiet)
    found = load_bank(bank)
    text = _read_prompt(prompt, file)
    if max_new_tokens < 1:
        raise UsageError(f"--max-new-tokens is {max_new_tokens}.", "Ask for at least 1.")
    if policy != "ar":
        found.policy(policy)  # a typo should not cost a model's loading time
    pair = load_of_bank(screen, found, model, heads, device, dtype)
    ids = _fit_bank(screen, found, pair, text, strict)
    steps = _steps(pair, found, policy, ids, (max_new_tokens, tuple(stop or ())), seed)
    _stream(screen, pair, found, policy, steps, len(ids))


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    from entmtp_calib.errors import UsageError

    if prompt is not None and file is not None:
        raise UsageError("a prompt and --file were given.", "Give one of them.")
    if file is not None:
        try:
            text = file.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file} cannot be read as UTF-8 text ({error}).", "Give another file.") from None
    else:
        text = prompt if prompt is not None else sys.stdin.read()
    if not text:
        raise UsageError("the prompt is empty.", "Give it as an argument, with --file, or on standard input.")
    return text


def _fit_bank(screen: Output, bank: Any, pair: Any, text: str, strict: bool) -> list[int]:
    """Say where the bank's timings may not hold, and encode the prompt as the bank's prompts were."""
    from entmtp_calib.errors import ArtefactError
    from entmtp_calib.provenance import machine
    from entmtp_calib.template import encode

    here = {"cpu": machine()["cpu"], "device": str(pair.target.device), "dtype": pair.placement.dtype_name}
    other = [f"{name} {bank.measured.get(name)}" for name, value in here.items() if bank.measured.get(name) != value]
    if other and strict:
        raise ArtefactError(f"the bank was timed elsewhere ({', '.join(other)}).", "Time it here, or leave out --strict.")
    if other:
        screen.warn(f"the bank was timed elsewhere ({', '.join(other)}): its trees hold, its choice among them may not")
    return encode([("user", text)], pair.tokenizer, bank.template["style"])


def _steps(pair: Any, bank: Any, policy: str, ids: list[int], limits: tuple[int, tuple[str, ...]], seed: int) -> Any:
    from entmtp_calib.engine.acceptance import rule_from
    from entmtp_calib.engine.decoder import Decoder, autoregressive
    from entmtp_calib.engine.stopping import StopRule

    rule = rule_from(bank.acceptance, seed)
    stop = StopRule(pair.target.end_ids, *limits, pair.tokenizer.decode)
    if policy == "ar":
        return autoregressive(pair.target, ids, stop, rule)
    return Decoder(pair.target, pair.heads, bank.topologies, bank.policy(policy), bank.signal, rule).steps(ids, stop)


def _stream(screen: Output, pair: Any, bank: Any, policy: str, steps: Any, prompt_tokens: int) -> None:
    from entmtp_calib.text_stream import TextStream

    stream, done, pieces = TextStream(pair.tokenizer), [], []
    start = perf_counter()
    for step in steps:
        done.append(step)
        pieces.append(stream.push(step.tokens))
        _write(screen, pieces[-1])
    seconds = perf_counter() - start
    pieces.append(stream.finish())
    _write(screen, pieces[-1] + "\n")
    tokens = sum(len(step.tokens) for step in done)
    labels = [tree.label for tree in bank.trees]
    name = bank.recommended if policy == "auto" else policy
    shares = Counter("ar" if policy == "ar" else labels[step.index] if step.index >= 0 else "no room" for step in done)
    trees = [step.index for step in done]
    switches = sum(a != b for a, b in pairwise(trees))
    statistics = {
        "policy": name, "prompt_tokens": prompt_tokens, "tokens": tokens, "steps": len(done),
        "tokens_per_step": tokens / len(done), "seconds": seconds, "tokens_per_s": tokens / seconds,
        "ended_by": done[-1].reason, "switches_per_100_steps": 100 * switches / len(done),
        "trees": {label: count / len(done) for label, count in shares.most_common()},
    }  # fmt: skip
    shown = ", ".join(f"{label} {share:.0%}" for label, share in statistics["trees"].items())
    screen.say(
        f"{name}: {tokens} tokens in {len(done)} steps, {tokens / len(done):.2f} tokens/step, "
        f"{tokens / seconds:.1f} tokens/s with prefill; trees: {shown}; ended by {done[-1].reason}"
    )
    screen.keep(text="".join(pieces), ids=[token for step in done for token in step.tokens], statistics=statistics)
    screen.finish("decode")


def _write(screen: Output, text: str) -> None:
    if not screen.as_json and text:
        sys.stdout.write(text)
        sys.stdout.flush()
