"""`report`: a run as one page, with a picture and a table of every figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import _options as opt
from ._output import Column, Output, Table

if TYPE_CHECKING:
    from entmtp_calib.report.figure import Figure, Missing
    from entmtp_calib.report.material import Material


def report(
    run_folder: opt.RunFolder,
    out: Annotated[Path | None, typer.Option(help="Folder for the report.", show_default="the run's")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Id of the prompt whose text is shown step by step.", show_default="a typical one")
    ] = None,
    search_times: Annotated[
        Path | None, typer.Option(help="CSV with the columns prompts, rollout_s, growth_s.", show_default="none")
    ] = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write report.html, one file that needs no network, and a picture (PNG) and the numbers (CSV) of every figure.

    A run that is not finished has the figures that it can have, and the page says what is missing. No model is loaded.
    """
    from entmtp_calib.report.build import figures
    from entmtp_calib.report.figure import Figure, Missing
    from entmtp_calib.report.material import read_material

    screen = Output(json, quiet)
    _need_matplotlib()
    material = read_material(run_folder)
    found = figures(material, _tokenizer(material), prompt, search_times)
    folder = run_folder if out is None else out
    files = _write(folder, material, found)
    rows = [{"figure": item.name, "says": item.sentence} for item in found if isinstance(item, Figure)]
    screen.table(Table("figures", "Figures", (Column("figure", "figure"), Column("says", "what it says")), rows))
    missing = [item for item in found if isinstance(item, Missing)]
    for item in missing:
        screen.say(f"left out: {item.name}, {item.reason}" + (f" (comes with {item.hint})" if item.hint else ""))
    for gap in material.gaps.values():
        screen.warn(f"unfinished: {gap}")
    screen.keep(report=str(folder / "report.html"), files=[str(path) for path in files],
                rows={item.name: [dict(row) for row in item.rows] for item in found if isinstance(item, Figure)},
                missing=[{"figure": item.name, "reason": item.reason} for item in missing])  # fmt: skip
    screen.say(f"written: {folder / 'report.html'} and {len(files) - 1} files in {folder / 'figures'}")
    screen.finish("report")


def _need_matplotlib() -> None:
    """Fail before the work where the drawing library is missing."""
    from importlib.util import find_spec

    from entmtp_calib.errors import UsageError

    if find_spec("matplotlib") is None:
        raise UsageError("a report needs matplotlib, which is not installed.", "Run: pip install 'entmtp[report]'")


def _tokenizer(material: Material) -> Any:
    """The run's tokenizer if it is at hand without loading the model, and still the one that the run was made with."""
    from entmtp_calib.engine.loading import load_tokenizer
    from entmtp_calib.errors import UsageError
    from entmtp_calib.template import template_about

    found = load_tokenizer(material.config.model) if material.bank and material.replayable else None
    if found is None:
        return None
    try:
        about = template_about(found, material.config.prompt_style)
    except UsageError:  # another tokenizer under the same name
        return None
    return found if about == material.run.about["inputs"].get("template") else None


def _write(folder: Path, material: Material, found: Sequence[Figure | Missing]) -> list[Path]:
    """Write the page and the files of every figure; files of figures that are no more are removed."""
    from entmtp_calib.report.drawing import to_png, to_svg
    from entmtp_calib.report.figure import Figure, to_csv
    from entmtp_calib.report.page import page
    from entmtp_calib.storage import write_atomically

    pictures, written = {}, []
    for item in found:
        png, csv = (folder / "figures" / f"{item.name}.{kind}" for kind in ("png", "csv"))
        if isinstance(item, Figure):
            pictures[item.name] = to_svg(item)
            write_atomically(png, to_png(item))
            write_atomically(csv, to_csv(item))
            written += [png, csv]
        else:
            png.unlink(missing_ok=True)
            csv.unlink(missing_ok=True)
    write_atomically(folder / "report.html", page(material, found, pictures).encode())
    return [*written, folder / "report.html"]
