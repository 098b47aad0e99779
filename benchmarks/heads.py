"""What heads accept and what they cost: by architecture, by task and by size of the draft vocabulary.

Run: python benchmarks/heads.py --heads smollm2-medusa smollm2-hydra 'smollm2-hydra++' [--gsm8k test.jsonl] [--text FOLDER]
Prints Markdown. Acceptance is by replay of the target's own greedy text and does not depend on the machine; times are medians.
With --text, the folder of distilled text that the heads were trained on (WORK/text), vocabularies of other sizes are tried with
the same weights.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from entmtp_calib.calibrate.distill import read_shard
from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.calibrate.search import grow
from entmtp_calib.calibrate.training import frequent_ids
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.head_files import load_heads
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.loading import choose_placement, load_target
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.engine.writer import write
from entmtp_calib.evidence import Trace, mean_accept
from entmtp_calib.policy import Static
from entmtp_calib.template import encode
from entmtp_calib.topology import Topology, chain, published_default

SIZES = (2048, 4096, 8192, 16384, 0)
Written = list[tuple[list[int], list[int]]]


def texts_of(target: Target, tokenizer: object, task: str, data: str | None, count: int) -> Written:
    """Prompts that no training saw, and what the target writes after them."""
    part = "test" if task == "sharegpt" else "all"
    prompts = [encode(prompt.messages, tokenizer) for prompt in load_prompts(task, data, count, 11, part).prompts]
    prompts = [ids for ids in prompts if len(ids) <= 512]
    written = dict(write(target, prompts, StopRule(target.end_ids, 256), 32))
    return [(ids, written[index]) for index, ids in enumerate(prompts)]


def accepts(target: Target, heads: DraftHeads, texts: Written) -> dict[str, float]:
    """Mean accepted drafts; the 16-node tree is grown on the first half of the texts and judged on the second."""
    traces = [trace_text(target, heads, "", prompt, text) for prompt, text in texts]
    half = len(traces) // 2
    found = {
        "chain": mean_accept(chain(heads.depth), traces),
        "chain, anywhere": anywhere(traces),
        "16 nodes": mean_accept(grow(traces[:half], 16, heads.depth).order, traces[half:]),
    }
    if heads.depth >= published_default().depth:
        found["63 nodes"] = mean_accept(published_default(), traces)
    return found


def anywhere(traces: Sequence[Trace]) -> float:
    """Accepted drafts of the greedy chain, as a mean over all positions."""
    return float(np.concatenate([np.cumprod(trace.ranks == 0, 1).sum(1) for trace in traces]).mean())


@torch.inference_mode()
def draft_ms(target: Target, heads: DraftHeads, tree: Topology) -> float:
    """Median ms of one draft, and of reading one state where heads have a memory."""
    decoder = Decoder(target, heads, [tree], Static(0))
    root, times = decoder.dummy_root(), []
    memory = heads.new_memory(512)
    heads.read(torch.zeros(256, target.hidden_size, dtype=target.dtype), 0, memory)
    for _ in range(60):
        start = time.perf_counter()
        heads.read(root.hidden.expand(tree.depth + 1, -1), 256, memory)
        decoder.draft(root)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[10:])


def with_vocabulary(name: str, target: Target, order: torch.Tensor, size: int) -> DraftHeads:
    """The same weights over the `size` most frequent tokens, 0 for all."""
    heads = load_heads(name).heads
    made = DraftHeads(type(heads.shape)(**{**_fields(heads), "vocabulary": size or target.vocab_size, "reduced": bool(size)}))
    state = {key: value for key, value in heads.state_dict().items() if key != "draft_ids"}
    made.load_state_dict(state | ({"draft_ids": order[:size]} if size else {}))
    return made.requires_grad_(False).bind(target)


def _fields(heads: DraftHeads) -> dict[str, object]:
    return {name: getattr(heads.shape, name) for name in type(heads.shape).__slots__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--heads", nargs="+", default=["smollm2-hydra++"])
    parser.add_argument("--gsm8k", help="GSM8K test questions, JSON Lines")
    parser.add_argument("--text", type=Path, help="distilled text, for vocabularies of other sizes")
    parser.add_argument("--prompts", type=int, default=48)
    options = parser.parse_args()
    target, tokenizer = load_target(options.model, choose_placement())
    tasks = {"humaneval": None, "sharegpt": None} | ({"gsm8k": options.gsm8k} if options.gsm8k else {})
    texts = {task: texts_of(target, tokenizer, task, data, options.prompts) for task, data in tasks.items()}
    texts["all"] = [text for part in zip(*texts.values(), strict=False) for text in part]
    print("| heads | text | chain | chain, anywhere | 16 nodes | 63 nodes |\n|---|---|---|---|---|---|")
    for name in options.heads:
        heads = load_heads(name).heads.bind(target)
        for task, written in texts.items():
            print(
                f"| {name} | {task} | " + " | ".join(f"{value:.2f}" for value in accepts(target, heads, written).values()) + " |"
            )
    trees = {"chain of 4": chain(4), "63 nodes": published_default()}
    print("\nms of one draft\n\n| heads | " + " | ".join(trees) + " |\n|---|" + "---|" * len(trees))
    for name in options.heads:
        heads = load_heads(name).heads.bind(target)
        print(f"| {name} | " + " | ".join(f"{draft_ms(target, heads, tree):.2f}" for tree in trees.values()) + " |")
    if options.text:
        vocabularies(target, options.heads, options.text, texts["all"], trees)


def vocabularies(target: Target, names: list[str], folder: Path, texts: Written, trees: dict[str, Topology]) -> None:
    """Acceptance and drafting time by the size of the draft vocabulary, weights unchanged."""
    shards = sorted(folder.glob("*.npz"))
    seen = [torch.from_numpy(text.written) for shard in shards[:-1] for text in read_shard(shard)]
    order = frequent_ids(seen, target.vocab_size, target.vocab_size)
    written = torch.cat([torch.tensor(text) for _prompt, text in texts])
    print("\n| heads | vocabulary | covers | chain | 16 nodes | 63 nodes | " + " | ".join(f"ms, {tree}" for tree in trees) + " |")
    print("|---|---|---|---|---|---|" + "---|" * len(trees))
    for name in names:
        for size in SIZES:
            heads = with_vocabulary(name, target, order, size)
            found = accepts(target, heads, texts)
            cover = 1.0 if not size else float(torch.isin(written, order[:size]).float().mean())
            cells = [f"{found[key]:.2f}" for key in ("chain", "16 nodes", "63 nodes")]
            times = [f"{draft_ms(target, heads, tree):.2f}" for tree in trees.values()]
            print(f"| {name} | {size or 'all'} | {cover:.1%} | " + " | ".join(cells + times) + " |")


if __name__ == "__main__":
    main()
