"""What a run's scheduler is worth, in tables and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._output import Column, Output, Table

_SMALL = 0.05
"""A headroom below this is called small."""


def verdict(bank: Any) -> list[str]:
    """What a bank's evaluation says of switching, in sentences."""
    said = bank.evaluation
    static = said.get("policies", {}).get("static", {}).get("test_tokens_per_s")
    ceiling, shared = said.get("oracle_test_tokens_per_s"), said.get("oracle_shared_draft_test_tokens_per_s")
    lines = []
    if static and ceiling and shared:
        room = ceiling / static - 1
        lines.append(
            f"The oracle is {room:.1%} above the best static tree, and {shared / static - 1:+.1%} if it drafts for all trees as "
            f"a switching policy does.{' The headroom on this bank is small.' if room < _SMALL else ''}"
        )
        lines += _other_rule(bank) if room < _SMALL else []
    if bank.recommended == "static":
        lines.append("No measurable gain: no policy that switches is surely faster than the best static tree. Take static.")
    else:
        row = said.get("policies", {}).get(bank.recommended, {})
        part = f", {row['headroom']:.0%} of the headroom" if row.get("headroom") is not None else ""
        lines.append(f"Recommended: {bank.recommended}{part}.")
    return lines


def _other_rule(bank: Any) -> list[str]:
    """What the conditional rule would keep, where the bank was chosen by the other one."""
    found = bank.evaluation.get("conditional_trees")
    if found is None or bank.evaluation.get("bank_rule") != "hull":
        return []
    more = [label for label in found if label not in {tree.label for tree in bank.trees}]
    if not more:
        return ["The conditional rule was tried and keeps the same trees."]
    return [f"The conditional rule would keep {', '.join(more)} too: try --bank-rule conditional."]


def report_study(screen: Output, path: Path) -> None:
    """Show what `study.json` holds, if it is there."""
    from entmtp_calib.storage import read_json

    if not path.exists():
        return
    study = read_json(path, "study")
    screen.table(signals_table(study))
    chosen = study["chosen"]["name"] if isinstance(study["chosen"], dict) else study["chosen"]
    row = next(row for row in study["signals"] if row["name"] == chosen)
    screen.table(reliability_table(row))
    if all(other["cross_validated"]["ratio"] <= 1 for other in study["signals"]):
        why = f" {chosen} is kept because it follows most closely what is accepted." if study["asked"] == "auto" else ""
        screen.text("On prompts held out, no ladder on any signal is faster than the best static tree." + why)
    elif not row["steady"]:
        screen.warn(f"accepted drafts do not rise or fall steadily with {chosen}")
    if "early_stop" in study:
        screen.table(orders_table(study))
    if "dynamic" in study:
        screen.table(dynamic_table(study["dynamic"]))


def signals_table(study: Mapping[str, Any]) -> Table:
    """Every signal: what it tells and what a ladder on it gains."""
    rows = []
    for row in study["signals"]:
        seen, test, steady = row["cross_validated"], row["test"], "yes" if row["steady"] else "no"
        rows.append({"signal": row["name"], "chain": row["chain"][0], "chain_rank": row["chain"][1], "tree": row["tree"][0],
                     "tree_rank": row["tree"][1], "cross_validated": seen["ratio"], "interval": _interval(seen),
                     "test": test["ratio"], "test_interval": _interval(test), "steady": steady})  # fmt: skip
    columns = (Column("signal", "signal"), Column("chain", "r, chain", ".2f"), Column("chain_rank", "rank r", ".2f"),
               Column("tree", "r, static", ".2f"), Column("tree_rank", "rank r", ".2f"), Column("steady", "steady"),
               Column("cross_validated", "ladder × static, cross-validated", ".3f"), Column("interval", "95 %"),
               Column("test", "test", ".3f"), Column("test_interval", "95 %"))  # fmt: skip
    return Table("signals", "Signals: correlation with accepted drafts (test prompts), and what a ladder gains", columns, rows)


def reliability_table(row: Mapping[str, Any]) -> Table:
    """What is accepted at steps of a rising signal."""
    columns = (Column("steps", "steps"), Column("signal", "mean signal", ".3f"), Column("chain", "chain accepts", ".3f"),
               Column("tree", "static tree accepts", ".3f"))  # fmt: skip
    return Table("reliability", f"Reliability of {row['name']}, test prompts", columns, row["reliability"])


_ORDERS = {"union": "all drafted, one verified (as decode does)", "chain_first": "chain drafted, then the chosen tree",
           "early_stop": "drafting stops where confidence ends"}  # fmt: skip


def orders_table(study: Mapping[str, Any]) -> Table:
    """Orders of drafting and choosing, each by replay over the best static tree."""
    gains = {said: study[name]["gain"] for name, said in _ORDERS.items()}
    rows = [{"order": said, "gain": gain["ratio"], "interval": _interval(gain)} for said, gain in gains.items()]
    columns = (Column("order", "order"), Column("gain", "× static", ".3f"), Column("interval", "95 % interval"))
    return Table("orders", "Orders of drafting and choosing, test prompts", columns, rows)


def dynamic_table(dynamic: Mapping[str, Any]) -> Table:
    """Trees of the best nodes of a draft beside static ones of the same size."""
    rows = [{**row, "gain": row["gain"]["ratio"], "interval": _interval(row["gain"])} for row in dynamic["rows"]]
    columns = (Column("size", "nodes"), Column("static_accepted", "accepted, static", ".3f"),
               Column("dynamic_accepted", "accepted, dynamic", ".3f"), Column("static_tokens_per_s", "tokens/s, static", ".1f"),
               Column("dynamic_tokens_per_s", "tokens/s, dynamic", ".1f"), Column("gain", "×", ".3f"),
               Column("interval", "95 % interval"))  # fmt: skip
    prompts = dynamic["prompts"] if isinstance(dynamic["prompts"], int) else dynamic["prompts"][1]  # as older studies have it
    title = f"Trees of the best of {dynamic['drafted']} drafted nodes at every step, {prompts} test prompts"
    return Table("dynamic", title, columns, rows)


def _interval(gain: Mapping[str, float]) -> str:
    return f"{gain['low']:.3f}–{gain['high']:.3f}"
