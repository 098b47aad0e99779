"""`import`: trees of others, checked and kept in a tree file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from entmtp_calib.errors import ArtefactError, UsageError

from . import _options as opt
from ._output import Column, Output, Table

if TYPE_CHECKING:
    from entmtp_calib.imports import Imported


def import_(
    files: Annotated[
        list[Path], typer.Argument(help="Node lists as Python, JSON or YAML; - for standard input.", metavar="FILE…")
    ],
    out: Annotated[Path, typer.Option(help="Tree file to write.")],
    label: Annotated[
        str | None, typer.Option(help="Name of the tree, or which of several named lists to take.", show_default="the file's")
    ] = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Check node lists of other tools and keep them in a tree file.

    Lists may be full or hold leaves only: missing parents are added, and that is said. `entmtp run --add-trees`, or
    `entmtp recalibrate --add-trees` and `entmtp time`, then measure the trees beside a run's own, and `entmtp export` writes them
    for engines.
    """
    from entmtp_calib.imports import import_text, trees_to_json
    from entmtp_calib.storage import to_json, write_atomically

    screen = Output(json, quiet)
    trees: list[Imported] = []
    for file in files:
        found = import_text(_read(file), file.stem if str(file) != "-" else label or "imported", only=label or "")
        trees += found if label is None else [_chosen(found, label)]
    write_atomically(out, to_json(trees_to_json(trees)))
    for tree in trees:
        if tree.added:
            shown = ", ".join(str(list(node)) for node in tree.added[:8]) + (", …" if len(tree.added) > 8 else "")
            screen.say(f"{tree.label}: {len(tree.added)} nodes were only implied and are added: {shown}")
    rows = [{"tree": tree.label, "nodes": tree.topology.size, "depth": tree.topology.depth, "added": len(tree.added),
             "added_nodes": [list(node) for node in tree.added]} for tree in trees]  # fmt: skip
    columns = (Column("tree", "tree"), Column("nodes", "nodes"), Column("depth", "depth"), Column("added", "added"))
    screen.table(Table("trees", f"Trees in {out}", columns, rows))
    screen.say(f"next: entmtp recalibrate RUN --add-trees {out}")
    screen.keep(file=str(out))
    screen.finish("import")


def _read(file: Path) -> str:
    """The text of a file, or of standard input."""
    from entmtp_calib.imports import MAX_CHARACTERS

    try:
        if str(file) == "-":
            return sys.stdin.read(MAX_CHARACTERS + 1)
        with file.open(encoding="utf-8-sig") as text:
            return text.read(MAX_CHARACTERS + 1)
    except FileNotFoundError:
        raise ArtefactError(f"there is no file {file}.", "Give a file with a node list.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError(f"{file} cannot be read as UTF-8 text ({error}).", "Give another file.") from None


def _chosen(found: list[Imported], label: str) -> Imported:
    """The one tree, called `label`; of several the one that is called so."""
    from dataclasses import replace

    if len(found) == 1:
        return replace(found[0], label=label)
    named = [tree for tree in found if tree.label == label]
    if not named:
        raise UsageError(f"there is no list {label!r}.", f"There are: {', '.join(tree.label for tree in found)}.")
    return named[0]
