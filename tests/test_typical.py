"""Policies under typical acceptance: recorded steps, the fit over them, and the decoder that follows what was fitted."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import VOCAB, cli, plain, random_tree

from entmtp_calib.bank import load_bank
from entmtp_calib.calibrate.likelihood import greedy_logp, mean_logp
from entmtp_calib.calibrate.thresholds import Costs, best_static, evaluate, fit_hysteresis, fit_ladder
from entmtp_calib.calibrate.typical_fitting import METHOD
from entmtp_calib.calibrate.typical_steps import RecordedSteps, at_random, best_choices, outcome_of
from entmtp_calib.calibrate.typical_verification import lawful_margins
from entmtp_calib.engine.acceptance import Typical
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.recording import Recorder
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.evidence import Recorded
from entmtp_calib.policy import Hysteresis, Ladder, Policy, Static
from entmtp_calib.report.figure import Figure
from entmtp_calib.report.material import read_material
from entmtp_calib.report.switching import gain
from entmtp_calib.signals import Signal
from entmtp_calib.topology import Topology, chain

RULE = Typical(1.0, 0.001, 0.3)
PROMPTS = [[random.Random(n).randrange(6, VOCAB) for _ in range(n % 4 + 1)] for n in range(6)]
SIGNAL = Signal("path_value_2")


def trees() -> list[Topology]:
    return [Topology(), chain(2), random_tree(random.Random(3), 12)]


def middle(target: Target, heads: DraftHeads) -> float:
    """A value of the signal on either side of which there are steps."""
    records = [
        Recorder(target, heads, trees(), Static(1), None, RULE).record("", ids, StopRule(frozenset(), 24)) for ids in PROMPTS
    ]
    steps = RecordedSteps.of(trees(), records).reading(SIGNAL)
    return float(np.median(np.concatenate(steps.values)))


def test_recorded_depths_are_what_each_tree_accepts_there(target: Target, heads: DraftHeads) -> None:
    """At every step of a rollout, a decoder of one tree that stands at the same text accepts as many drafts."""
    stop, seen = StopRule(frozenset(), 24), 0
    for ids in PROMPTS:
        text, recorder = list(ids), Recorder(target, heads, trees(), Static(1), None, RULE)
        found = recorder.record("p", ids, stop)
        steps = list(Decoder(target, heads, [chain(2)], Static(0), rule=RULE).steps(ids, stop))
        assert found.index.tolist() == [1] * len(steps)
        assert found.depths[:, 1].tolist() == [step.accepted for step in steps]
        for step, depths in zip(steps, found.depths.tolist(), strict=True):
            left = StopRule(frozenset(), 24 - (len(text) - len(ids)))
            for tree, depth in zip(trees(), depths, strict=True):
                alone = next(iter(Decoder(target, heads, [tree], Static(0), rule=RULE).steps(text, left)))
                assert alone.accepted == depth
                seen += depth
            text += step.tokens
    assert seen > 20


def test_recorded_signals_are_those_that_the_decoder_reads(target: Target, heads: DraftHeads) -> None:
    edge, stop = middle(target, heads), StopRule(frozenset(), 24)
    policy = Ladder((edge,), (1, 2))
    used: set[int] = set()
    for name in ("path_value_2", "entropy", "expected_chain_3"):
        for ids in PROMPTS:
            found = Recorder(target, heads, trees(), policy, Signal(name), RULE).record("p", ids, stop)
            steps = list(Decoder(target, heads, trees(), policy, name, RULE).steps(ids, stop))
            values = Signal(name).at(found.root_logp, found.entropy, found.chain_logp)
            assert found.index.tolist() == [step.index for step in steps]
            assert found.depths[np.arange(len(found)), found.index].tolist() == [step.accepted for step in steps]
            assert values.tolist() == pytest.approx([step.signal for step in steps], abs=1e-5)
            used |= set(found.index.tolist())
    assert used == {1, 2}


def test_a_ladder_decodes_with_the_tree_that_its_signal_says(target: Target, heads: DraftHeads) -> None:
    policy = Ladder((middle(target, heads),), (0, 2))
    used = set()
    for ids in PROMPTS:
        for step in Decoder(target, heads, trees(), policy, SIGNAL, RULE).steps(ids, StopRule(frozenset(), 24)):
            assert step.index == policy.next(0, step.signal)
            used.add(step.index)
    assert used == {0, 2}


def made_up(seed: int, texts: int = 8, steps: int = 60) -> list[Recorded]:
    """Steps at which the larger tree accepts two more drafts where the signal is high, and nothing more elsewhere."""
    rng = np.random.default_rng(seed)
    records = []
    for number in range(texts):
        top1 = rng.uniform(0.01, 1, steps).astype(np.float32)
        small = rng.integers(0, 2, steps)
        depths = np.stack([np.zeros(steps, int), small, small + 2 * (top1 > 0.5)], 1).astype(np.int32)
        records.append(Recorded(str(number), depths, np.full(steps, 1, np.int32), np.log(top1), np.ones(steps, np.float32),
                                np.zeros((steps, 3), np.float32)))  # fmt: skip
    return records


COSTS = Costs((1.0, 1.1, 2.2), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


def test_a_policy_is_worth_its_tokens_over_its_seconds_at_the_recorded_steps() -> None:
    records = made_up(1)
    steps = RecordedSteps.of(trees(), records).reading("base_top1")
    policy = Hysteresis(0.7, 0.3, 1, 2)
    tokens = seconds = 0.0
    for text in records:
        index = 1
        for row, logp in zip(text.depths, text.root_logp, strict=True):
            index = policy.next(index, float(np.exp(logp)))
            tokens, seconds = tokens + row[index] + 1, seconds + COSTS.alone[index]
    found = evaluate(policy, steps, COSTS)
    assert (found.tokens.sum(), found.seconds.sum()) == (tokens, pytest.approx(seconds))


def test_ladder_and_hysteresis_find_where_the_large_tree_pays() -> None:
    steps = RecordedSteps.of(trees(), made_up(2)).reading("base_top1")
    static, ladder, hysteresis = best_static(steps, COSTS), fit_ladder(steps, COSTS, 2), fit_hysteresis(steps, COSTS)
    assert isinstance(ladder.policy, Ladder)
    assert ladder.policy.trees == (1, 2)
    assert ladder.policy.edges[0] == pytest.approx(0.5, abs=0.03)
    assert isinstance(hysteresis.policy, Hysteresis)
    assert (hysteresis.policy.low, hysteresis.policy.high) == (1, 2)
    ceiling = best_choices(steps, COSTS.alone).tokens_per_s
    assert static.tokens_per_s * 1.1 < hysteresis.tokens_per_s <= ladder.tokens_per_s <= ceiling
    floor = at_random(ladder.shares, steps, COSTS.of(ladder.policy))
    assert floor < static.tokens_per_s


def test_no_way_to_choose_is_faster_than_the_oracle() -> None:
    steps = RecordedSteps.of(trees(), made_up(3, 2, 6))
    ceiling, rng = best_choices(steps, COSTS.alone).tokens_per_s, random.Random(1)
    depths = np.concatenate(steps.depths)
    for _ in range(3000):
        picks = [rng.randrange(3) for _ in depths]
        tokens = sum(int(row[pick]) + 1 for row, pick in zip(depths, picks, strict=True))
        assert tokens / sum(COSTS.alone[pick] for pick in picks) <= ceiling + 1e-12


def test_own_rollouts_are_costed_step_by_step() -> None:
    index = [np.array([0, 2, 2]), np.array([1, -1])]
    tokens = [np.array([1, 3, 2]), np.array([2, 1])]
    policy: Policy = Ladder((0.1, 0.2), (0, 1, 2))
    found = outcome_of(policy, COSTS, index, tokens)
    assert found.tokens.tolist() == [6, 3]
    assert found.seconds.tolist() == pytest.approx([1 + 2.2 + 2.2, 1.1 + 1.0])
    assert found.mean_accept == pytest.approx(4 / 5)
    assert found.shares == (0.4, 0.2, 0.4)
    assert found.switches == pytest.approx(100 * 2 / 5)


SETTINGS = ("--acceptance", "typical", "--temperature", 1.0, "--epsilon", 0.001, "--schedule", "joint", "--search-prompts", 4,
            "--fit-prompts", 5, "--test-prompts", 3, "--max-new-tokens", 24, "--max-nodes", 8, "--dtype", "float32",
            "--device", "cpu")  # fmt: skip


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, tiny_heads: Path, prompt_file: Path) -> Path:
    """A run with typical acceptance up to its timings, in which the bank has three trees."""
    out = tmp_path_factory.mktemp("runs") / "typical"
    for words in (("search", "--out", out, "--model", tiny_folder, "--heads", tiny_heads, "--task", prompt_file, *SETTINGS),
                  ("recalibrate", out, "--trees", 3, "--prompts", 2), ("time", out, "--rounds", 2, "--prompts", 2)):  # fmt: skip
        result = cli(*words, "--quiet")
        assert result.exit_code == 0, result.output
    slow_down(out / "timings.jsonl")
    return out


def slow_down(path: Path, again: float = 1.0) -> None:
    """Make every step of a timing take what its rows make of it, so that the bank does not depend on this machine.

    Args:
        again: how many times slower the repeat of plain decoding is than plain decoding.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if "steps" in row:
            size = int(row["arm"][1:].split("-")[0]) if row["arm"][0] == "n" else 63 if row["arm"] == "default-63" else 0
            factor = again if row["arm"] == "ar-again" else 1.0
            row |= {"prefill_seconds": 0.01, "seconds": (0.01 + row["steps"] * (0.02 + 0.0001 * size)) * factor}
    path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))


