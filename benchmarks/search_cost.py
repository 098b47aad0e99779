"""What the paper's search costs beside one trace: forwards of the target and seconds, for the same trees.

Run: python benchmarks/search_cost.py [--prompts 3] [--tokens 48] [--nodes 89] [--depths 4] [--tiny]
Greedy acceptance. Both searches see the same texts; their trees must agree node by node, or the script fails. A forward of a
batch counts once for every text in it, so batching makes no difference to the counts. Trees stop growing where no node gains
anything, so few texts give small trees; --tiny takes a random model of two layers, on which a whole search is affordable.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from entmtp_calib.calibrate.joint_search import grow_jointly, joint_rollout
from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.calibrate.search import Growth, grow
from entmtp_calib.engine.acceptance import GREEDY
from entmtp_calib.engine.heads import DraftHeads, HeadShape
from entmtp_calib.engine.loading import choose_placement
from entmtp_calib.engine.pair import load_pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.engine.writer import write
from entmtp_calib.template import encode
from entmtp_calib.topology import Topology

Prompts = Sequence[Sequence[int]]


class World(NamedTuple):
    """What is searched on."""

    name: str
    target: Target
    heads: DraftHeads
    prompts: Prompts


def real_world(model: str, heads: str, count: int) -> World:
    """HumanEval prompts; float32, because ranks must not depend on rounding."""
    pair = load_pair(model, heads, choose_placement("auto", "float32"))
    chosen = load_prompts("humaneval", None, count, 3).prompts
    return World(f"{model}, HumanEval", pair.target, pair.heads, [encode(prompt.messages, pair.tokenizer) for prompt in chosen])


def tiny_world(count: int) -> World:
    """A random Llama of two layers with random Hydra heads, on random prompts."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.5, eos_token_id=None)).eval()
    target = Target(model, frozenset([0]), "tiny", "none")
    heads = DraftHeads(HeadShape("hydra", 4, 2, 32, 97, "own")).requires_grad_(False).bind(target)
    return World("a random model of two layers", target, heads, torch.randint(6, 97, (count, 5)).tolist())


def by_trace(world: World, stop: StopRule, nodes: int, depths: Sequence[int]) -> tuple[list[Growth], int, float]:
    """Growths from one trace, forwards and seconds."""
    start = time.perf_counter()
    texts = dict(write(world.target, world.prompts, stop, 16))
    traces = [trace_text(world.target, world.heads, "", ids, texts[index]) for index, ids in enumerate(world.prompts)]
    growths = [grow(traces, nodes, depth) for depth in depths]
    return growths, sum(map(len, texts.values())) + len(world.prompts), time.perf_counter() - start


def by_paper(world: World, stop: StopRule, nodes: int, depths: Sequence[int]) -> tuple[list[Growth], int, float]:
    """Growths from one joint rollout for every added node, forwards and seconds."""
    start, growths, forwards = time.perf_counter(), [], 0
    for depth in depths:
        with tempfile.TemporaryDirectory() as folder:
            rollout, count = joint_rollout(world.target, world.heads, world.prompts, stop, GREEDY, Path(folder))
            growths.append(grow_jointly(rollout, Topology(), nodes, depth, "paper")[0])
            forwards += count()
    return growths, forwards, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--heads", default="smollm2-hydra++")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--nodes", type=int, default=89)
    parser.add_argument("--depths", type=int, default=4, help="maximum depths 1 to this")
    parser.add_argument("--tiny", action="store_true", help="a random model instead")
    options = parser.parse_args()
    world = tiny_world(options.prompts) if options.tiny else real_world(options.model, options.heads, options.prompts)
    stop = StopRule(world.target.end_ids, options.tokens)
    depths = range(1, options.depths + 1)
    ours, few, quick = by_trace(world, stop, options.nodes, depths)
    theirs, many, slow = by_paper(world, stop, options.nodes, depths)
    same = [growth.order.nodes for growth in ours] == [growth.order.nodes for growth in theirs]
    sizes = ", ".join(str(growth.order.size) for growth in ours)
    print(f"{world.name}, {options.prompts} prompts, {options.tokens} tokens, depths 1 to {options.depths}: {sizes} nodes\n")
    print("| search | target forwards | seconds |\n|---|---|---|")
    print(f"| one trace | {few} | {quick:.1f} |\n| paper, one rollout a node | {many} | {slow:.1f} |")
    print(f"| ratio | {many / few:.0f} | {slow / quick:.0f} |\n\nSame trees, node by node: {same}")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
