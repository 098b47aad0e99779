"""Examples of every command, for its help. A test runs them, so they are true."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "entmtp run --out outputs/demo --task humaneval",
        "entmtp run --out outputs/mine --model my-model --heads my-heads --task my-prompts.jsonl",
        "entmtp run --out outputs/beside --model my-model --heads my-heads --task my-prompts.jsonl --add-trees trees.json",
    ),
    "search": ("entmtp search --out outputs/mine --model my-model --heads my-heads --task my-prompts.jsonl --max-nodes 64",),
    "recalibrate": (
        "entmtp recalibrate outputs/mine --prompts 20",
        "entmtp recalibrate outputs/mine --add-trees trees.json --fresh",
    ),
    "time": ("entmtp time outputs/mine --prompts 20 --rounds 3",),
    "fit-thresholds": ("entmtp fit-thresholds outputs/mine --signal expected_chain_3",),
    "decode": (
        "entmtp decode --bank outputs/mine/bank.json 'Write a function that adds two numbers.'",
        "entmtp decode --bank outputs/mine/bank.json --file prompt.txt --policy static",
    ),
    "verify": ("entmtp verify outputs/mine/bank.json --prompts 3 --dtype float32",),
    "bench": ("entmtp bench outputs/mine/bank.json --task my-prompts.jsonl --prompts 20",),
    "show": ("entmtp show outputs/mine", "entmtp show outputs/mine/bank.json --tree ar"),
    "report": ("entmtp report outputs/mine",),
    "export": (
        "entmtp export outputs/mine/bank.json --to trtllm --tree 1 --out medusa.yml",
        "entmtp export trees.json --to vllm",
    ),
    "import": ("entmtp import medusa_choices.py --out trees.json", "entmtp import leaves.yml --label mine --out trees.json"),
    "compare": ("entmtp compare outputs/mine/bank.json outputs/other/bank.json",),
    "explain": ("entmtp explain outputs/mine/bank.json 'Write a function that adds two numbers.' --steps 5",),
    "env": ("entmtp env --json",),
    "train-heads": ("entmtp train-heads --out my-heads --base my-model --architecture hydra++ --prompts sharegpt:4000",),
    "export-heads": ("entmtp export-heads my-heads --format hydra --base my-model --out exported",),
}


def epilog(command: str) -> str:
    """The examples as the end of a help text, one a line."""
    return "\n\n".join(("Examples:", *EXAMPLES[command])) if command in EXAMPLES else ""
