"""What a step costs on this machine: forwards by row count, drafting by depth and width, the parts of a step, and baselines.

Run: python benchmarks/costs.py [--heads smollm2-hydra] [--prompts 6] > costs.md
Prints Markdown. Figures are medians; close other programs first.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import torch

from entmtp_calib.bank import load_bank
from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.engine.decoder import Decoder, autoregressive
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


def tokens_per_s(arms: dict[str, Callable[[list[int]], int]], prompts: list[list[int]], rounds: int) -> dict[str, float]:
    """Interleaved end-to-end tokens per second of every arm; the first round warms up and does not count."""
    tokens: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for number in range(rounds + 1):
        for ids in prompts if number else prompts[:1]:
            for name in random.Random(number).sample(list(arms), len(arms)):
                start = time.perf_counter()
                count = arms[name](ids)
                if number:
                    seconds[name] += time.perf_counter() - start
                    tokens[name] += count
    return {name: tokens[name] / seconds[name] for name in arms}


Arms = dict[str, tuple[list[Topology], object, str | None]]


def baselines(pair: Pair, arms: Arms, stop: StopRule) -> dict[str, Callable[[list[int]], int]]:
    """Ours and transformers' ways to decode, as functions from prompt ids to the number of new tokens."""
    target = pair.target

    def generate(ids: list[int], **more: object) -> int:
        inputs = torch.tensor([ids])
        ours = target.model.config._attn_implementation
        target.model.set_attn_implementation("sdpa")  # as transformers would load it
        options = {"do_sample": False, "use_cache": True, "eos_token_id": sorted(stop.end_ids), "pad_token_id": 0}
        out = target.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=stop.max_new_tokens, **options, **more
        )
        target.model.set_attn_implementation(ours)
        return int(out.shape[1]) - len(ids)

    found: dict[str, Callable[[list[int]], int]] = {
        "transformers generate": generate,
        "transformers prompt lookup (10)": lambda ids: generate(ids, prompt_lookup_num_tokens=10),
        "ours, autoregressive": lambda ids: sum(len(step.tokens) for step in autoregressive(target, ids, stop)),
    }
    for name, (trees, policy, signal) in arms.items():
        decoder = Decoder(target, pair.heads, trees, policy, signal)  # type: ignore[arg-type]
        found[name] = lambda ids, decoder=decoder: sum(len(step.tokens) for step in decoder.steps(ids, stop))  # type: ignore[misc]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--heads", default="smollm2-hydra")
    parser.add_argument("--bank", help="a bank.json whose policies are timed too")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
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
    arms: Arms = {"published 63 nodes": ([published_default()], Static(0), None)}
    shown = {"published 63 nodes": published_default()}
    if options.bank:
        bank = load_bank(options.bank)
        arms |= {f"bank, {name}": (bank.topologies, policy, bank.signal) for name, policy in bank.policies.items()}
        best = bank.topologies[bank.policies["static"].members[0]]
        shown[f"best static ({best})"] = best
    print("\nParts of a step, share of decoding time\n\n| tree | drafting | target forward | bookkeeping |\n|---|---|---|---|")
    for name, tree in shown.items():
        share = step_shares(pair, tree, prompts[:2], stop)
        print(f"| {name} | " + " | ".join(f"{share[part]:.1%}" for part in ("drafting", "target forward", "bookkeeping")) + " |")
    print(f"\nTokens per second on {len(prompts)} HumanEval prompts, 128 tokens, prefill included, interleaved\n")
    print("| arm | tokens/s |\n|---|---|")
    for name, rate in tokens_per_s(baselines(pair, arms, stop), prompts, options.rounds).items():
        print(f"| {name} | {rate:.1f} |")


if __name__ == "__main__":
    main()
