"""`compare`: do banks differ by more than noise?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from entmtp_calib.errors import UsageError

from . import _options as opt
from ._output import Column, Output, Table

if TYPE_CHECKING:
    from entmtp_calib.calibrate.bank_difference import Difference


def compare(
    banks: Annotated[
        list[Path],
        typer.Argument(help="Two or more bank.json or run folders; the first is what others are held against.", metavar="BANK…"),
    ],
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compare banks: shared trees, other trees node by node, and figures that differ by more than noise.

    Noise is what figures of equal banks differ by at most, all of them together in 19 of 20 cases. That of speedups and gains is
    in the bank. That of mean accept needs the recalibration beside the bank, and is smallest where both decoded the same prompts.
    Timings of other machines, devices or dtypes are not compared.
    """
    from entmtp_calib.calibrate.bank_difference import compare_banks, read_source

    screen = Output(json, quiet)
    if len(banks) < 2:
        raise UsageError("one bank has nothing to be compared with.", "Give two or more.")
    first, *others = (read_source(path) for path in banks)
    found = []
    for other in others:
        difference = compare_banks(first, other)
        if not json:
            _show(screen, f"{first.path} and {other.path}", difference)
        found.append({"first": str(first.path), "second": str(other.path)} | asdict(difference))
    screen.keep(comparisons=found)
    screen.finish("compare")


def _show(screen: Output, names: str, found: Difference) -> None:
    rows = [{"tree": pair.tree, "what": pair.what, "first": pair.first, "second": pair.second,
             "difference": pair.second - pair.first, "noise": pair.noise,
             "apart": {True: "yes", False: "no", None: "not known"}[pair.apart]} for pair in found.pairs]  # fmt: skip
    columns = (Column("tree", "of"), Column("what", "figure"), Column("first", "first", ".3f"), Column("second", "second", ".3f"),
               Column("difference", "difference", "+.3f"), Column("noise", "noise", ".3f"),
               Column("apart", "beyond noise"))  # fmt: skip
    if rows:
        screen.table(Table("figures", f"What both have: {names}", columns, rows))
    lone = [{"bank": bank} | asdict(tree) for bank, trees in (("first", found.first_only), ("second", found.second_only))
            for tree in trees]  # fmt: skip
    more = (Column("bank", "only in"), Column("label", "tree"), Column("size", "nodes"), Column("nearest", "nearest there"),
            Column("only_here", "nodes only here"), Column("only_there", "nodes only there"))  # fmt: skip
    if lone:
        screen.table(Table("lone", "Trees that one of them has", more, lone))
    for remark in found.remarks:
        screen.text(f"Note: {remark}.")
    tasks = found.tasks[0] if found.tasks[0] == found.tasks[1] else " and ".join(found.tasks)
    screen.text(f"{tasks}: {found.verdict}\n")
