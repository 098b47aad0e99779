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
    from entmtp_calib.calibrate.narration import Guess, Narration, ToldStep

_NARROWEST, _WIDEST = 20, 78
_SPACE = "\ue000"  # stands for a space inside quotes, which is no place to break a line
_ENDINGS = {"end": "an end token ended it", "stop": "a stop text ended it", "length": "it may not be longer"}


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

    A guess in brackets was accepted. Only guesses that could still be accepted are shown; --json has all of them. The sign � is a
    part of a character: some take several tokens.
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
    _tell(screen, told, len(ids))
    screen.keep(narration=asdict(told), prompt_tokens=len(ids))
    screen.finish("explain")


def _tell(screen: Output, told: Narration, prompt_tokens: int) -> None:
    width = max(_NARROWEST, min(_WIDEST, screen.width))
    reads = f"reads {told.signal}" if told.signal else "has no choice to make"
    lines = [f"Policy {told.policy}, which {reads}; a prompt of {prompt_tokens} tokens.", ""]
    for step in told.told:
        lines += [*_lines(step, told.signal), ""]
    rate = f"{told.tokens / told.steps:.2f} tokens a step"
    lines += [f"{told.tokens} tokens in {told.steps} steps, {rate}; {_ENDINGS[told.reason]}.", "", "The text:", ""]
    screen.text("\n".join(piece for line in lines for piece in _folded(line, width)))
    screen.text(told.text)


def _lines(step: ToldStep, signal: str | None) -> Iterator[str]:
    """A step in lines, not folded yet."""
    from entmtp_calib.calibrate.narration import guesses_along

    reason = f"{signal} is {step.signal:.3g}, {step.why}" if step.signal is not None else step.why
    nodes = f"{step.nodes} node" if step.nodes == 1 else f"{step.nodes} nodes"
    yield f"Step {step.number}: tree {step.tree} ({nodes})" + (f"; {reason}" if reason else "")
    yield f"  the model's own token: {_quoted(step.root)}"
    for depth, guesses in enumerate(guesses_along(step), 1):
        yield f"  head {depth} guesses {' '.join(map(_shown, guesses))}"
    accepted = f"accepted {step.accepted}" if step.guesses else "nothing was guessed"
    after = f", then the model wrote {_quoted(step.next)}" if step.next is not None else ""
    yield f"  {accepted}{after}: {step.ending}" if step.ending else f"  {accepted}{after}"
    yield f"  committed {_quoted(step.text)}"


def _shown(guess: Guess) -> str:
    return f"[{_quoted(guess.text)}]" if guess.accepted else _quoted(guess.text)


def _quoted(text: str) -> str:
    return dumps(text, ensure_ascii=False).replace(" ", _SPACE)


def _folded(line: str, width: int) -> list[str]:
    """A line in lines that are no wider, those after the first indented more."""
    indent = line[: len(line) - len(line.lstrip())]
    pieces = wrap(line.strip(), width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)
    return [piece.replace(_SPACE, " ") for piece in pieces] or [""]
