"""The data of figures about seconds: throughput of every arm, the cost model beside its measurement, and the time of a search.

Uses what the timing stage measured; times and draws nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from entmtp_calib.calibrate.candidates import DEFAULT_LABEL
from entmtp_calib.calibrate.cost_model import error_on_unseen, modelled
from entmtp_calib.calibrate.timing import AR, AR_AGAIN
from entmtp_calib.errors import ArtefactError
from entmtp_calib.report.figure import NONE, Figure, Missing, Row, ratio_interval, span
from entmtp_calib.report.material import Material

THROUGHPUT, COSTS, SEARCH_TIME = "throughput", "cost-model", "search-time"
TITLES = {
    THROUGHPUT: "Tokens per second by size of the tree",
    COSTS: "What a step costs: model and measurement",
    SEARCH_TIME: "Time of a search by its prompts",
}
_SEARCH_COLUMNS = ("prompts", "rollout_s", "growth_s")


def throughput(material: Material) -> Figure | Missing:
    """Speed of every timed arm over plain decoding, and what replay over all fit prompts makes of it."""
    if not material.timed:
        return Missing(THROUGHPUT, TITLES[THROUGHPUT], _why_untimed(material), "entmtp time")
    bank = {tree.label for tree in material.bank.trees} if material.bank else set()
    replayed = dict(material.bank.evaluation.get("arms_fit_tokens_per_s", {})) if material.bank and material.replayable else {}
    base, one = replayed.get(AR), material.counts.get("time", 0) < 2  # of one prompt there is no interval over prompts
    rows = [
        {"arm": arm.label, "nodes": arm.topology.size, "depth": arm.topology.depth, "tokens_per_s": arm.tokens_per_s,
         "times_plain": arm.speedup, "low": NONE if one else arm.speedup_low, "high": NONE if one else arm.speedup_high,
         "decode_tokens_per_s": arm.decode_tokens_per_s, "tokens_per_step": arm.tokens_per_step,
         "replayed_times_plain": replayed[arm.label] / base if base and arm.label in replayed else None,
         "in_bank": arm.label in bank}
        for arm in material.timed
    ]  # fmt: skip
    columns = ("arm", "nodes", "depth", "tokens_per_s", "times_plain", "low", "high", "decode_tokens_per_s", "tokens_per_step",
               "replayed_times_plain", "in_bank")  # fmt: skip
    notes = ["Timed end to end, prefill included, arms interleaved. Bars: 95 % intervals of the ratio to plain decoding, paired "
             "by prompt. The grey band is plain decoding timed against itself."]  # fmt: skip
    if base:
        notes.append("Crosses: tokens per step by replay over all fit prompts over the measured seconds per step, prefill left "
                     "out; the bank is chosen by them, since they rest on more prompts.")  # fmt: skip
    facts = {"plain_tokens_per_s": next(row["tokens_per_s"] for row in rows if row["arm"] == AR), "default": DEFAULT_LABEL}
    return Figure(THROUGHPUT, TITLES[THROUGHPUT], _throughput_sentence(rows), columns, rows, ("time",), facts, tuple(notes))


def cost_model(material: Material) -> Figure | Missing:
    """Seconds per step of every arm, measured and by the model of rows, levels and context."""
    if not material.timed:
        return Missing(COSTS, TITLES[COSTS], _why_untimed(material), "entmtp time")
    timed = {arm.label: arm for arm in material.timed if arm.label != AR_AGAIN}
    trees = {label: tree for label, tree in material.trees.items() if label in timed}
    runs = [row for row in material.timing_rows if "seconds" in row and row["round"] >= 0]
    if len(trees) < 4 or not all("prompt_tokens" in row for row in runs):
        reason = "fewer than 4 arms were timed" if len(trees) < 4 else "an earlier version timed this run, without contexts"
        return Missing(COSTS, TITLES[COSTS], reason, "entmtp time --fresh")
    model, error = modelled(material.timing_rows, trees), error_on_unseen(material.timing_rows, trees)
    rows: list[dict[str, Any]] = []
    for label, tree in sorted(trees.items(), key=lambda item: (item[1].size, item[0])):
        found = _step_seconds([row for row in runs if row["arm"] == label])
        rows.append({"arm": label, "nodes": tree.size, "depth": tree.depth, "measured_ms": 1e3 * found[0], "low": 1e3 * found[1],
                     "high": 1e3 * found[2], "model_ms": 1e3 * model[label], "off": model[label] / found[0] - 1,
                     "draft_ms": 1e3 * timed[label].draft_seconds})  # fmt: skip
    worst, first, last = max(rows, key=lambda row: abs(row["off"])), rows[0], rows[-1]
    sentence = (
        f"A step takes {first['measured_ms']:.1f} ms with {first['nodes']} nodes{span(first['low'], first['high'], '.1f')} and "
        f"{last['measured_ms']:.1f} ms with {last['nodes']}{span(last['low'], last['high'], '.1f')}; the model is off by at most "
        f"{abs(worst['off']):.1%}, at {worst['arm']}"
    )
    sentence += "." if error != error else f", and by {error:.1%} on average on an arm that it has not seen."
    columns = ("arm", "nodes", "depth", "measured_ms", "low", "high", "model_ms", "off", "draft_ms")
    return Figure(COSTS, TITLES[COSTS], sentence, columns, rows, ("time",), notes=(
        "Milliseconds of one decode step, prefill left out. Model: a constant, plus so much for every row verified, every level "
        "drafted and every token of the text before. Intervals: 95 %, bootstrap over prompts, whose contexts differ.",
    ))  # fmt: skip


def search_time(path: Path | None) -> Figure | Missing:
    """Seconds of a search by the number of its prompts, from a benchmark's CSV.

    Args:
        path: a file with the columns prompts, rollout_s and growth_s; None for none.

    Raises:
        ArtefactError: no such file, or other columns.
    """
    if path is None:
        return Missing(
            SEARCH_TIME, TITLES[SEARCH_TIME], "no benchmark of the search is given", "entmtp report --search-times FILE"
        )
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [{"prompts": int(row["prompts"]), "rollout_s": float(row["rollout_s"]), "growth_s": float(row["growth_s"])}
                    for row in csv.DictReader(file)]  # fmt: skip
    except (OSError, UnicodeDecodeError, KeyError, ValueError, TypeError, csv.Error):
        rows = []
    if not rows:
        raise ArtefactError(
            f"{path} has no rows of {', '.join(_SEARCH_COLUMNS)}.", "Make it with: python benchmarks/scale.py --csv FILE"
        )
    rows.sort(key=lambda row: row["prompts"])
    last = rows[-1]
    total = last["rollout_s"] + last["growth_s"]
    sentence = (
        f"{last['prompts']} prompts take {total:.0f} s, {last['rollout_s'] / total:.0%} of it for the text that the model "
        f"writes, {last['rollout_s'] / last['prompts']:.2f} s a prompt."
    )
    return Figure(SEARCH_TIME, TITLES[SEARCH_TIME], sentence, _SEARCH_COLUMNS, rows, (), notes=("Each point is one process.",))


def _why_untimed(material: Material) -> str:
    if "time" in material.gaps:
        return f"timing has not ended: {material.gaps['time']}"
    return "nothing has been timed" if material.candidates or not material.timing_rows else "the timed trees are not known"


def _step_seconds(runs: Sequence[Row]) -> tuple[float, float, float]:
    """Seconds per step, prefill left out, with the interval over prompts."""
    pooled: dict[str, tuple[float, int]] = {}
    for row in runs:
        seconds, steps = pooled.get(row["prompt"], (0.0, 0))
        pooled[row["prompt"]] = (seconds + row["seconds"] - row["prefill_seconds"], steps + row["steps"])
    return ratio_interval([seconds for seconds, _ in pooled.values()], [steps for _, steps in pooled.values()])


def _throughput_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    drafting = [row for row in rows if row["nodes"]]
    if not drafting:
        return "Only plain decoding has been timed."
    best = max(drafting, key=lambda row: (row["times_plain"], -row["nodes"]))
    verdict = "measurably faster than" if best["low"] > 1 else "not measurably faster than"
    form = ".3f" if f"{best['low']:.2f}" == "1.00" else ".2f"  # or the interval would contradict the verdict
    text = (
        f"{best['arm']} is the fastest tree as timed: {best['tokens_per_s']:.1f} tokens/s, {best['times_plain']:.2f} times plain "
        f"decoding{span(best['low'], best['high'], form)}, {verdict} it"
    )
    for row in rows:
        if row["arm"] == DEFAULT_LABEL and row is not best:
            text += f"; the published 63-node tree gives {row['times_plain']:.2f} times{span(row['low'], row['high'])}"
    return text + "."