def test_the_fit_ends_in_the_same_bytes_and_goes_on_where_it_was_killed(timed: Path) -> None:
    result = cli("fit-thresholds", timed, "--signal", "path_value_2")
    assert result.exit_code == 0, result.output
    assert "not lossless" in result.stdout
    bank = load_bank(timed / "bank.json")
    assert len(bank.trees) > 1
    assert bank.evaluation["method"] == METHOD
    assert ("No measurable gain" in result.stdout) == (bank.recommended == "static")
    files = {path: path.read_bytes() for path in sorted((timed / "rollouts" / "typical").iterdir())}
    assert len(files) >= 5 + 3 + 3
    before = json.loads((timed / "bank.json").read_text())
    for path in list(files)[::2]:
        path.unlink()
    assert cli("fit-thresholds", timed, "--signal", "path_value_2", "--quiet").exit_code == 0
    assert {path: path.read_bytes() for path in sorted((timed / "rollouts" / "typical").iterdir())} == files
    after = json.loads((timed / "bank.json").read_text())
    assert {**after, "provenance": 0, "measured": 0} == {**before, "provenance": 0, "measured": 0}


def test_auto_looks_at_every_signal_and_the_bank_decodes(timed: Path) -> None:
    assert cli("fit-thresholds", timed, "--quiet").exit_code == 0
    bank = load_bank(timed / "bank.json")
    assert bank.evaluation["signal_asked"] == "auto"
    found = gain(read_material(timed))
    assert isinstance(found, Figure)
    assert "not lossless" in found.notes[0]
    for policy in bank.policies:
        result = cli("decode", "--bank", timed / "bank.json", "Hello", "--policy", policy, "--max-new-tokens", 12, "--json")
        assert result.exit_code == 0, result.output
    assert cli("run", "--check", timed, "--quiet").exit_code == 0


