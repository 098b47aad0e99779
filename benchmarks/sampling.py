"""What is accepted when tokens are sampled, with guesses ranked by the heads alone and by the noise that samples the tokens.

Run: python benchmarks/sampling.py [--heads smollm2-hydra++] [--prompts 24] [--tokens 128]
Exact acceptance; the texts under both rankings are the same. The 16-node tree is grown on the first half of the prompts under the
same ranking and judged on the second. By replay, so the machine does not matter. Prints Markdown.
"""

from __future__ import annotations

import argparse

from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.calibrate.search import grow
from entmtp_calib.engine.acceptance import Exact
from entmtp_calib.engine.loading import choose_placement
from entmtp_calib.engine.pair import Pair, load_pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.engine.writer import write
from entmtp_calib.evidence import mean_accept
from entmtp_calib.template import encode
from entmtp_calib.topology import chain, published_default

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)


def accepts(pair: Pair, prompts: list[list[int]], texts: dict[int, list[int]], rule: Exact) -> list[float]:
    """Mean accepted drafts of a chain, a 16-node tree and the published default."""
    traces = [trace_text(pair.target, pair.heads, "", ids, texts[n], rule.ranking) for n, ids in enumerate(prompts)]
    half, depth = len(traces) // 2, pair.heads.depth
    grown = grow(traces[:half], 16, depth).order
    return [mean_accept(chain(depth), traces), mean_accept(grown, traces[half:]), mean_accept(published_default(), traces)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--heads", default="smollm2-hydra++")
    parser.add_argument("--task", default="humaneval")
    parser.add_argument("--data")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    pair = load_pair(options.model, options.heads, choose_placement())
    chosen = load_prompts(options.task, options.data, options.prompts, 5).prompts
    prompts = [encode(prompt.messages, pair.tokenizer) for prompt in chosen]
    stop = StopRule(pair.target.end_ids, options.tokens)
    print(f"{options.heads}, {len(prompts)} prompts of {options.task}, {options.tokens} tokens\n")
    print("| temperature | ranked by | chain | 16 nodes | 63 nodes |\n|---|---|---|---|---|")
    for temperature in TEMPERATURES:
        texts = dict(write(pair.target, prompts, stop, 24, Exact(temperature)))
        for coupled in (False, True) if temperature else (False,):
            found = accepts(pair, prompts, texts, Exact(temperature, coupled=coupled))
            cells = " | ".join(f"{value:.3f}" for value in found)
            print(f"| {temperature} | {'heads and noise' if coupled else 'heads'} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
