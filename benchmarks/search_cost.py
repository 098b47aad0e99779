"""What the paper's search costs beside one trace: forwards of the target and seconds, for the same trees.

Run: python benchmarks/search_cost.py [--prompts 3] [--tokens 48] [--nodes 89] [--depths 4]
Greedy acceptance. Both searches see the same texts; their trees must agree node by node, or the script fails. A forward of a
batch counts once for every text in it, so batching makes no difference to the counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from entmtp_calib.calibrate.joint_search import grow_jointly, joint_rollout
from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.calibrate.search import Growth, grow
from entmtp_calib.engine.acceptance import GREEDY
from entmtp_calib.engine.loading import choose_placement
from entmtp_calib.engine.pair import Pair, load_pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.engine.writer import write
from entmtp_calib.template import encode
from entmtp_calib.topology import Topology

Prompts = Sequence[Sequence[int]]


def by_trace(pair: Pair, prompts: Prompts, stop: StopRule, nodes: int, depths: Sequence[int]) -> tuple[list[Growth], int, float]:
    """Growths from one trace, forwards and seconds."""
    start = time.perf_counter()
    texts = dict(write(pair.target, prompts, stop, 16))
    traces = [trace_text(pair.target, pair.heads, "", ids, texts[index]) for index, ids in enumerate(prompts)]
    growths = [grow(traces, nodes, depth) for depth in depths]
    return growths, sum(map(len, texts.values())) + len(prompts), time.perf_counter() - start


def by_paper(pair: Pair, prompts: Prompts, stop: StopRule, nodes: int, depths: Sequence[int]) -> tuple[list[Growth], int, float]:
    """Growths from one joint rollout for every added node, forwards and seconds."""
    start, growths, forwards = time.perf_counter(), [], 0
    for depth in depths:
        with tempfile.TemporaryDirectory() as folder:
            rollout, count = joint_rollout(pair.target, pair.heads, prompts, stop, GREEDY, Path(folder))
            growths.append(grow_jointly(rollout, Topology(), nodes, depth, "paper")[0])
            forwards += count()
    return growths, forwards, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--heads", default="smollm2-hydra")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--nodes", type=int, default=89)
    parser.add_argument("--depths", type=int, default=4, help="maximum depths 1 to this")
    options = parser.parse_args()
    pair = load_pair(options.model, options.heads, choose_placement("auto", "float32"))  # ranks must not depend on rounding
    chosen = load_prompts("humaneval", None, options.prompts, 3).prompts
    prompts = [encode(prompt.messages, pair.tokenizer) for prompt in chosen]
    stop = StopRule(pair.target.end_ids, options.tokens)
    depths = range(1, options.depths + 1)
    ours, few, quick = by_trace(pair, prompts, stop, options.nodes, depths)
    theirs, many, slow = by_paper(pair, prompts, stop, options.nodes, depths)
    same = [growth.order.nodes for growth in ours] == [growth.order.nodes for growth in theirs]
    sizes = ", ".join(str(growth.order.size) for growth in ours)
    print(f"{options.prompts} HumanEval prompts, {options.tokens} tokens, depths 1 to {options.depths}, trees of {sizes} nodes\n")
    print("| search | target forwards | seconds |\n|---|---|---|")
    print(f"| one trace | {few} | {quick:.1f} |\n| paper, one rollout a node | {many} | {slow:.1f} |")
    print(f"| ratio | {many / few:.0f} | {slow / quick:.0f} |\n\nSame trees, node by node: {same}")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
