"""Time and memory of a search by the number of prompts.

Run: python benchmarks/scale.py [--task humaneval] [--tokens 128] [--counts 25 50 100 200] [--csv times.csv]
Every count is a process of its own, so the peaks are its own. Prints Markdown; the last column should not move much.
The CSV is what `entmtp report --search-times` draws.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time


def search(task: str, data: str | None, prompts: int, tokens: int) -> dict[str, float]:
    """One search of this process: seconds of the rollout, seconds of the growth, peak memory in MB."""
    from pathlib import Path

    from entmtp_calib.calibrate.prompts import load_prompts
    from entmtp_calib.calibrate.rollout import self_rollout
    from entmtp_calib.calibrate.search import grow
    from entmtp_calib.engine.loading import choose_placement
    from entmtp_calib.engine.pair import load_pair
    from entmtp_calib.engine.stopping import StopRule
    from entmtp_calib.template import encode

    pair = load_pair("smollm2", "smollm2-hydra++", choose_placement())
    chosen = [(prompt.id, encode(prompt.messages, pair.tokenizer)) for prompt in load_prompts(task, data, prompts, 0).prompts]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        traces = self_rollout(pair.target, pair.heads, chosen, StopRule(pair.target.end_ids, tokens), Path(folder))
    rolled = time.perf_counter()
    for depth in range(1, pair.heads.depth + 1):
        grow(traces, 89, depth)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"prompts": len(chosen), "rollout": rolled - start, "growth": time.perf_counter() - rolled,
            "loaded": before / 1024, "peak": after / 1024}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="humaneval")
    parser.add_argument("--data")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--counts", type=int, nargs="+", default=[25, 50, 100, 200])
    parser.add_argument("--csv", type=argparse.FileType("w", encoding="utf-8"))
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(search(options.task, options.data, options.one, options.tokens)))
        return
    print("| prompts | rollout s | growth s | MB after loading | peak MB | rollout s a prompt |\n|---|---|---|---|---|---|")
    if options.csv:
        print("prompts,rollout_s,growth_s", file=options.csv, flush=True)
    for count in options.counts:
        words = [sys.executable, __file__, "--task", options.task, "--tokens", str(options.tokens), "--one", str(count)]
        words += ["--data", options.data] if options.data else []
        row = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        if options.csv:
            print(row["prompts"], row["rollout"], row["growth"], sep=",", file=options.csv, flush=True)
        each = row["rollout"] / row["prompts"]
        cells = [f"{row[name]:.1f}" for name in ("rollout", "growth")] + [f"{row[name]:.0f}" for name in ("loaded", "peak")]
        print(f"| {row['prompts']} | " + " | ".join(cells) + f" | {each:.2f} |", flush=True)


if __name__ == "__main__":
    main()
