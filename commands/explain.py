"""`explain`: what the decoder does with a prompt, step by step, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from json import dumps
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from . import _completion as known
from . import _options as opt
from ._output import Output
from ._session import load_of_bank
from .decode import read_prompt

if TYPE_CHECKING:
    from entmtp_calib.calibrate.narration import Guess, ToldStep

_WIDTH = 78


def explain(
    bank: opt.BankFile,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; without it, --file or standard input.", show_default="none")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file, byte for byte.", show_default="none")] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="auto (what the bank recommends), static, ladder, hysteresis or dynamic.", autocompletion=known.policies
        ),
    ] = "auto",
    steps: Annotated[int, typer.Option(help="How many steps to tell.", min=1)] = 8,
    model: opt.BankModel = None,
    heads: opt.BankHeads = None,
    max_new_tokens: opt.MaxNewTokens = 64,
    seed: Annotated[int, typer.Option(help="Of the noise, if the bank was made at a temperature above 0.", min=0)] = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Decode a prompt and tell the first steps: the tree and why it, the guesses, and which were accepted.

    A guess in brackets was accepted. Only guesses that could still be accepted are shown; --json has all of them.
    """
    from entmtp_calib.bank import load_bank
    from entmtp_calib.calibrate.narration import narrate
    from entmtp_calib.engine.stopping import StopRule
    from entmtp_calib.template import encode

    screen = Output(json, quiet)
    found = load_bank(bank)
    found.policy(policy)  # a typo should not cost a model's loading time
    text = read_prompt(prompt, file)
    pair = load_of_bank(screen, found, model, heads, device, dtype)
    ids = encode([("user", text)], pair.tokenizer, found.template["style"])
    stop = StopRule(pair.target.end_ids, max_new_tokens, (), pair.tokenizer.decode)
    told = narrate(pair, found, policy, ids, stop, steps, seed)
    screen.text(f"Policy {told.policy}, signal {told.signal}; a prompt of {len(ids)} tokens.")
    for step in told.told:
        screen.text("\n" + "\n".join(_lines(step, told.signal)))
    rate = f"{told.tokens / told.steps:.2f} tokens a step"
    screen.text(f"\n{told.tokens} tokens in {told.steps} steps, {rate}; ended by {told.reason}. The text:\n\n{told.text}")
    screen.keep(narration=asdict(told), prompt_tokens=len(ids))
    screen.finish("explain")


def _lines(step: ToldStep, signal: str) -> Iterator[str]:
    """A step in lines of at most 78 characters."""
    from entmtp_calib.calibrate.narration import guesses_along

    reason = f"{signal} is {step.signal:.3g}, {step.why}" if step.signal is not None else step.why
    yield from _folded(f"Step {step.number}: tree {step.tree} ({step.nodes} nodes)" + (f"; {reason}" if reason else ""), "  ")
    yield from _folded(f"  the model's own token: {_quoted(step.root)}")
    for depth, guesses in enumerate(guesses_along(step), 1):
        yield from _folded(f"  head {depth} guesses {' '.join(map(_shown, guesses))}")
    accepted = f"accepted {step.accepted}" if step.guesses else "nothing to accept"
    after = f", then the model wrote {_quoted(step.next)}" if step.next is not None else ""
    yield from _folded(f"  {accepted}{after}: {step.ending}" if step.ending else f"  {accepted}{after}")
    yield from _folded(f"  committed {_quoted(step.text)}")


def _shown(guess: Guess) -> str:
    return f"[{_quoted(guess.text)}]" if guess.accepted else _quoted(guess.text)


def _quoted(text: str) -> str:
    return dumps(text, ensure_ascii=False)


def _folded(line: str, more: str = "    ") -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return wrap(line.strip(), _WIDTH, initial_indent=indent, subsequent_indent=more, break_on_hyphens=False)
