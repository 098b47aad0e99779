"""`verify` catches what it is there for: planted faults in masks, positions, cache rows and acceptance, each in turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from banks import WIDE, bank_for, tiny_pair
from conftest import cli

import entmtp_calib.engine.decoder as decoder
from entmtp_calib.bank import TopologyBank
from entmtp_calib.calibrate.verification import Verdict, verify_bank
from entmtp_calib.engine.acceptance import GREEDY, Accepted
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.layout import Rows, TreeLayout
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.rehearsal import Rehearsal
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.topology import Topology, published_default


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny_pair()


@pytest.fixture(scope="module")
def bank(pair: Pair) -> TopologyBank:
    return bank_for(pair)


def verdicts(pair: Pair, bank: TopologyBank) -> dict[str, Verdict]:
    prompts = [(name, pair.tokenizer(name)["input_ids"]) for name in ("Q1: after 7?", "Q2: after 14?")]
    return {found.arm: found for found in verify_bank(pair, bank, prompts, StopRule(frozenset(), 30), GREEDY)}


def test_a_sound_decoder_is_identical_on_every_arm_and_every_path(pair: Pair, bank: TopologyBank) -> None:
    found = verdicts(pair, bank)
    arms = {"ar", "chain", "wide", "static", "ladder", "hysteresis", "dynamic"}
    assert set(found) == arms | {"chain, every path", "wide, every path", "dynamic, every path"}
    for verdict in found.values():
        assert verdict.ok
        assert verdict.count("identical") == verdict.prompts
        assert verdict.largest_gap is None
    for arm in ("wide, every path", "dynamic, every path"):
        assert found[arm].wrong_steps == 0
        assert found[arm].cache_error < 1e-4


def _mask(plant: pytest.MonkeyPatch) -> None:
    """The last row of a branching tree does not see its parent."""
    sound = TreeLayout.__init__

    def init(self: TreeLayout, topology: Topology, device: torch.device) -> None:
        sound(self, topology, device)
        if self.rows > 3:
            self.mask[-1, self.parents[-1]] = False

    plant.setattr(TreeLayout, "__init__", init)


def _position(plant: pytest.MonkeyPatch) -> None:
    """Positions are the row's number, which is right for a chain and wrong for branches."""
    sound = Target.forward

    def forward(self: Target, ids, mask, positions, cache=None, keep=0):
        if mask is not None:
            positions = positions[:, :1] + torch.arange(ids.shape[1])
        return sound(self, ids, mask, positions, cache, keep)

    plant.setattr(Target, "forward", forward)


def _stale(plant: pytest.MonkeyPatch) -> None:
    """The last row of an accepted path is not moved: the slot keeps what another branch wrote."""
    sound = KVCache.commit
    plant.setattr(KVCache, "commit", lambda self, base, rows: sound(self, base, rows[:-1]))


def _wrong_row(plant: pytest.MonkeyPatch) -> None:
    """The row behind the first draft is committed in its place."""
    sound = KVCache.commit

    def commit(self: KVCache, base: int, rows: torch.Tensor) -> None:
        rows = rows.clone()
        rows[1:2] += 1
        sound(self, base, rows)

    plant.setattr(KVCache, "commit", commit)


def _accepts(change: int) -> Callable[[pytest.MonkeyPatch], None]:
    """One draft more or fewer than are right."""
    sound = decoder.accept

    def accept(layout: TreeLayout, right: torch.Tensor, score: torch.Tensor | None) -> Accepted:
        found = sound(layout, right, score)
        if change < 0 and int(found.length):
            row = layout.parents[found.row]
            return Accepted(row, found.length - 1, layout.paths[row])
        if change > 0 and (layout.parents[1:] == found.row).any():
            row = 1 + (layout.parents[1:] == found.row).long().argmax()
            return Accepted(row, found.length + 1, layout.paths[row])
        return found

    return lambda plant: plant.setattr(decoder, "accept", accept)


