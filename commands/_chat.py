"""`decode --chat`: a conversation in a terminal, whose history stays in the caches."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from entmtp_calib.errors import EntmtpError, UsageError

from ._answer import Limits, answer, tell, write_to
from ._output import Output

if TYPE_CHECKING:
    from entmtp_calib.calibrate.bank_decoder import BankDecoder
    from entmtp_calib.calibrate.step_log import StepLog


def chat(screen: Output, model: BankDecoder, log: StepLog, first: str | None, limits: Limits) -> None:
    """Answer lines until an empty one; a message that cannot be answered is dropped and the conversation goes on."""
    context, messages = model.decoder.new_context(), list[tuple[str, str]]()
    screen.say("an empty line or Ctrl-D ends the chat; Ctrl-C stops an answer")
    text = first or _ask()
    while text:
        messages.append(("user", text))
        try:
            ids = model.encode(messages)
            held = context.shared(ids)
            found = answer(model, log, ids, limits, write_to(screen), context)
        except EntmtpError as error:
            messages.pop()
            screen.warn(f"{error.message} {error.hint}")
        else:
            tell(screen, model.policy, found.figures, f"; {held} of {len(ids)} prompt tokens were in the cache")
            messages.append(("assistant", found.text))
            if found.interrupted and not found.text:  # stopped before it began
                del messages[-2:]
        text = _ask()


def _ask() -> str:
    """The next line without its end; empty at the end of the input."""
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            with suppress(ImportError):
                import readline  # noqa: F401 (gives `input` the keys of an editor)
            return input("> ")
        return sys.stdin.readline().rstrip("\r\n")
    except EOFError:
        typer.echo(err=True)
        return ""
    except UnicodeDecodeError:
        raise UsageError("the message is not UTF-8.", "Give text.") from None
    except KeyboardInterrupt:
        typer.echo(err=True)
        raise typer.Exit(130) from None
