"""Two ways to say how many of the drafted nodes are verified: always as many, or all above a path value, so that it changes.

By replay over a run's traces and path values, with its measured costs: tree and number, or tree and threshold, are fitted on the
fit prompts and judged on the test prompts, × the best static tree. The fit of a run leaves the path values.

Run: python benchmarks/surest.py RUN…
Prints Markdown. Reads finished runs, runs no model.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.calibrate.candidates import DEFAULT_LABEL
from entmtp_calib.calibrate.dynamic import SIZES, Drafts, draftable, places, verify_seconds
from entmtp_calib.calibrate.thresholds import Gain, Speed, gain
from entmtp_calib.calibrate.timing import AR_AGAIN
from entmtp_calib.errors import ArtefactError
from entmtp_calib.evidence import accepted_depths, walk
from entmtp_calib.report.material import Material, read_drafts, read_material
from entmtp_calib.storage import digest
from entmtp_calib.topology import Topology, chain, union

THRESHOLDS = (0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05, 0.06, 0.07, 0.08, 0.1, 0.12, 0.15)
PARTS = ("fit", "test")


class Tried(NamedTuple):
    """A rule on both parts."""

    name: str
    fit: Speed
    test: Speed


def rate(depths: list[NDArray[np.int64]], seconds: list[NDArray[np.float64]]) -> Speed:
    """Tokens and seconds of every text where each position has its own accepted drafts and cost."""
    steps = [walk(own.astype(np.int32)) for own in depths]
    spent = [cost[at].sum() for cost, at in zip(seconds, steps, strict=True)]
    return Speed(np.array([len(own) for own in depths], np.float64), np.array(spent))


def offers(material: Material) -> list[Topology]:
    """The trees that a fit may draft, as it makes them."""
    assert material.frontier is not None
    assert material.bank is not None
    read = chain(material.bank.signal.depth)
    return [union([best, read]) for best in draftable(material.frontier, material.traces["search"])]


def statics(material: Material) -> list[Tried]:
    found = []
    for arm in material.timed:
        if arm.label not in (AR_AGAIN, DEFAULT_LABEL):
            depths = {part: [accepted_depths(arm.topology, trace) for trace in material.traces[part]] for part in PARTS}
            costs = {part: [np.full(len(own), arm.seconds_per_step) for own in depths[part]] for part in PARTS}
            found.append(Tried(arm.label, *(rate(depths[part], costs[part]) for part in PARTS)))
    return found


def surest(material: Material, tree: Topology, drafts: Mapping[str, Drafts], draft: float) -> tuple[list[Tried], list[Tried]]:
    """All numbers and all thresholds over one drafted tree."""
    drafted, values = drafts["fit"].drafted, {part: drafts[part].values for part in PARTS}
    columns = [drafted.sorted().nodes.index(node) for node in tree.sorted().nodes]
    arms = [arm for arm in material.timed if arm.label != AR_AGAIN]
    cost = np.array(verify_seconds(arms, range(tree.size + 1))) + draft
    found = {
        part: [places(own, drafted, tree, trace) for own, trace in zip(values[part], material.traces[part], strict=True)]
        for part in PARTS
    }

    def tried(name: str, counts: Mapping[str, list[NDArray[np.int64]]]) -> Tried:
        speeds = []
        for part in PARTS:
            pairs = list(zip(found[part], counts[part], strict=True))
            speeds.append(rate([(at < n[:, None]).cumprod(1).sum(1) for at, n in pairs], [cost[n] for _at, n in pairs]))
        return Tried(f"{name} of {tree.size}", *speeds)

    def above(least: float) -> dict[str, list[NDArray[np.int64]]]:
        return {part: [(own[:, columns] >= np.log(least)).sum(1) for own in values[part]] for part in PARTS}

    numbers = [
        tried(f"best {n}", {part: [np.full(len(own), n) for own in values[part]] for part in PARTS})
        for n in SIZES if n <= tree.size
    ]  # fmt: skip
    return numbers, [tried(f"above {least}", above(least)) for least in THRESHOLDS]


def row(path: Path) -> list[str]:
    material = read_material(path)
    trees, found = offers(material), ([], [])  # type: tuple[list[Topology], tuple[list[Tried], list[Tried]]]
    drafts = {part: own for part in PARTS if (own := read_drafts(material, part)) is not None}
    if len(drafts) < len(PARTS):
        raise ArtefactError(f"{path} has no path values.", f"Run: entmtp fit-thresholds {path}")
    seconds = {line["arm"]: line["draft_seconds"] for line in material.timing_rows if "draft_seconds" in line}
    for tree in trees:
        draft = seconds[f"best of {digest(tree.to_lists())[7:19]}"]
        for kind, more in zip(found, surest(material, tree, drafts, draft), strict=True):
            kind.extend(more)
    static = fastest(statics(material))
    return [path.name, *(shown(best, gain(best.test, static.test, 0)) for best in map(fastest, found))]


def fastest(found: list[Tried]) -> Tried:
    return max(found, key=lambda one: one.fit.tokens_per_s)


def shown(best: Tried, over: Gain) -> str:
    return f"{best.name}: {over.ratio:.3f} ({over.low:.3f}–{over.high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    print("| run | a number of nodes | a threshold of path value |\n|---|---|---|")
    for path in parser.parse_args().runs:
        print(f"| {' | '.join(row(path))} |", flush=True)


if __name__ == "__main__":
    main()
