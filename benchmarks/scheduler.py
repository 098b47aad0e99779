"""What choosing a tree costs per step: the signal, the policy and the switch, beside the step itself, and what each allocates.

Run: python benchmarks/scheduler.py [--bank outputs/demo/bank.json] [--tokens 96]
Prints Markdown. Figures are medians; close other programs first.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable
from itertools import cycle

import numpy as np

from entmtp_calib import open_bank
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.policy import Ladder, Policy
from entmtp_calib.signals import Memory, Signal

REPEATS = 2000


def median_ms(call: Callable[[], object], repeats: int = REPEATS) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def ladder(trees: int) -> Policy:
    """A ladder over all trees of a bank, its edges spread over what probabilities can be."""
    return Ladder(tuple((k + 1) / trees for k in range(trees - 1)), tuple(range(trees)))


def choosing(decoder: Decoder) -> list[tuple[str, Callable[[], object]]]:
    """What a step does to choose, part by part, on numbers that the step's one transfer has brought to the host."""
    signal = decoder.signal or Signal("path_value_1")
    chain, memory = np.full(max(1, signal.depth), -0.5, np.float32), Memory(signal)
    root, entropy, trees = np.float32(-0.2), np.float32(1.0), cycle(decoder.policy.members)

    def read() -> float:
        return float(memory.read(float(signal.at(root, entropy, chain)), 1))

    def switch() -> object:
        index = next(trees)
        return decoder.layouts[decoder.fitting(index, 10, False)], decoder.rows[index]

    return [
        ("an empty call", lambda: None),
        ("signal", read),
        ("policy", lambda: decoder.policy.next(0, 0.3)),
        ("switch", switch),
    ]


def allocated(call: Callable[[], object]) -> tuple[int, int]:
    """Bytes that many calls leave behind, and the most that is held while they run."""
    call()
    tracemalloc.start()
    for _ in range(REPEATS):
        call()
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept, peak


def step_ms(decoder: Decoder, ids: list[int], stop: StopRule) -> float:
    """Mean of a step of a whole generation, prefill left out."""
    generation = decoder.begin(ids, stop)
    start = time.perf_counter()
    steps = sum(1 for _step in decoder.resume(generation))
    return 1e3 * (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bank", default="outputs/demo/bank.json")
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    model = open_bank(options.bank)
    bank, target = model.bank, model.pair.target
    decoder = Decoder(target, model.pair.heads, bank.topologies, ladder(len(bank.trees)), bank.signal)
    step = step_ms(decoder, model.encode("Write a function that adds two numbers."), StopRule(target.end_ids, options.tokens))
    print(f"A ladder over {len(bank.trees)} trees that reads {decoder.signal}; a step takes {step:.2f} ms\n")
    print(f"| part | ms | share of a step | bytes left by {REPEATS} | bytes at most |\n|---|---|---|---|---|")
    total = 0.0
    for name, call in choosing(decoder):
        cost = median_ms(call)
        total += cost
        left, most = allocated(call)
        print(f"| {name} | {cost:.4f} | {cost / step:.3%} | {left} | {most} |")
    print(f"| all | {total:.4f} | {total / step:.3%} | | |")


if __name__ == "__main__":
    main()
