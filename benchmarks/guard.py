"""What the guard loses to the better of a tree and plain decoding on text that the tree was not made for, run and replayed.

Run: python benchmarks/guard.py --bank outputs/demo/bank.json --task benchmarks/foreign.jsonl [--prompts 8] [--tokens 512]
Two trees are tried: the bank's static one, and the published tree, which is seldom fit for a small machine. Every arm decodes the
same prompts, interleaved, and plain decoding is timed twice. Only prompts whose answers are long enough count, since a guard must
pay for its first tries. The replay takes the same texts with the step costs of the same run. Prints Markdown; close other
programs first.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from entmtp_calib import BankDecoder, open_bank
from entmtp_calib.calibrate.bench import plain_runner
from entmtp_calib.calibrate.paired import seconds_per_step, speed_ratio
from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.calibrate.rounds import decoder_runner, draft_seconds, interleave
from entmtp_calib.calibrate.timing import AR, AR_AGAIN, Row, aa_slack, runs_by_arm
from entmtp_calib.engine.decoder import HELD, Decoder
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.engine.writer import write
from entmtp_calib.evidence import accepted_depths
from entmtp_calib.guard import Guard, guarded
from entmtp_calib.policy import Static
from entmtp_calib.topology import Topology, published_default

Texts = Mapping[str, tuple[list[int], list[int]]]
LOOKED_AT = 4  # prompts for every one wanted, since many answers are short
LONGEST_PROMPT = 512


def long_texts(model: BankDecoder, options: argparse.Namespace, stop: StopRule) -> Texts:
    """Prompts and their answers by plain decoding, those of at least `--least` tokens."""
    prompts = load_prompts(options.task, options.data, LOOKED_AT * options.prompts, options.seed).prompts
    encoded = [(prompt.id, model.encode(prompt.messages)) for prompt in prompts]
    encoded = [(name, ids) for name, ids in encoded if len(ids) <= LONGEST_PROMPT]
    written = dict(write(model.pair.target, [ids for _name, ids in encoded], stop))
    found = {name: (ids, written[place]) for place, (name, ids) in enumerate(encoded) if len(written[place]) >= options.least}
    return dict(list(found.items())[: options.prompts])


def decoders_of(model: BankDecoder) -> dict[str, tuple[Topology, Decoder, Decoder]]:
    """Each tree with its decoder, without a guard and with one."""
    bank, pair = model.bank, model.pair
    static = bank.policy("static").members[0]
    found = {}
    for label, tree in {bank.trees[static].label: bank.topologies[static], "default-63": published_default()}.items():
        bare, watched = (Decoder(pair.target, pair.heads, [tree], Static(0), guard=guard) for guard in (None, Guard()))
        found[label] = (tree, bare, watched)
    return found


def guard_name(label: str) -> str:
    return f"{label}, guard"


def replayed_loss(tree: Topology, draft: float, runs: Mapping[str, Sequence[Row]], label: str, traces: Sequence[object]) -> float:
    """Seconds under the guard over those of the better of tree and plain decoding, less 1, over all texts."""
    plain, own = (sum(map(seconds_per_step, runs[arm])) / len(runs[arm]) for arm in (AR, label))
    accepts = [accepted_depths(tree, trace).tolist() for trace in traces]  # type: ignore[arg-type]
    bare, watched = (sum(guarded(text, plain, own, draft, guard)[0] for text in accepts) for guard in (None, Guard()))
    return watched / min(bare, plain * sum(map(len, accepts))) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bank", default="outputs/demo/bank.json")
    parser.add_argument("--task", default="benchmarks/foreign.jsonl")
    parser.add_argument("--data")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--least", type=int, default=256, help="shortest answer that counts")
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    model = open_bank(options.bank)
    pair, stop = model.pair, StopRule(model.pair.target.end_ids, options.tokens)
    texts, trees = long_texts(model, options, stop), decoders_of(model)
    if not texts:
        raise SystemExit(f"No answer has {options.least} tokens: give a smaller --least, or more --prompts.")
    plain = plain_runner(pair.target, model.decoder.rule)
    runners = {AR: plain, AR_AGAIN: plain}
    for label, (_tree, bare, watched) in trees.items():
        runners |= {label: decoder_runner(bare), guard_name(label): decoder_runner(watched)}
    rows: list[Row] = []
    interleave(runners, [(name, ids) for name, (ids, _text) in texts.items()], stop, options.rounds, 0, rows)
    runs, traces = runs_by_arm(rows), [trace_text(pair.target, pair.heads, name, *both) for name, both in texts.items()]
    print(f"Bank of {model.bank.task} on {len(texts)} answers of {options.task}, {sum(map(len, traces))} tokens\n")
    print(
        "| tree | plain | tree | guard | guard × better | 95 % | loss by replay | steps held |\n|---|---|---|---|---|---|---|---|"
    )
    for label, (tree, bare, watched) in trees.items():
        loss = replayed_loss(tree, draft_seconds(bare), runs, label, traces)
        held = held_share(watched, [ids for ids, _text in texts.values()], stop)
        print(line(runs, label) + f" {max(0.0, loss):.1%} | {held:.0%} |")
    again = speed_ratio(runs[AR_AGAIN], runs[AR], alike=True)
    print(f"\nPlain decoding again is × {again.ratio:.3f} ({again.low:.3f}–{again.high:.3f}).")


def line(runs: Mapping[str, Sequence[Row]], label: str) -> str:
    """Tokens per second of plain decoding, tree and guard, and the guard over the better of the two."""
    rates = {arm: sum(row["tokens"] for row in runs[arm]) / sum(row["seconds"] for row in runs[arm])
             for arm in (AR, label, guard_name(label))}  # fmt: skip
    better = max((AR, label), key=lambda arm: rates[arm])
    found = speed_ratio(runs[guard_name(label)], runs[better], slack=aa_slack(runs))
    shown = " | ".join(f"{rate:.1f}" for rate in rates.values())
    return f"| {label} | {shown} | {found.ratio:.3f} | {found.low:.3f}–{found.high:.3f} |"


def held_share(decoder: Decoder, prompts: Sequence[Sequence[int]], stop: StopRule) -> float:
    """Share of the steps that go without a tree, decoded once more."""
    steps = [step.index == HELD for ids in prompts for step in decoder.steps(ids, stop)]
    return sum(steps) / len(steps)


if __name__ == "__main__":
    main()
