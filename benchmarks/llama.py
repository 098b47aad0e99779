"""The best policy of a bank beside llama.cpp, which has the same model in 4 bits: same prompts, same number of tokens, one run.

Run: python benchmarks/llama.py --bank outputs/demo/bank.json [--llama-python ENV/bin/python] [--prompts 20] [--tokens 128]
llama-cpp-python may have an environment of its own, since it compiles llama.cpp: `pip install llama-cpp-python` there.

The prompts are those that the bank kept for tests, and both get the same token ids. llama.cpp writes as many tokens as the policy
did, so that an end token which only one of them meets changes nothing. Greedy, same threads, interleaved; plain decoding is there
too. Prints Markdown; close other programs first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from entmtp_calib import BankDecoder, open_bank
from entmtp_calib.calibrate.bench import plain_runner, unseen_prompts
from entmtp_calib.calibrate.paired import Ratio, speed_ratio
from entmtp_calib.calibrate.rounds import Run, Runner, decoder_runner, interleave
from entmtp_calib.calibrate.timing import AR, AR_AGAIN, Row, aa_slack, runs_by_arm
from entmtp_calib.engine.loading import embedded_file
from entmtp_calib.engine.stopping import StopRule

LLAMA = "llama.cpp, 4 bits"
HOW = "Get it by `pip install llama-cpp-python` in any environment and give that one's Python as --llama-python."


class Llama:
    """llama.cpp in a process of its own; see `llama_worker.py`.

    Raises:
        SystemExit: llama-cpp-python is not there, or it failed; says how to get it.
    """

    def __init__(self, python: str, path: Path, threads: int, context: int) -> None:
        self.threads = threads
        command = [python, str(Path(__file__).with_name("llama_worker.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = self._ask(path=str(path), threads=threads, context=context)

    def same_ids(self, texts: Mapping[str, Sequence[int]]) -> int:
        """How many of some texts it would give the same token ids itself."""
        return sum(self._ask(text=text) == list(ids) for text, ids in texts.items())

    def runner(self, lengths: Mapping[tuple[int, ...], int], written: dict[tuple[int, ...], list[int]]) -> Runner:
        """Writes as many tokens after every prompt as `lengths` has for it, and keeps them in `written`."""

        def run(ids: Sequence[int], _stop: StopRule) -> Run:
            found = self._ask(ids=list(ids), count=lengths[tuple(ids)])
            written[tuple(ids)] = found["tokens"]
            return Run(found["tokens"], len(found["tokens"]), found["prefill_seconds"], found["seconds"])

        return run

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(timeout=30)

    def _ask(self, **question: Any) -> Any:
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(json.dumps(question) + "\n")
        asked.flush()
        line = answers.readline()
        answer = json.loads(line) if line else {"error": "it ended without an answer"}
        if "error" in answer:
            raise SystemExit(f"llama.cpp does not run here: {answer['error']}. {HOW}")
        return answer["answer"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bank", default="outputs/demo/bank.json")
    parser.add_argument("--llama-python", default=sys.executable)
    parser.add_argument("--gguf", help="the file, if the bank's target is not an embedded model", type=Path)
    parser.add_argument("--data", help="file of the task's prompts, where the task needs one")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, help="where to keep every run")
    options = parser.parse_args()
    model = open_bank(options.bank)
    chosen, warning = unseen_prompts(model.bank, None, options.data, options.prompts, 1)
    prompts = [(prompt.id, model.encode(prompt.messages)) for prompt in chosen]
    if warning:
        print(warning, file=sys.stderr)
    path = options.gguf or embedded_file(model.bank.target["name"])
    context = max(len(ids) for _name, ids in prompts) + options.tokens + 8
    llama = Llama(options.llama_python, path, torch.get_num_threads(), context)
    stop = StopRule(model.pair.target.end_ids, options.tokens)
    plain = plain_runner(model.pair.target, model.decoder.rule)
    ours = {tuple(ids): plain(ids, stop).tokens for _name, ids in prompts}
    known = llama.same_ids({model.pair.tokenizer.decode(ids): ids for ids in ours})
    theirs: dict[tuple[int, ...], list[int]] = {}
    runners = {model.policy: decoder_runner(model.decoder), AR: plain, AR_AGAIN: plain,
               LLAMA: llama.runner({ids: len(text) for ids, text in ours.items()}, theirs)}  # fmt: skip
    rows: list[Row] = []
    interleave(runners, prompts, stop, options.rounds, 0, rows)
    llama.close()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    print(heading(model, llama, path, len(prompts), known))
    print(table(rows, model.policy))
    print(agreement(ours, theirs))


def heading(model: BankDecoder, llama: Llama, path: Path, prompts: int, known: int) -> str:
    """What was compared."""
    dtype = model.pair.placement.dtype_name
    return (
        f"{model.bank.target['name']} on {prompts} test prompts of {model.bank.task}, greedy, {llama.threads} threads: "
        f"{model.policy} in {dtype} beside llama.cpp (llama-cpp-python {llama.version}) with {path.name}. "
        f"llama.cpp's own tokenizer gives {known} of the {prompts} prompts the same ids; all were given as ids.\n"
    )


def table(rows: list[Row], policy: str) -> str:
    """Tokens per second with prefill and without, each with the policy's paired ratio over it."""
    runs, decode = runs_by_arm(rows), runs_by_arm([_without_prefill(row) for row in rows])
    lines = [
        f"| arm | tokens/s | {policy} is × | 95 % | without prefill | {policy} is × | 95 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for label in runs:
        cells = [label]
        for part in (runs, decode):
            found = speed_ratio(part[policy], part[label], slack=aa_slack(part)) if label != policy else Ratio(1.0, 1.0, 1.0)
            cells += [f"{_rate(part[label]):.1f}", f"{found.ratio:.3f}", f"{found.low:.3f}–{found.high:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def agreement(ours: Mapping[tuple[int, ...], list[int]], theirs: Mapping[tuple[int, ...], list[int]]) -> str:
    """How long both write the same: a sign that they run the same model."""
    common = []
    for ids, text in ours.items():
        pairs = zip(text, theirs[ids], strict=True)
        common.append(next((place for place, (one, other) in enumerate(pairs) if one != other), len(text)))
    same = sum(length == len(text) for length, text in zip(common, ours.values(), strict=True))
    return (
        f"\n{sum(map(len, ours.values()))} tokens each a round. Plain decoding here and llama.cpp write the same text after "
        f"{same} of {len(common)} prompts; the median text is the same for {statistics.median(common):g} tokens."
    )


def _without_prefill(row: Row) -> Row:
    """The prefill decides the first token, so it goes with its seconds; warm-ups are left as they are."""
    return {**row, "seconds": row["seconds"] - row["prefill_seconds"], "tokens": row["tokens"] - 1}


def _rate(rows: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(row["tokens"] for row in rows) / sum(row["seconds"] for row in rows))


if __name__ == "__main__":
    main()
