"""Options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _completion as known

Model = Annotated[
    str, typer.Option(help="Target: smollm2 (embedded), a folder, a .gguf file or a hub name.", autocompletion=known.models)
]
Heads = Annotated[
    str, typer.Option(help="Draft heads: shipped ones by name, a folder or a hub name.", autocompletion=known.heads)
]
Task = Annotated[
    str,
    typer.Option(help="Prompts: humaneval, gsm8k, sharegpt, python-stdlib, hf:OWNER/NAME[:CONFIG[:SPLIT]], or a JSON, JSONL or "
                 "CSV file or a folder of save_to_disk.", autocompletion=known.tasks)
]  # fmt: skip
Data = Annotated[str | None, typer.Option(help="Local copy of a named task, in any of these forms.", show_default="none")]
Turns = Annotated[
    str, typer.Option(help="first: one prompt of a conversation; all: one of every user turn.", autocompletion=known.turns)
]
LongPrompts = Annotated[
    str,
    typer.Option(
        help="skip: leave out prompts without room for text and tree; cut: drop their beginning.",
        autocompletion=known.long_prompts,
    ),
]
DumpPrompts = Annotated[
    Path | None, typer.Option(help="Write the prompts that are used, as text and ids, to this file.", show_default="none")
]
Out = Annotated[Path, typer.Option(help="Run folder, made if it is not there.")]
OutOrNone = Annotated[Path | None, typer.Option(help="Run folder, made if it is not there.", show_default="none")]
Check = Annotated[
    Path | None,
    typer.Option(help="Make the deterministic part of this run again, from its own options; exit 4 if it differs.",
                 show_default="none")
]  # fmt: skip
RunFolder = Annotated[Path, typer.Argument(help="Run folder that `entmtp search` or `entmtp run` made.", metavar="RUN")]
PromptStyle = Annotated[
    str,
    typer.Option(
        help="chat, raw, vicuna (v1.1), or auto: chat where the tokenizer has a template, else raw.", autocompletion=known.styles
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of prompt choice, timing order and resampling.", min=0)]
SameSeed = Annotated[int | None, typer.Option(help="Must be the run's; given only to make sure.", show_default="the run's")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.", autocompletion=known.devices)]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.", autocompletion=known.dtypes)]
Graphs = Annotated[
    str,
    typer.Option(
        help="Capture steps as CUDA graphs: on, off, or auto: on for CUDA with exact acceptance.",
        autocompletion=known.graph_modes,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.", show_default="off")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results only.", show_default="off")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over instead of going on from what is there.", show_default="off")]
SearchPrompts = Annotated[int, typer.Option(help="Prompts that the search sees.")]
FitPrompts = Annotated[int, typer.Option(help="Prompts for recalibration, timing and thresholds.")]
TestPrompts = Annotated[int, typer.Option(help="Prompts that only judge the result.")]
MaxNewTokens = Annotated[int, typer.Option(help="Cap on new tokens of a text.")]
MaxNodes = Annotated[int, typer.Option(help="Size at which trees stop growing.")]
MaxDepth = Annotated[int | None, typer.Option(help="Largest depth of a tree.", show_default="one per head, at most 4")]
Trees = Annotated[int, typer.Option(help="How many trees of the frontier go on, evenly spaced in log size.", min=1)]
AddTrees = Annotated[
    Path | None, typer.Option(help="Tree file of `entmtp import`, or a bank: further trees to measure.", show_default="none")
]
RecalibratePrompts = Annotated[int, typer.Option(help="Prompts that every tree decodes by itself.", min=1)]
TimePrompts = Annotated[int, typer.Option(help="Prompts that plain decoding and every tree are timed on.", min=1)]
BankRule = Annotated[
    str,
    typer.Option(
        help="hull: trees faster than every smaller one; conditional: and those best in some bin of the signal.",
        autocompletion=known.bank_rules,
    ),
]
Profile = Annotated[
    bool, typer.Option("--profile", help="Show where a step of the fastest tree spends its time.", show_default="off")
]
TimeRounds = Annotated[
    int | None,
    typer.Option(help="How often plain decoding and every tree are timed on a prompt, at most.", min=1,
                 show_default="2, or what the budget holds"),
]  # fmt: skip
Budget = Annotated[
    str | None,
    typer.Option(help="Time for all timed runs: 90s, 10m, 1h. Trees that cannot win are dropped.", show_default="none"),
]
Rounds = Annotated[int, typer.Option(help="How often every way to decode is timed on a prompt.", min=1)]
Signal = Annotated[
    str,
    typer.Option(help="What policies read: path_value_1 … 9, expected_chain_1 … 9, base_top1, entropy, entropy_ema_4 or 16, "
                 "accepted_ema_8, combined (fitted), or auto: what gains most on prompts that were held out.",
                 autocompletion=known.signals)
]  # fmt: skip
Temperature = Annotated[float, typer.Option(help="0 decodes greedily; above, tokens are sampled, exactly.", min=0)]
TopK = Annotated[int, typer.Option(help="Sample among this many best tokens; 0 for all.", min=0)]
TopP = Annotated[float, typer.Option(help="Sample among the fewest tokens with this much probability.")]
Coupled = Annotated[
    bool,
    typer.Option("--coupled/--uncoupled", help="Rank guesses by the noise that samples tokens; texts stay the same."),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        help="A text after which answers end; may be repeated; none for none.", show_default="the task's, with raw prompts"
    ),
]
Acceptance = Annotated[
    str,
    typer.Option(help="exact: the text of plain decoding; typical: the paper's, not lossless.", autocompletion=known.acceptances),
]
Epsilon = Annotated[float, typer.Option(help="Typical acceptance: a draft this likely is always right.")]
Alpha = Annotated[float, typer.Option(help="Typical acceptance: factor of exp(-entropy).")]
Schedule = Annotated[
    str,
    typer.Option(
        help="Search from one trace (exact only), or by joint rollouts: paper (one a node) or joint (few).",
        autocompletion=known.schedules,
    ),
]
Preset = Annotated[
    str | None, typer.Option(help="paper: all settings of the paper's search.", show_default="none", autocompletion=known.presets)
]
BankFile = Annotated[Path, typer.Argument(help="bank.json of a run.", metavar="BANK")]
BankTask = Annotated[str | None, typer.Option(help="Prompts to decode.", show_default="the bank's", autocompletion=known.tasks)]
BankModel = Annotated[
    str | None, typer.Option(help="Where the bank's model is here.", show_default="the bank's", autocompletion=known.models)
]
BankHeads = Annotated[
    str | None, typer.Option(help="Where the bank's heads are here.", show_default="the bank's", autocompletion=known.heads)
]
