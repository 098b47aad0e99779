"""What becomes of a command that fails: a sentence, a next step and an exit code; never a traceback, but for ENTMTP_DEBUG=1."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from entmtp_calib.errors import EntmtpError

from ._logging import logged, note
from ._output import Output, say_aside

_VERBOSE = inspect.Parameter(
    "verbose",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the log lines of the library on stderr.", show_default="off")
    ],
)
_EVERYWHERE: dict[str, tuple[type, Any]] = {"seed": (int, 0), "device": (str, "auto"), "dtype": (str, "auto")}
"""Options that every command takes, so that scripts can give them to all; where nothing depends on one, its help is silent."""


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose failures are told as `attempt` tells them, with the options of all and its help in whole paragraphs."""
    signature = inspect.signature(command, eval_str=True)
    unused = [name for name in _EVERYWHERE if name not in signature.parameters]

    @wraps(command)
    def run(*args: Any, verbose: bool = False, **options: Any) -> None:
        with logged(verbose):
            attempt(command, *args, **{name: value for name, value in options.items() if name not in unused})

    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(part.split()) for part in paragraphs)  # lines are broken where the terminal ends
    parameters = [*signature.parameters.values(), *map(_hidden, unused), _VERBOSE]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _hidden(name: str) -> inspect.Parameter:
    kind, default = _EVERYWHERE[name]
    option: Any = Annotated[kind, typer.Option(help="Unused here; accepted by every command.", hidden=True)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option)


def attempt(command: Callable[..., None], *args: Any, **options: Any) -> None:
    """Call something; what it raises becomes a sentence, a next step and an exit code."""
    try:
        command(*args, **options)
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        screen = Output(bool(options.get("json")))
        screen.keep(status="interrupted")
        screen.finish("status")
        _say_error("interrupted", "What is done is kept; run the same command again to go on.")
        raise typer.Exit(130) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except Exception as error:  # noqa: BLE001 (the last resort)
        if os.environ.get("ENTMTP_DEBUG") == "1":
            traceback.print_exc()
        message, hint, code = _explained(error)
        _say_error(message, hint, trace=not isinstance(error, EntmtpError))
        raise typer.Exit(code) from None


def _explained(error: Exception) -> tuple[str, str, int]:
    """A sentence, a next step and an exit code."""
    if isinstance(error, EntmtpError):
        return error.message.rstrip(), error.hint, error.exit_code
    if isinstance(error, ImportError):
        return (f"a package that is needed cannot be imported: {error}.", "Install it again; `entmtp env` says what is there.", 1)
    if isinstance(error, OSError):
        return f"{error.strerror or error} ({error.filename or 'no file named'})", "Check the disk and the permissions.", 1
    return f"internal error: {type(error).__name__}: {error}", "Set ENTMTP_DEBUG=1 for the traceback and report it.", 1


def _say_error(message: str, hint: str, trace: bool = False) -> None:
    note(logging.ERROR, message, trace)
    say_aside(f"error: {message}", "bold red")
    if hint:
        say_aside(f"hint: {hint}")
