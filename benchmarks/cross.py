"""The bank of one task on another: the static tree of each run's bank over the test prompts of every run.

By replay. A step costs what the cost model of the run whose prompts are read says for the tree, behind the mean prompt of its
timings, so that only trees differ between the columns of a row. Figures are times the row's own tree, with 95 % intervals.

Run: python benchmarks/cross.py RUN RUN…
Prints Markdown. Reads finished runs, runs no model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from entmtp_calib.calibrate.cost_model import fit_costs
from entmtp_calib.calibrate.thresholds import Costs, evaluate, gain
from entmtp_calib.policy import Static
from entmtp_calib.replay import Replayer
from entmtp_calib.report.material import Material, read_material
from entmtp_calib.topology import Topology


def static_tree(material: Material) -> Topology:
    assert material.bank is not None, "a run has no bank yet"
    return material.bank.topologies[material.bank.policy("static").members[0]]


def row(here: int, runs: Sequence[Material], trees: Sequence[Topology]) -> list[str]:
    """What every bank's tree gives on the test prompts of one run, relative to that run's own."""
    own = runs[here]
    rows = own.timing_rows
    model = fit_costs(rows, {arm.label: arm.topology for arm in own.timed})
    context = float(np.mean([line["prompt_tokens"] + line["tokens"] / 2 for line in rows if "prompt_tokens" in line]))
    seconds = tuple(model.seconds(tree, context) for tree in trees)
    replayer, costs = Replayer(trees, own.traces["test"]), Costs(seconds, (0.0,) * len(trees), (0.0,) * len(trees))
    found = [evaluate(Static(index), replayer, costs) for index in range(len(trees))]
    gains = [gain(outcome, found[here], 0) for outcome in found]
    return ["1" if there == here else f"{g.ratio:.3f} ({g.low:.3f}–{g.high:.3f})" for there, g in enumerate(gains)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    paths = parser.parse_args().runs
    runs = [read_material(path) for path in paths]
    trees = [static_tree(material) for material in runs]
    heads = [f"bank of {path.name} ({tree.size} nodes)" for path, tree in zip(paths, trees, strict=True)]
    print(f"| prompts of | {' | '.join(heads)} |\n|{'---|' * (len(runs) + 1)}")
    for here, path in enumerate(paths):
        print(f"| {path.name} | {' | '.join(row(here, runs, trees))} |")


if __name__ == "__main__":
    main()
