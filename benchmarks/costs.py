"""What a step costs on this machine: forwards by row count, drafting by depth and width, and the parts of a step.

Run: python benchmarks/costs.py [--heads smollm2-hydra++] [--prompts 6] > costs.md
Prints Markdown. Figures are medians; close other programs first. `entmtp bench` compares whole decoders.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import torch

from entmtp_calib.bank import load_bank
from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.loading import choose_placement
from entmtp_calib.engine.pair import Pair, load_pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.policy import Static
from entmtp_calib.template import encode
from entmtp_calib.topology import Topology, chain, published_default

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96)
PREFIX = 256


def median_ms(call: Callable[[], object], repeats: int = 15) -> float:
    times = []
    for _ in range(repeats + 3):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[3:])


@torch.inference_mode()
def forward_costs(pair: Pair) -> list[float]:
    """Median ms of one forward of n rows behind a prefix."""
    target = pair.target
    cache = target.new_cache(PREFIX + max(ROWS))
    target.prefill(torch.randint(10, 1000, (1, PREFIX)), cache)
    found = []
    for rows in ROWS:
        slots = torch.arange(PREFIX, PREFIX + rows)
        mask = torch.cat((torch.ones(rows, PREFIX, dtype=torch.bool), torch.ones(rows, rows, dtype=torch.bool).tril()), 1)
        ids = torch.randint(10, 1000, (1, rows))

        def run(slots: torch.Tensor = slots, mask: torch.Tensor = mask, ids: torch.Tensor = ids) -> None:
            cache.place(slots, PREFIX + len(slots))
            target.forward(ids, mask[None, None], slots[None], cache)

        found.append(median_ms(run))
    return found


@torch.inference_mode()
def draft_costs(pair: Pair) -> list[tuple[str, float]]:
    """Median ms of one draft of chains and of wide trees."""
    wide = {f"{width} wide, 1 deep": Topology(tuple((rank,) for rank in range(width))) for width in (1, 4, 10)}
    deep = {f"chain, {depth} deep": chain(depth) for depth in range(2, 5)}
    found = []
    for name, tree in {**wide, **deep, "published 63 nodes": published_default()}.items():
        decoder = Decoder(pair.target, pair.heads, [tree], Static(0))
        root = decoder.dummy_root()
        found.append((name, median_ms(lambda decoder=decoder, root=root: decoder.draft(root))))  # type: ignore[misc]
    return found


def step_shares(pair: Pair, tree: Topology, prompts: list[list[int]], stop: StopRule) -> dict[str, float]:
    """Share of the decoding time spent in each verb; what is left is bookkeeping."""
    spent: dict[str, float] = defaultdict(float)
    decoder = Decoder(pair.target, pair.heads, [tree], Static(0))

    def timed(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **options: object) -> object:
            start = time.perf_counter()
            result = call(*args, **options)
            spent[name] += time.perf_counter() - start
            return result

        return run

    forward = pair.target.forward
    decoder.draft = timed("drafting", decoder.draft)  # type: ignore[method-assign, assignment]
    total = 0.0
    for ids in prompts:
        generation = decoder.begin(ids, stop)
        pair.target.forward = timed("target forward", forward)  # type: ignore[method-assign, assignment]
        start = time.perf_counter()
        for _step in decoder.resume(generation):
            pass
        total += time.perf_counter() - start
        pair.target.forward = forward  # type: ignore[method-assign]
    shares = {name: seconds / total for name, seconds in spent.items()}
    return shares | {"bookkeeping": 1 - sum(shares.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--heads", default="smollm2-hydra++")
    parser.add_argument("--bank", help="a bank.json whose best static tree is looked at too")
    parser.add_argument("--prompts", type=int, default=6)
    options = parser.parse_args()
    print("Median ms of one target forward of n rows behind 256 tokens\n")
    print("| n | " + " | ".join(map(str, ROWS)) + " |\n|---|" + "---|" * len(ROWS))
    for dtype in ("bfloat16", "float32"):
        pair = load_pair(options.model, options.heads, choose_placement("cpu", dtype))
        print(f"| {dtype} | " + " | ".join(f"{cost:.1f}" for cost in forward_costs(pair)) + " |")
    pair = load_pair(options.model, options.heads, choose_placement())
    print(f"\nDrafting, {pair.placement.dtype_name}\n\n| tree | ms |\n|---|---|")
    for name, cost in draft_costs(pair):
        print(f"| {name} | {cost:.2f} |")
    chosen = load_prompts("humaneval", None, 120, 7).prompts[-options.prompts :]
    prompts = [encode(prompt.messages, pair.tokenizer) for prompt in chosen]
    stop = StopRule(pair.target.end_ids, 128)
    shown = {"published 63 nodes": published_default()}
    if options.bank:
        bank = load_bank(options.bank)
        best = bank.topologies[bank.policies["static"].members[0]]
        shown[f"best static ({best})"] = best
    print("\nParts of a step, share of decoding time\n\n| tree | drafting | target forward | bookkeeping |\n|---|---|---|---|")
    for name, tree in shown.items():
        share = step_shares(pair, tree, prompts[:2], stop)
        print(f"| {name} | " + " | ".join(f"{share[part]:.1%}" for part in ("drafting", "target forward", "bookkeeping")) + " |")


if __name__ == "__main__":
    main()