@pytest.mark.parametrize(
    ("fault", "innocent"),
    [
        (_mask, "chain, every path"),
        (_position, "chain, every path"),
        (_stale, "ar"),
        (_wrong_row, "ar"),
        (_accepts(-1), "ar"),
        (_accepts(1), "ar"),
    ],
    ids=["mask row", "positions", "stale cache row", "wrong cache row", "one too few", "one too many"],
)
def test_a_planted_fault_is_caught(pair: Pair, bank: TopologyBank, monkeypatch: pytest.MonkeyPatch, fault, innocent: str) -> None:
    fault(monkeypatch)
    found = verdicts(pair, bank)
    assert not found["wide, every path"].ok
    assert not found["dynamic, every path"].ok
    assert found[innocent].ok


@pytest.mark.parametrize("part", ["mask", "depths", "parents", "paths"])
def test_a_fault_in_the_layout_of_the_best_nodes_is_caught_and_no_other_arm_is_blamed(
    pair: Pair, bank: TopologyBank, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """One of the tensors is that of the drafted tree's first rows, as if they had not been put in order."""
    sound = Rows.take

    def take(self: Rows, order: torch.Tensor) -> Rows:
        made = sound(self, order)
        setattr(made, part, getattr(self.head(len(order)), part))
        return made

    monkeypatch.setattr(Rows, "take", take)
    found = verdicts(pair, bank)
    assert not found["dynamic, every path"].ok
    assert all(verdict.ok for arm, verdict in found.items() if not arm.startswith("dynamic"))


def test_what_loses_a_draft_leaves_the_text_and_is_caught_by_dictation_alone(
    pair: Pair, bank: TopologyBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    _accepts(-1)(monkeypatch)
    found = verdicts(pair, bank)["wide, every path"]
    assert found.count("identical") == found.prompts
    assert found.wrong_steps


def test_every_path_has_its_turn_however_short_the_texts(target: Target) -> None:
    rehearsal = Rehearsal(target, _Guessless(), published_default())
    stop = StopRule(frozenset(), 6)
    text = [token for step in decoder.autoregressive(target, [3, 4], stop) for token in step.tokens]
    while rehearsal.turn < len(rehearsal.paths):
        steps, _context = rehearsal.run([3, 4], text, stop)
        assert [step.accepted for step in steps] == rehearsal.dictated[: len(steps)]
        assert [token for step in steps for token in step.tokens] == text


class _Guessless:
    """A drafter that is never asked to draft."""

    depth, vocabulary, sequential, max_positions = 4, 97, True, 2**31

    def new_memory(self, capacity: int) -> None:
        return None

    def read(self, hidden: torch.Tensor, start: int = 0, memory: None = None) -> torch.Tensor:
        return hidden


def test_the_command_shows_where_texts_part_and_exits_with_4(
    pair: Pair, bank: TopologyBank, tmp_path: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import entmtp_calib.commands.bank_verify as command

    bank.save(tmp_path / "bank.json")
    monkeypatch.setattr(command, "load_of_bank", lambda *_: pair)  # the self-test at load would find the fault first
    words = ("verify", tmp_path / "bank.json", "--task", prompt_file, "--prompts", 2, "--max-new-tokens", 24, "--json")
    sound = cli(*words)
    assert sound.exit_code == 0, sound.output
    assert json.loads(sound.stdout)["partings"] == []
    _wrong_row(monkeypatch)
    result = cli(*words)
    assert result.exit_code == 4
    document = json.loads(result.stdout)
    assert {"prompt", "arm", "token", "gap", "verdict"} == set(document["partings"][0])
    assert "wide, every path" in result.stderr
    assert "Where texts part" in cli(*words[:-1]).stdout


def test_a_near_tie_is_a_fault_in_float32_and_counted_in_lower_precision(
    pair: Pair, bank: TopologyBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that parts at a gap of nothing: the arithmetic of float32 does not explain it, that of bfloat16 does."""
    import entmtp_calib.calibrate.comparison as comparison
    import entmtp_calib.calibrate.verification as verification

    monkeypatch.setattr(comparison, "top_two_gap", lambda *_: 0.0)
    _wrong_row(monkeypatch)
    assert not verdicts(pair, bank)["wide, every path"].ok
    monkeypatch.setattr(verification, "_EXACT", ())
    found = verdicts(pair, bank)["wide, every path"]
    assert found.count("near tie") > 0
    assert found.count("diverged") == 0
    assert WIDE.size == 7
