"""`export`: a tree of a bank in the words of a serving engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entmtp_calib.errors import UsageError
from entmtp_calib.exports import ENGINES
from entmtp_calib.storage import write_atomically

from . import _completion as known
from . import _options as opt
from ._output import Output

if TYPE_CHECKING:
    from entmtp_calib.bank import TopologyBank
    from entmtp_calib.topology import Topology


def export(
    bank: Annotated[Path, typer.Argument(help="bank.json of a run, or a tree file of `entmtp import`.", metavar="BANK")],
    to: Annotated[str, typer.Option(help=f"Engine: {', '.join(ENGINES)}.", autocompletion=lambda: list(ENGINES))],
    policy: Annotated[
        str,
        typer.Option(
            help="Whose tree: auto (what the bank recommends), static, ladder or hysteresis.",
            autocompletion=known.policies_of_trees,
        ),
    ] = "auto",
    tree: Annotated[
        str | None,
        typer.Option(
            help="A tree by label or index, whatever the policy.", show_default="the policy's", autocompletion=known.trees
        ),
    ] = None,
    legacy: Annotated[
        bool, typer.Option("--legacy", help="vLLM: the tree that its versions up to 0.20.2 read.", show_default="off")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write.", show_default="standard output")] = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write a tree of a bank in the exact syntax of a serving engine. What the engine can and cannot do is said on stderr."""
    from entmtp_calib.exports import export_ladder, export_tree

    screen = Output(json, quiet)
    trees, found = _load(bank)
    members = _members(screen, found, policy) if tree is None else []
    if to == "sglang" and len(members) > 1 and not legacy:
        label, made = policy, export_ladder([trees[name] for name in members])
    else:
        label = _label(screen, trees, found, members) if tree is None else _named(trees, tree)
        made = export_tree(trees[label], to, str(found.heads.get("layout", "")) if found else "", legacy)
    data = _grow_map(trees[label], out) if to == "sequoia" else made.text.encode()
    for note in made.notes:
        screen.say(note)
    if out is not None:
        write_atomically(out, data)
        screen.say(f"written: {out}")
    elif not screen.as_json:
        sys.stdout.write(made.text)
    screen.keep(engine=to, tree=label, text=made.text, notes=list(made.notes), file=str(out) if out else None)
    screen.finish("export")


def _grow_map(tree: Topology, out: Path | None) -> bytes:
    from entmtp_calib.calibrate.grow_map import grow_map_bytes

    if out is None:
        raise UsageError("a grow map is not text.", "Give a file with --out, as in --out tree.pt.")
    return grow_map_bytes(tree)


def _load(path: Path) -> tuple[dict[str, Topology], TopologyBank | None]:
    """Trees by label, and the bank that they are from, if it is one."""
    from entmtp_calib.bank import load_bank
    from entmtp_calib.imports import FORMAT, load_trees
    from entmtp_calib.storage import read_json

    value = read_json(path, "bank", "Make one with: entmtp run")
    if isinstance(value, dict) and value.get("format") == FORMAT:
        return load_trees(path), None
    bank = load_bank(path)
    return {tree.label: tree.topology for tree in bank.trees}, bank


def _members(screen: Output, bank: TopologyBank | None, policy: str) -> list[str]:
    """Labels of the trees that a policy chooses among; none for a tree file, which has no policies.

    Raises:
        UsageError: a policy that makes its trees while decoding.
    """
    from entmtp_calib.policy import Dynamic

    if bank is None:
        if policy != "auto":
            raise UsageError("a tree file has no policies.", "Choose a --tree.")
        return []
    chosen = bank.policy(policy)
    if isinstance(chosen, Dynamic):
        said = "the policy makes a tree of the best guesses anew at every step, and an engine's file can only say a fixed one"
        if policy != "auto" or "static" not in bank.policies:
            raise UsageError(f"{said}.", "Choose --policy static, or a --tree.")
        screen.warn(f"{said}: the best static one is taken")
        chosen = bank.policy("static")
    return [bank.trees[index].label for index in chosen.members]


def _label(screen: Output, trees: dict[str, Any], bank: TopologyBank | None, members: list[str]) -> str:
    """The one tree that an engine gets: the policy's, or the best static one where the policy switches."""
    if len(members) == 1:
        return members[0]
    if bank is None:
        if len(trees) == 1:
            return next(iter(trees))
        raise UsageError(f"the file has {len(trees)} trees.", f"Choose one with --tree: {', '.join(trees)}.")
    if "static" not in bank.policies:
        raise UsageError("the policy switches between trees, and an engine takes one.", f"Choose a --tree: {', '.join(members)}.")
    label = bank.trees[bank.policy("static").members[0]].label
    screen.warn(f"the policy switches between {', '.join(members)}; an engine takes one tree: {label}, the best static one")
    return label


def _named(trees: dict[str, Any], name: str) -> str:
    labels = list(trees)
    if name in trees:
        return name
    if name.isdigit() and int(name) < len(labels):
        return labels[int(name)]
    raise UsageError(f"there is no tree {name!r}.", f"There are: {', '.join(labels)}.")