def test_a_rollout_of_another_prompt_is_refused(timed: Path) -> None:
    assert cli("fit-thresholds", timed, "--signal", "path_value_2", "--quiet").exit_code == 0
    files = sorted((timed / "rollouts" / "typical").glob("recorded-fit-*.npz"))
    kept = files[0].read_bytes()
    files[0].write_bytes(files[1].read_bytes())
    result = cli("fit-thresholds", timed, "--signal", "path_value_2", "--quiet")
    assert result.exit_code == 3
    assert "another prompt" in result.stderr
    files[0].write_bytes(kept)


def test_timing_repeats_the_text_of_every_arm_and_has_an_a_a_floor(timed: Path) -> None:
    """Trees are faster only by more than plain decoding differs from itself, and an arm must write the same in all rounds."""
    path = timed / "timings.jsonl"
    kept = path.read_bytes()
    rows = [row for row in map(json.loads, kept.splitlines()) if row.get("round", -1) >= 0 and "steps" in row]
    texts = {(row["arm"], row["prompt"]): {row["ids"]} for row in rows}
    assert len(rows) == 2 * len(texts)
    assert all(row["ids"] in texts[row["arm"], row["prompt"]] for row in rows)
    assert texts["ar", rows[0]["prompt"]] == texts["ar-again", rows[0]["prompt"]]
    fit = ("fit-thresholds", timed, "--signal", "path_value_2", "--quiet")
    assert cli(*fit).exit_code == 0
    assert len(load_bank(timed / "bank.json").trees) > 1
    slow_down(path, 4.0)
    assert cli(*fit).exit_code == 0
    assert [tree.label for tree in load_bank(timed / "bank.json").trees] == ["ar"]
    lines = kept.splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if b'"ar-again"' in line and b'"round": 1' in line)
    lines[place] = lines[place].replace(json.loads(lines[place])["ids"].encode(), b"0123456789abcdef")
    path.write_bytes(b"".join(lines))
    result = cli("time", timed, "--rounds", 2, "--prompts", 2, "--quiet")
    assert result.exit_code == 1
    assert "wrote different tokens" in result.stderr
    path.write_bytes(kept)


