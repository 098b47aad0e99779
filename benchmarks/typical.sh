#!/usr/bin/env bash
# All runs with typical acceptance behind docs/results.md, into outputs/results-typical. Typical acceptance is not lossless.
# Usage: bash benchmarks/typical.sh GSM8K_TEST.jsonl   (entmtp must be on the path; killed, it goes on where it was)
set -euo pipefail
gsm8k=$1
typical=(--acceptance typical --temperature 0.7 --epsilon 0.09 --alpha 0.3)
tasks=(humaneval gsm8k sharegpt)
mkdir -p outputs/results-typical
for task in "${tasks[@]}"; do
  data=(); if [ "$task" = gsm8k ]; then data=(--data "$gsm8k"); fi
  out=outputs/results-typical/$task
  entmtp search --task "$task" "${data[@]}" --out "$out" "${typical[@]}" --schedule joint \
    --search-prompts 20 --fit-prompts 20 --test-prompts 20 --max-new-tokens 24 --max-nodes 4 | tee "$out-search.txt"
done
# both schedules on a setting small enough for the paper's, which takes a rollout for every node
for schedule in paper joint; do
  out=outputs/results-typical/small-$schedule
  entmtp search --task humaneval --out "$out" "${typical[@]}" --schedule "$schedule" \
    --search-prompts 4 --fit-prompts 1 --test-prompts 1 --max-new-tokens 24 --max-nodes 4 --max-depth 2 | tee "$out.txt"
done
for task in "${tasks[@]}"; do
  out=outputs/results-typical/$task
  entmtp recalibrate "$out" --trees 3 --prompts 20 | tee "$out-recalibrate.txt"
done
