"""How much a signal would have to know: what ladders on made-up signals of a given correlation gain on a run's bank.

A made-up signal is the truth, the drafts that the bank's largest tree accepts at each position, blurred by noise. Its ladder is
fitted and judged as those on real signals are: fitted on the fit prompts, judged on the test prompts, with the bank's measured
costs. So the table tells which correlation the signals of a model would need before switching pays.

Run: python benchmarks/headroom.py RUN… [--draws 5]
Prints Markdown. Reads finished runs, runs no model.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from entmtp_calib.bank import TopologyBank
from entmtp_calib.calibrate.ceiling import oracle
from entmtp_calib.calibrate.thresholds import Costs, best_static, evaluate, fit_ladder
from entmtp_calib.evidence import Trace, accepted_depths
from entmtp_calib.replay import Replayer
from entmtp_calib.report.material import read_material
from entmtp_calib.topology import Topology

BINS = 3
BLURS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)  # noise over the truth's own spread


def costs_of(bank: TopologyBank) -> Costs:
    """The step costs that the bank's own policies were fitted with."""
    alone, draft = (tuple(tree.figures[name] for tree in bank.trees) for name in ("seconds_per_step", "draft_seconds"))
    return Costs(alone, draft, tuple(bank.evaluation["shared_draft_seconds"]))


def blurred(traces: Sequence[Trace], largest: Topology, blur: float, rng: np.random.Generator) -> list[Trace]:
    """The same texts, whose `base_top1` is the blurred truth now."""
    truths = [accepted_depths(largest, trace).astype(np.float64) for trace in traces]
    spread = blur * np.concatenate(truths).std()
    return [
        replace(trace, root_logp=-np.logaddexp(0, -(truth + spread * rng.standard_normal(len(truth)))).astype(np.float32))
        for trace, truth in zip(traces, truths, strict=True)
    ]


def table(run: Path, draws: int) -> None:
    material = read_material(run)
    assert material.bank is not None, f"{run} has no bank yet"
    print(f"\n{run.name}: trees of {', '.join(str(tree.topology.size) for tree in material.bank.trees)} nodes, test prompts\n")
    print("| correlation | ladder × static | share of the oracle's headroom |\n|---|---|---|")
    for blur in BLURS:
        rows = [one_draw(material.bank, material.traces, blur, seed) for seed in range(draws if blur else 1)]
        correlation, gain, share = np.mean(rows, axis=0)
        print(f"| {correlation:.2f} | {gain:.3f} | {share:.0%} |", flush=True)


def one_draw(bank: TopologyBank, traces: Mapping[str, Sequence[Trace]], blur: float, seed: int) -> tuple[float, float, float]:
    """Correlation over the test prompts, what the ladder gains there, and its share of the headroom."""
    rng = np.random.default_rng(seed)
    trees, costs = bank.topologies, costs_of(bank)
    fit, test = (Replayer(trees, blurred(traces[part], trees[-1], blur, rng), "base_top1") for part in ("fit", "test"))
    static = evaluate(best_static(fit, costs).policy, test, costs).tokens_per_s
    ladder = evaluate(fit_ladder(fit, costs, min(BINS, len(trees))).policy, test, costs).tokens_per_s
    truth = np.concatenate([depths[:, -1] for depths in test.depths])
    logits = np.concatenate(test.values).astype(np.float64)
    correlation = float(np.corrcoef(np.log(logits) - np.log1p(-np.minimum(logits, 1 - 1e-7)), truth)[0, 1])
    ceiling = oracle(test, costs.alone).tokens_per_s
    return correlation, ladder / static, (ladder - static) / (ceiling - static)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=5)
    args = parser.parse_args()
    for run in args.runs:
        table(run, args.draws)


if __name__ == "__main__":
    main()
