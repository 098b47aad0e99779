"""The command line: words, tables and exit codes over the library.

Importing it imports neither torch nor transformers; commands import what they need when they run.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from entmtp_calib import __version__

from ._examples import epilog
from ._failures import attempt, guarded
from ._output import speak_plainly
from ._settings import Command, Defaults
from .bank_compare import compare
from .bank_export import export
from .bank_import import import_
from .bank_show import show
from .bank_verify import verify
from .bench import bench
from .decode import decode
from .env import env
from .explain import explain
from .export_heads import export_heads
from .pipeline import fit_thresholds, recalibrate, run, search, time
from .report import report
from .train_heads import train_heads

app = typer.Typer(
    name="entmtp",
    help="Measure a bank of draft trees for a model with multi-token-prediction heads, and decode with it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Every option can also be set in entmtp.toml of the working folder (or another file that ENTMTP_CONFIG names), under "
    r"\[command] or for all commands at the top, and by a variable, ENTMTP_COMMAND_OPTION or ENTMTP_OPTION. What is given here "
    "comes first, then variables, then the file.\n\n"
    "Exit codes: 0 ok, 1 failure, 2 usage, 3 artefact missing or incompatible, 4 a check found a difference, "
    "130 interrupted.",
)

_PIPELINE, _USE = "Pipeline", "Use"
COMMANDS: list[tuple[str, Callable[..., None], str]] = [
    ("run", run, _PIPELINE),
    ("search", search, _PIPELINE),
    ("recalibrate", recalibrate, _PIPELINE),
    ("time", time, _PIPELINE),
    ("fit-thresholds", fit_thresholds, _PIPELINE),
    ("decode", decode, _USE),
    ("explain", explain, _USE),
    ("verify", verify, _USE),
    ("bench", bench, _USE),
    ("show", show, _USE),
    ("report", report, _USE),
    ("compare", compare, _USE),
    ("export", export, _USE),
    ("import", import_, _USE),
    ("env", env, _USE),
    ("train-heads", train_heads, _USE),
    ("export-heads", export_heads, _USE),
]
for _name, _command, _panel in COMMANDS:
    app.command(_name, rich_help_panel=_panel, epilog=epilog(_name), cls=Command)(guarded(_command))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"entmtp {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    if ctx.invoked_subcommand:
        functions = {name: guarded(command) for name, command, _panel in COMMANDS}
        ctx.default_map = {ctx.invoked_subcommand: Defaults(ctx.invoked_subcommand, functions)}


def main() -> None:
    """Entry point of `entmtp` and of `python -m entmtp_calib`."""
    try:
        speak_plainly()
        attempt(app, prog_name="entmtp")  # commands have told of their own failures; help and version have not
    except typer.Exit as left:
        sys.exit(left.exit_code)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one interrupt is enough; another must not break the end of Python
