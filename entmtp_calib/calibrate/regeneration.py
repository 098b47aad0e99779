"""Making the deterministic part of a run again and saying what came out differently: trees, acceptance, bank and policies.

Times are not measured again; what rests on them is fitted anew to those that the run recorded. Prints nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from entmtp_calib.calibrate.bank_rules import HULL
from entmtp_calib.calibrate.pipeline import Calibration
from entmtp_calib.calibrate.search import Frontier
from entmtp_calib.calibrate.time_stage import race_of
from entmtp_calib.calibrate.timing import summarise
from entmtp_calib.rundir import STAGES
from entmtp_calib.storage import Journal, read_json

_SHOWN = 5  # differences of one kind that are named
_MEASURED = {"provenance", "measured", "prompts", "format", "version"}


def regenerate(old: Calibration, new: Calibration) -> tuple[list[str], list[str]]:
    """Run the stages of `old` that have ended again in the empty folder of `new`, which has the same options.

    Returns:
        What differs, in sentences, and the stages that were compared. A stage whose input differs already is not run.
    """
    done = ["search"]
    found = differing_frontiers(old.search(), new.search())
    if found or not old.run.file("recalibration.jsonl").exists():
        return found, done
    new.recalibrate(**old.options("recalibrate"))
    done.append("recalibrate")
    rows = [_by_prompt(Journal(run.file("recalibration.jsonl")).rows()[1:]) for run in (old.run, new.run)]
    found = differing_rollouts(*rows)
    if found or not old.run.file("bank.json").exists():
        return found, done
    timings = STAGES["time"][0]
    shutil.copyfile(old.run.file(timings), new.run.file(timings))
    before = read_json(old.run.file("bank.json"), "bank")
    said = before["evaluation"]
    timed = summarise(race_of(new.candidates(), 1, None, None).arms, new.timing_rows())
    new.fit(said["signal_asked"], timed, new.recalibrate(**old.options("recalibrate")), rule=said.get("bank_rule", HULL))
    done.append("fit-thresholds")
    return differing_banks(before, read_json(new.run.file("bank.json"), "bank")), done


def differing_frontiers(old: Frontier, new: Frontier) -> list[str]:
    """The first difference of every growth."""
    found = []
    for before, after in zip(old.growths, new.growths, strict=True):
        where = f"depth at most {before.max_depth}"
        nodes = zip(before.order.nodes, after.order.nodes, strict=False)
        place = next((place for place, (a, b) in enumerate(nodes) if a != b), None)
        if place is not None:
            a, b = list(before.order.nodes[place]), list(after.order.nodes[place])
            found.append(f"{where}: node {place + 1} of the growth is {b} and was {a}")
        elif before.order.size != after.order.size:
            found.append(f"{where}: {after.order.size} nodes grew and {before.order.size} had")
        elif before.scores != after.scores:
            place = next(place for place, (a, b) in enumerate(zip(before.scores, after.scores, strict=True)) if a != b)
            found.append(
                f"{where}: with {place + 1} nodes {after.scores[place]:.4f} drafts are accepted, not {before.scores[place]:.4f}"
            )
    return found


def differing_rollouts(old: Mapping[tuple[str, str], Any], new: Mapping[tuple[str, str], Any]) -> list[str]:
    """Rollouts of recalibration that accepted something else, by (tree, prompt); the first few by name."""
    found = []
    for tree, prompt in sorted({*old, *new}):
        before, after = old.get((tree, prompt)), new.get((tree, prompt))
        if before != after:
            found.append(f"{tree} on {prompt}: {_rollout(after)}, and {_rollout(before)} before")
    return _few(found, "rollouts")


def differing_banks(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Fields of two banks that should be equal and are not; trees and policies by name."""
    found = []
    trees = [{tree["label"]: tree for tree in bank["trees"]} for bank in (old, new)]
    for label in sorted({*trees[0], *trees[1]}):
        before, after = trees[0].get(label), trees[1].get(label)
        if before is None or after is None:
            found.append(f"tree {label} is {'no longer' if after is None else 'newly'} in the bank")
        else:
            names = [name for name in after if before.get(name) != after[name]]
            found += [f"tree {label}: {name} is {after[name]} and was {before.get(name)}" for name in names]
    for name in sorted({*old["policies"], *new["policies"]}):
        before, after = old["policies"].get(name), new["policies"].get(name)
        if before != after:
            found.append(f"policy {name} is {after} and was {before}")
    rest = sorted(({*old, *new}) - _MEASURED - {"trees", "policies"})
    found += [f"field {name} differs{_where(old.get(name), new.get(name))}" for name in rest if old.get(name) != new.get(name)]
    return _few(found, "fields")


def _where(old: Any, new: Any) -> str:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return ""
    return " in " + ", ".join(name for name in sorted({*old, *new}) if old.get(name) != new.get(name))


def _by_prompt(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
    return {(row["tree"], row["prompt"]): row for row in rows}


def _rollout(row: Mapping[str, Any] | None) -> str:
    return f"{row['accepted']} drafts in {row['steps']} steps" if row else "no rollout"


def _few(found: list[str], what: str) -> list[str]:
    more = len(found) - _SHOWN
    return found if more <= 0 else [*found[:_SHOWN], f"and {more} more {what}"]
