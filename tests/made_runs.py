"""Run folders made without a model: random traces, a real search over them, and timings of a known cost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from handmade import random_trace

from entmtp_calib.bank import BankTree, TopologyBank, load_bank
from entmtp_calib.calibrate.candidates import choose_candidates
from entmtp_calib.calibrate.dynamic import draftable
from entmtp_calib.calibrate.path_values import values_folder
from entmtp_calib.calibrate.rollout import trace_bytes
from entmtp_calib.calibrate.search import search
from entmtp_calib.calibrate.splits import RunConfig
from entmtp_calib.calibrate.timing import AR, AR_AGAIN
from entmtp_calib.evidence import Trace, accepted_depths, walk
from entmtp_calib.policy import Dynamic, Hysteresis, Ladder, Static
from entmtp_calib.report.figure import Figure, Missing
from entmtp_calib.rundir import RunDir
from entmtp_calib.signals import Signal
from entmtp_calib.storage import Journal, save_arrays, to_json, write_atomically
from entmtp_calib.topology import Node, Topology, chain, union

COUNTS = {"search": 6, "fit": 5, "test": 4}
HOSTILE = "<script>alert('x')</script>"
BASE, ROW = 0.020, 0.001  # seconds of a step, and of each of its rows


def begin(folder: Path, **options: Any) -> RunDir:
    """A run folder in which nothing has been done."""
    config = RunConfig(model="no-such-model", heads="some-heads", task="tests", max_nodes=8, max_depth=3, **options)
    inputs = {
        "target": {"name": "tiny", "identity": "sha256:t", "vocab_size": 97},
        "heads": {"name": "heads", "identity": "sha256:h", "layout": "x", "heads": 3},
        "template": {"style": "raw", "hash": "sha256:r"},
        "splits": {part: {"prompts": count, "hash": ""} for part, count in COUNTS.items()},
    }
    more = {"provenance": {"versions": {"python": "3"}, "revision": "abc", "command": ["entmtp", "run"]}, "placement": "cpu"}
    return RunDir.start(folder, asdict(config), inputs, more)


def traces(part: str, lengths: Sequence[int] = (40, 25, 33, 18, 29, 36)) -> list[Trace]:
    """The traces of a part, the same every time; one of the test prompts has a hostile name."""
    rng = random.Random(part)
    names = [f"{part}-{number}" for number in range(COUNTS[part])]
    if part == "test":
        names[1] = HOSTILE
    return [random_trace(rng, length, 3, name) for length, name in zip(lengths, names, strict=False)]


def add_search(run: RunDir) -> None:
    for part in ("search", "fit"):
        _write_traces(run, part)
    write_atomically(run.file("frontier.json"), to_json(search(traces("search"), 8, 3).to_json()))


def _write_traces(run: RunDir, part: str) -> None:
    for index, trace in enumerate(traces(part)):
        write_atomically(run.file(f"rollouts/{part}/{index:05d}.npz"), trace_bytes(trace))


def candidates() -> dict[str, Topology]:
    """The trees of every run made here, by label."""
    return {item.label: item.topology for item in choose_candidates(search(traces("search"), 8, 3), traces("search"), 4, 3)}


def add_recalibration(run: RunDir, prompts: int = 3) -> None:
    journal, _rows = run.stage_journal("recalibrate", {"trees": 4, "prompts": prompts})
    for label, tree in candidates().items():
        for trace in traces("fit")[:prompts]:
            depths = accepted_depths(tree, trace)
            at = walk(depths)
            journal.append({"tree": label, "prompt": trace.prompt_id, "steps": len(at), "accepted": int(depths[at].sum()),
                            "tokens": len(trace), "looped": 0, "near_ties": 0})  # fmt: skip


def add_timing(run: RunDir, prompts: int = 3, rounds: int = 2) -> None:
    """Timings whose every step takes `BASE + ROW · rows`, prefill not counted."""
    journal, _rows = run.stage_journal("time", {"rounds": rounds, "prompts": prompts, "machine": "made up"})
    arms = {AR: Topology(), AR_AGAIN: Topology(), **candidates()}
    for number in range(rounds):
        for trace in traces("fit")[:prompts]:
            for label, tree in arms.items():
                _time(journal, label, tree, trace, number)


def _time(journal: Journal, label: str, tree: Topology, trace: Trace, number: int) -> None:
    steps = len(walk(accepted_depths(tree, trace)))
    seconds = steps * (BASE + ROW * (tree.size + 1))
    journal.append({"arm": label, "prompt": trace.prompt_id, "round": number, "prompt_tokens": 10, "tokens": len(trace),
                    "steps": steps, "prefill_seconds": 0.05, "seconds": 0.05 + seconds, "ids": trace.prompt_id})  # fmt: skip


def add_bank(run: RunDir, recommended: str = "static") -> TopologyBank:
    """A bank of three trees and policies over them; the evaluation is made up, with all that a report can use."""
    _write_traces(run, "test")
    names = ("mean_accept", "tokens_per_step", "tokens_per_s", "seconds_per_step", "draft_seconds", "speedup", "speedup_low",
             "speedup_high")  # fmt: skip
    figures = dict.fromkeys(names, 1.0)
    trees = {"ar": Topology(), "chain": chain(2), "wide": Topology(((0,), (1,), (0, 0), (1, 0), (0, 1), (0, 0, 0)))}
    policies = {"static": Static(2), "ladder": Ladder((0.3, 0.6), (0, 1, 2)), "hysteresis": Hysteresis(0.7, 0.4, 1, 2)}
    gains = {"static": (1.0, 1.0, 1.0, 30.0), "ladder": (1.1, 1.02, 1.2, 33.0), "hysteresis": (0.9, 0.8, 1.05, 27.0)}
    evaluation = {
        "method": "made up", "oracle_test_tokens_per_s": 45.0, "oracle_shared_draft_test_tokens_per_s": 42.0,
        "arms_fit_tokens_per_s": {"ar": 20.0, "n1-d1": 30.0},
        "policies": {name: {"gain": {"ratio": ratio, "low": low, "high": high}, "test_tokens_per_s": rate,
                            "random_tokens_per_s": 24.0, "headroom": 0.2, "switches_per_100_steps": 5.0}
                     for name, (ratio, low, high, rate) in gains.items()},
    }  # fmt: skip
    about = run.about["inputs"]
    bank = TopologyBank(
        task="tests", target=about["target"], heads=about["heads"], acceptance={"rule": "exact", "temperature": 0.0},
        template=about["template"], signal=Signal("path_value_2"),
        trees=tuple(BankTree(label, tree, figures) for label, tree in trees.items()), policies=policies,
        recommended=recommended, measured={"cpu": HOSTILE, "cores": 2, "dtype": "float32"}, evaluation=evaluation,
        splits=about["splits"], limits={"max_new_tokens": 40, "end_ids": [], "stop": []},
        provenance={"command": ["entmtp", HOSTILE]},
    )  # fmt: skip
    bank.save(run.file("bank.json"))
    return bank


def add_dynamic(run: RunDir, size: int) -> None:
    """Let the bank recommend a dynamic policy of so many nodes, and store random path values of the test prompts."""
    drafted, rng = union([*draftable(search(traces("search"), 8, 3), traces("search")), chain(3)]), random.Random(7)
    for index, trace in enumerate(traces("test")):
        values = np.zeros((len(trace), drafted.size), np.float32)
        for row in values:
            found: dict[Node, float] = {(): 0.0}
            for node in drafted.sorted().nodes:
                found[node] = found[node[:-1]] - rng.choice([0.0, 0.5, rng.uniform(0, 2)])
            row[:] = list(found.values())[1:]
        path = values_folder(run.file("rollouts/values/test"), drafted) / f"{index:05d}.npz"
        save_arrays(path, {"values": values, "tokens": trace.tokens})
    bank = load_bank(run.file("bank.json"))
    policies = {**bank.policies, "dynamic": Dynamic((), (size,), drafted)}
    replace(bank, policies=policies, recommended="dynamic").save(run.file("bank.json"))


def whole(folder: Path) -> RunDir:
    """A run in which every stage has ended."""
    run = begin(folder)
    add_search(run)
    add_recalibration(run)
    add_timing(run)
    add_bank(run)
    return run


def made(found: Figure | Missing) -> Figure:
    """A figure that must not be missing."""
    assert isinstance(found, Figure), found
    return found
