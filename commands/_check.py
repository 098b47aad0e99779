"""`run --check`: the deterministic part of a run made again, and what came out differently."""

from __future__ import annotations

from pathlib import Path

import typer

from entmtp_calib.errors import CheckFailed, UsageError

from ._output import Output
from ._session import open_run

_ALONE = {"check", "json", "quiet", "verbose"}


def check_run(screen: Output, path: Path, ctx: typer.Context) -> None:
    """Make a run again from its own options and compare.

    Raises:
        UsageError: other options were given, which the run's own would override. CheckFailed: something differs.
    """
    import tempfile

    from entmtp_calib.calibrate.pipeline import Calibration
    from entmtp_calib.calibrate.regeneration import regenerate
    from entmtp_calib.rundir import RunDir
    from entmtp_calib.storage import to_json, write_atomically

    sources = {name: ctx.get_parameter_source(name) for name in ctx.params if name not in _ALONE}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        raise UsageError(f"--check goes without --{given[0].replace('_', '-')}.", "A run is made again from its own options.")
    with tempfile.TemporaryDirectory() as folder, screen.progress() as tick:
        old = open_run(screen, path, "auto", "auto", None, tick, log=False)
        old.require("frontier.json", "search")
        write_atomically(Path(folder) / "run.json", to_json(old.run.about))
        new = Calibration(RunDir.open(Path(folder)), lambda: old.pair, lambda _pair: old.splits, tick)
        differences, stages = regenerate(old, new)
    screen.keep(differences=differences, compared=stages)
    if not differences:
        screen.text(f"The same again: {', '.join(stages)} of {path}.")
    for sentence in differences:
        screen.text(f"differs: {sentence}")
    screen.finish("check")
    if differences:
        raise CheckFailed(f"{path} does not come out the same.", "Its model, its heads, a library or this tool has changed.")