def test_a_plain_forward_tells_lawful_texts_from_others(target: Target, heads: DraftHeads) -> None:
    """What is decoded keeps to the rule everywhere; a token that the target would not write does not, nor a stricter rule."""
    stop, drafts = StopRule(frozenset(), 24), 0
    decoder = Decoder(target, heads, [trees()[2]], Static(0), rule=RULE)
    for ids in PROMPTS:
        steps = list(decoder.steps(ids, stop))
        found = lawful_margins(target, RULE, ids, steps)
        assert len(found) == sum(len(step.tokens) for step in steps)
        assert (found >= -1e-4).all()
        drafts += sum(step.accepted for step in steps)
        worst = replace(steps[0], tokens=((steps[0].tokens[0] + 1) % VOCAB, *steps[0].tokens[1:]))
        assert lawful_margins(target, RULE, ids, [worst])[0] < 0
    assert drafts > 10
    strict = [lawful_margins(target, Typical(1.0, 0.9, 5.0), ids, list(decoder.steps(ids, stop))) for ids in PROMPTS]
    assert any((found < 0).any() for found in strict)


def test_a_bank_with_typical_acceptance_is_verified_by_its_rule(timed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("fit-thresholds", timed, "--signal", "path_value_2", "--quiet").exit_code == 0
    words = ("verify", timed / "bank.json", "--prompts", 2, "--max-new-tokens", 20, "--dtype", "float32", "--json")
    rows = json.loads(cli(*words).stdout)["verification"]
    assert all((row["unlawful"], row["repeated"]) == (0, 2) for row in rows)
    assert sum(row["drafts"] for row in rows) > 10
    monkeypatch.setattr(Typical, "judge", lambda self, layout, tokens, logits, choices: (tokens >= 0, layout.depths.float()))
    result = cli(*words)
    assert result.exit_code == 4
    assert "break the rule" in result.stderr


def test_greedy_texts_are_as_likely_as_their_traces_say(target: Target, heads: DraftHeads) -> None:
    stop = StopRule(frozenset(), 20)
    texts = [plain(target, ids, stop) for ids in PROMPTS]
    traces = [trace_text(target, heads, "", ids, text) for ids, text in zip(PROMPTS, texts, strict=True)]
    alone = [mean_logp(target, ids, text) for ids, text in zip(PROMPTS, texts, strict=True)]
    assert greedy_logp(traces) == pytest.approx(np.mean(alone), abs=1e-4)


def test_recalibration_says_how_likely_its_texts_are_beside_greedy_ones(timed: Path) -> None:
    result = cli("recalibrate", timed, "--trees", 3, "--prompts", 2, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    rows = {row["text"]: row["logp"] for row in document["quality"]}
    assert set(rows) == {"greedy decoding", *(row["tree"] for row in document["recalibration"])}
    journal = [json.loads(line) for line in (timed / "recalibration.jsonl").read_text().splitlines()][1:]
    own = [row for row in journal if row["tree"] == document["recalibration"][0]["tree"]][2:]  # behind those on new prompts
    assert len(own) == 4
    pooled = sum(row["logp"] * row["tokens"] for row in own) / sum(row["tokens"] for row in own)
    assert rows[own[0]["tree"]] == pytest.approx(pooled)
