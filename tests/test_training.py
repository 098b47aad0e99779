"""Training heads: the hand-written gradient, the batches, the shards, the recipe."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import VOCAB, byte_tokenizer, plain, tiny_model

import entmtp_calib.calibrate.distill as distill_module
from entmtp_calib.calibrate.distill import distill, read_shard
from entmtp_calib.calibrate.head_judging import calibration_error, hit_rates, reliability
from entmtp_calib.calibrate.head_training import HeadRecipe, Source, parse_source, recorded_texts
from entmtp_calib.calibrate.losses import _FrozenHeadLoss, collate, head_losses
from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.calibrate.recorded import conversations, keep
from entmtp_calib.calibrate.states import StateFiles, extract, states_of
from entmtp_calib.calibrate.training import TrainingConfig, frequent_ids, initialise, schedule
from entmtp_calib.engine.heads import DraftHeads, HeadShape
from entmtp_calib.engine.prefix import PrefixShape
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.evidence import Trace


@pytest.mark.parametrize("block", [2, 256])
def test_the_frozen_head_loss_and_its_gradient_equal_autograd(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entmtp_calib.calibrate.losses._BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(6, 8, generator=generator, requires_grad=True)
    weight = torch.randn(11, 8, generator=generator)
    teacher = torch.rand(9, 11, generator=generator) / 11  # mass below one, as over a reduced vocabulary
    rows = torch.tensor([3, 1, 4, 1, 5, 8])
    loss = _FrozenHeadLoss.apply(states, weight, teacher, rows)
    (gradient,) = torch.autograd.grad(loss, states)
    other = states.detach().clone().requires_grad_(True)
    wanted = -(teacher[rows] * F.log_softmax(F.linear(other, weight), -1)).sum()
    (wanted_gradient,) = torch.autograd.grad(wanted, other)
    assert torch.allclose(loss, wanted, atol=1e-5)
    assert torch.allclose(gradient, wanted_gradient, atol=1e-5)


@pytest.fixture
def shard(target: Target, tmp_path: Path) -> Path:
    """Distilled text of a few prompts of different lengths."""
    prompts = [[1, 2, 3], [7], [4, 5, 6, 8, 9], [13, 20]]
    return distill(target, prompts, StopRule(target.end_ids, 12), tmp_path / "text")[0]


def test_states_of_a_text_are_those_that_chose_its_tokens(target: Target, shard: Path) -> None:
    texts = read_shard(shard)
    for text, states in zip(texts, states_of(target, texts), strict=True):
        assert text.written.tolist() == plain(target, text.prompt.tolist(), StopRule(target.end_ids, 12))
        assert states.written.tolist() == text.written.tolist()
        assert [*text.prompt[:1], *states.tokens.tolist()] == [*text.prompt, *text.written]
        logits = target.lm_head(states.hidden[states.first :])
        assert torch.equal(logits.argmax(-1), states.written)
        assert torch.allclose(states.norm, logits.logsumexp(-1), atol=1e-4)


def test_state_files_give_back_every_text(target: Target, shard: Path, tmp_path: Path) -> None:
    wanted = states_of(target, read_shard(shard))
    files = extract(target, [shard, shard.rename(tmp_path / "00001.npz")][1:] * 2, tmp_path / "states")
    found = StateFiles(files)
    assert found.sizes == [len(text.written) for text in wanted] * 2
    for index, text in enumerate(wanted * 2):
        for name in ("hidden", "tokens", "norm", "first"):
            assert torch.equal(torch.as_tensor(getattr(found[index], name)), torch.as_tensor(getattr(text, name)))


def test_states_of_other_text_or_another_target_are_made_anew(target: Target, shard: Path, tmp_path: Path) -> None:
    folder = tmp_path / "states"
    (path,) = extract(target, [shard], folder)
    first = path.stat().st_mtime_ns
    extract(target, [shard], folder)
    assert path.stat().st_mtime_ns == first
    other = Target(tiny_model(seed=5), target.end_ids, "other", "sha256:other")
    before = StateFiles([path])[0].hidden
    extract(other, [shard], folder)
    assert not torch.equal(StateFiles([path])[0].hidden, before)
    shard.unlink()
    distill(target, [[1, 2, 3, 4]], StopRule(target.end_ids, 5), shard.parent)
    extract(target, [shard], folder)
    assert len(StateFiles([path])) == 1


def test_damaged_states_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.safetensors").write_bytes(b"torn")
    with pytest.raises(ArtefactError, match="damaged"):
        StateFiles([tmp_path / "s.safetensors"])


def test_sampled_text_depends_on_prompt_and_seed_alone(target: Target, tmp_path: Path) -> None:
    prompts, stop = [[1, 2, 3], [7], [4, 5, 6, 8, 9], [7, 7]], StopRule(frozenset(), 12)

    def written(name: str, batch: int, seed: int, chosen: list[list[int]] = prompts) -> list[list[int]]:
        (path,) = distill(target, chosen, stop, tmp_path / name, batch=batch, temperature=1.0, seed=seed)
        return [text.written.tolist() for text in read_shard(path)]

    first = written("a", 4, 0)
    assert written("b", 1, 0) == first
    assert written("c", 2, 0, prompts[::-1]) == first[::-1]
    assert written("d", 4, 1) != first
    assert first != [plain(target, prompt, stop) for prompt in prompts]


@pytest.mark.parametrize("architecture", ["hydra", "hydra++", "medusa"])
@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_losses_are_those_of_every_text_by_itself(target: Target, shard: Path, architecture: str, labels: str) -> None:
    """Against a loop over texts and positions with whole distributions; the draft vocabulary is a part."""
    ids = torch.arange(0, VOCAB, 2)
    prefix = PrefixShape(target.hidden_size, target.hidden_size, 40) if architecture == "hydra++" else None
    torch.manual_seed(2)
    heads = DraftHeads(HeadShape(architecture, 2, 2, target.hidden_size, len(ids), reduced=True, prefix=prefix))
    assert heads.draft_ids is not None
    heads.draft_ids.copy_(ids)
    heads.requires_grad_(False).bind(target)
    texts = states_of(target, read_shard(shard))
    wanted: list[list[torch.Tensor]] = [[], []]
    for text in texts:
        read = heads.read(text.hidden)
        teacher = target.lm_head(text.hidden).softmax(-1)[:, ids]
        if labels == "hard":
            teacher = (text.tokens[:, None] == ids).float()
        for row in range(text.first, len(text.tokens)):
            context = heads.start(read[row : row + 1], text.tokens[row : row + 1])
            for level in range(2):
                if row + level + 1 < len(text.tokens):
                    said = heads.logits(level, context).log_softmax(-1)[0]
                    wanted[level].append(-(teacher[row + level + 1] * said).sum())
                    context = heads.extend(context, text.tokens[row + level + 1][None])
    found = head_losses(heads, target, collate(texts, target), labels)
    for level in range(2):
        assert float(found[level]) == pytest.approx(float(torch.stack(wanted[level]).mean()), rel=1e-4)


def test_a_text_is_written_once_wherever_its_prompt_stands(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entmtp_calib.calibrate.distill.SHARD_PROMPTS", 2)
    stop, asked = StopRule(target.end_ids, 4), []
    real = distill_module.write
    monkeypatch.setattr(
        distill_module, "write", lambda target, prompts, *more: asked.extend(prompts) or real(target, prompts, *more)
    )
    prompts = [[1, 2], [3], [4, 5]]
    paths = distill(target, prompts, stop, tmp_path)
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in distill(target, prompts, stop, tmp_path)] == before
    assert asked == prompts
    more = distill(target, [[9], [4, 5], [3], [1, 2], [8]], stop, tmp_path)
    assert asked == [*prompts, [9], [8]]
    texts = [text for path in more for text in read_shard(path)]
    assert [text.prompt.tolist() for text in texts] == [[9], [4, 5], [3], [1, 2], [8]]
    assert all(text.written.tolist() == plain(target, text.prompt.tolist(), stop) for text in texts)


@pytest.mark.parametrize("other", [{"stop": StopRule(frozenset([1]), 4)}, {"temperature": 0.7}])
def test_texts_made_in_another_manner_are_refused(target: Target, tmp_path: Path, other: dict) -> None:
    stop = StopRule(target.end_ids, 4)
    distill(target, [[1, 2]], stop, tmp_path)
    with pytest.raises(ArtefactError, match="other limits or temperatures"):
        distill(target, [[1, 3]], **{"stop": stop, "folder": tmp_path} | other)


def test_shares_of_the_positions_have_the_mean_of_all(target: Target, shard: Path) -> None:
    heads = DraftHeads(HeadShape("hydra", 2, 1, target.hidden_size, VOCAB)).requires_grad_(False).bind(target)
    batch = collate(states_of(target, read_shard(shard)), target)
    whole = [float(loss) for loss in head_losses(heads, target, batch)]
    torch.manual_seed(0)
    drawn = np.array([[float(loss) for loss in head_losses(heads, target, batch, shares=(1, 0.5))] for _ in range(60)])
    assert np.allclose(drawn[:, 0], whole[0])
    assert drawn[:, 1].std() > 0
    assert drawn[:, 1].mean() == pytest.approx(whole[1], abs=4 * drawn[:, 1].std() / 60**0.5)


def test_recorded_conversations_are_read_behind_their_first_question(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "conversations": [("human", "Hi"), ("gpt", "Hello."), ("human", "More")]},
        {"id": "b", "conversations": [("human", "One"), ("gpt", "Two"), ("human", "Three"), ("gpt", "Four"), ("human", "Five")]},
        {"id": "c", "conversations": [("human", "Only a question")]},
        {"id": "d", "conversations": [("human", "x" * 50), ("gpt", "y"), ("human", "z")]},
    ]
    for row in rows:
        row["conversations"] = [{"from": who, "value": text} for who, text in row["conversations"]]
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = byte_tokenizer()
    found = load_prompts(str(path), turns="all").prompts
    texts = list(conversations(found, tokenizer, 20, 12))
    said = sorted((tokenizer.decode(text.prompt), tokenizer.decode(text.written)) for text in texts)
    assert said == [("Hi", "\n\nHello.\n\nMore"[:12]), ("One", "\n\nTwo\n\nThree\n\nFour"[:12])]
    paths = keep(texts, tmp_path / "shards")
    again = read_shard(paths[0])
    assert [text.written.tolist() for text in again] == [text.written.tolist() for text in texts]
    before = paths[0].stat().st_mtime_ns
    assert keep(texts, tmp_path / "shards") == paths
    assert paths[0].stat().st_mtime_ns == before


def test_a_recorded_source_without_answers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text('{"prompt": "Only questions"}\n' * 3)
    recipe = HeadRecipe("hydra", 2, 1, 0, (), 1, 9, 9, 0, TrainingConfig(), recorded=(Source(str(tmp_path / "asked.jsonl")),))
    with pytest.raises(ArtefactError, match="no conversation that goes on"):
        recorded_texts(recipe, byte_tokenizer(), tmp_path / "shards")


def test_every_pass_takes_every_text_once_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entmtp_calib.calibrate.training._WINDOW", 20)
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 60, 64).tolist()
    lengths = [size + int(more) for size, more in zip(sizes, rng.integers(0, 90, 64), strict=True)]
    steps = list(itertools.islice(schedule(sizes, lengths, 100, 3), 90))
    flat = [text for members in steps for text in members]
    passes = [flat[start : start + 64] for start in range(0, 128, 64)]
    assert all(sorted(order) == list(range(64)) for order in passes)
    assert passes[0] != passes[1]
    spread = [max(lengths[text] for text in members) - min(lengths[text] for text in members) for members in steps]
    assert np.mean(spread) < 0.6 * (max(lengths) - min(lengths))
    for members in steps:
        assert sum(sizes[text] for text in members[:-1]) < 100
    assert steps != list(itertools.islice(schedule(sizes, lengths, 100, 4), 90))


def test_confidence_that_is_right_half_of_the_time_is_told() -> None:
    """Two depths: the first is said with 0.8 and true in 3 of 4, the second never true."""
    trace = Trace("", np.arange(5, dtype=np.int32), np.array([[0, 1], [0, 3], [0, 1], [2, 0], [-1, -1]], np.int32),
                  np.zeros((5, 2), np.float32), np.zeros(5, np.float32), np.zeros(5, np.float32),
                  np.log(np.array([[0.8, 0.5]] * 5, np.float32)), np.zeros(5, np.int32))  # fmt: skip
    first, second = reliability([trace])
    assert (first["depth"], first["positions"], first["came_true"]) == (1, 4, 0.75)
    assert first["confidence"] == pytest.approx(0.8)
    assert (second["depth"], second["low"], second["came_true"]) == (2, 0.4, 0.0)
    assert calibration_error([first, second], 1) == pytest.approx(0.05)
    assert hit_rates([trace])[1] == {"head": 2, "top1": 0.25, "top2": 0.75, "top4": 1.0, "top10": 1.0}


@pytest.mark.parametrize("architecture", ["hydra", "hydra++", "medusa"])
def test_fresh_heads_repeat_the_targets_opinion(target: Target, architecture: str) -> None:
    prefix = PrefixShape(target.hidden_size, target.hidden_size, 40) if architecture == "hydra++" else None
    heads = DraftHeads(HeadShape(architecture, 3, 2, target.hidden_size, VOCAB, prefix=prefix)).requires_grad_(False)
    hidden, tokens = torch.randn(4, target.hidden_size), torch.arange(4)
    initialise(heads, hidden)
    heads.bind(target)
    context = heads.start(heads.read(hidden), tokens)
    for level in range(3):
        found, wanted = heads.logits(level, context), target.lm_head(hidden)
        assert torch.equal(found.argmax(-1), wanted.argmax(-1))
        assert architecture == "hydra++" or torch.allclose(found, wanted, atol=1e-5)
        context = heads.extend(context, tokens)


def test_frequent_ids_count_and_break_ties_by_id() -> None:
    texts = [torch.tensor([5, 5, 2]), torch.tensor([5, 2, 9, 1])]
    assert frequent_ids(texts, 4, 12).tolist() == [5, 2, 1, 9]
    assert frequent_ids(texts, 6, 12).tolist() == [5, 2, 1, 9, 0, 3]


def test_the_learning_rate_rises_and_falls() -> None:
    config = TrainingConfig(steps=100, warmup=10, rate=1.0)
    rates = np.array([config.rate_at(step) for step in range(100)])
    assert rates.argmax() in (9, 10)
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] == pytest.approx(0.05, abs=0.01)
    assert [TrainingConfig(depth_weights=(1, 0.5)).weight_of(head) for head in range(3)] == [1, 0.5, 0.5]


def test_sources_are_read_and_nonsense_is_refused() -> None:
    assert parse_source("sharegpt:40") == Source("sharegpt", "", 40)
    assert parse_source("gsm8k=/tmp/train.jsonl:7") == Source("gsm8k", "/tmp/train.jsonl", 7)
    assert parse_source("/tmp/own.jsonl") == Source("/tmp/own.jsonl", "", None)
    assert parse_source("hf:openai/gsm8k:main:train:200") == Source("hf:openai/gsm8k:main:train", "", 200)
    assert parse_source("hf:owner/name") == Source("hf:owner/name", "", None)
    for text in ("sharegpt:0", "sharegpt:x", ":4", ""):
        with pytest.raises(UsageError):
            parse_source(text)
