#!/usr/bin/env bash
# All greedy runs behind docs/results.md, into outputs/results. Close other programs first; about an hour on two cores.
# Usage: bash benchmarks/results.sh GSM8K_TEST.jsonl   (entmtp must be on the path)
set -euo pipefail
gsm8k=$1
mkdir -p outputs/results
for task in humaneval gsm8k sharegpt; do
  data=(); if [ "$task" = gsm8k ]; then data=(--data "$gsm8k"); fi
  out=outputs/results/$task
  entmtp run --task "$task" "${data[@]}" --out "$out" --search-prompts 60 --fit-prompts 40 --test-prompts 40 --max-new-tokens 80 \
    --trees 5 --recalibrate-prompts 20 --time-prompts 20 --rounds 1 | tee "$out.txt"
  entmtp fit-thresholds "$out" --study | tee "$out-fit.txt"
  entmtp bench "$out/bank.json" "${data[@]}" --prompts 40 --rounds 1 --max-new-tokens 64 --also smollm2-medusa --out "$out" | tee "$out-bench.txt"
done
