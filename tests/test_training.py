"""Training heads: the hand-written gradient, the batches, the shards, the recipe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import VOCAB, plain

from entmtp_calib.calibrate.distill import distill, read_shard
from entmtp_calib.calibrate.head_training import Source, parse_source
from entmtp_calib.calibrate.states import States, states_of
from entmtp_calib.calibrate.training import TrainingConfig, _batch_rows, _FrozenHeadLoss, frequent_ids, initialise
from entmtp_calib.engine.heads import DraftHeads, HeadShape
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError, UsageError


@pytest.mark.parametrize("block", [2, 256])
def test_the_frozen_head_loss_and_its_gradient_equal_autograd(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entmtp_calib.calibrate.training._BLOCK", block)
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


def test_states_of_a_text_are_those_that_chose_its_tokens(target: Target, tmp_path: Path) -> None:
    prompts = [[1, 2, 3], [7], [4, 5, 6, 8, 9]]
    stop = StopRule(target.end_ids, 12)
    texts = read_shard(distill(target, prompts, stop, tmp_path)[0])
    states = states_of(target, texts)
    start = 0
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.prompt.tolist() == prompt
        assert text.written.tolist() == plain(target, prompt, stop)
        rows = slice(start, start + len(text.written))
        assert torch.equal(target.lm_head(states.hidden[rows]).argmax(-1), torch.from_numpy(text.written))
        assert states.left[rows].tolist() == list(range(len(text.written) - 1, -1, -1))
        assert torch.allclose(states.norm[rows], target.lm_head(states.hidden[rows]).logsumexp(-1), atol=1e-4)
        start = rows.stop


def test_shards_of_other_prompts_are_refused(target: Target, tmp_path: Path) -> None:
    stop = StopRule(target.end_ids, 4)
    distill(target, [[1, 2]], stop, tmp_path)
    before = (tmp_path / "00000.npz").read_bytes()
    distill(target, [[1, 2]], stop, tmp_path)
    assert (tmp_path / "00000.npz").read_bytes() == before
    with pytest.raises(ArtefactError, match="other prompts"):
        distill(target, [[1, 3]], stop, tmp_path)


def test_every_pass_sees_every_piece_once_in_another_order() -> None:
    starts = torch.arange(0, 128 * 64, 128)
    config = TrainingConfig(batch=128 * 8)
    passes = [torch.cat([_batch_rows(starts, 128 * 64, config, step) for step in range(first, first + 8)]) for first in (0, 8)]
    assert all(torch.equal(rows.sort().values, torch.arange(128 * 64)) for rows in passes)
    assert not torch.equal(*passes)


def test_fresh_heads_repeat_the_targets_opinion(target: Target) -> None:
    heads = DraftHeads(HeadShape("hydra", 3, 2, target.hidden_size, VOCAB)).requires_grad_(False)
    initialise(heads)
    heads.bind(target)
    hidden, tokens = torch.randn(4, target.hidden_size), torch.arange(4)
    context = heads.start(hidden, tokens)
    for level in range(3):
        assert torch.allclose(heads.logits(level, context), target.lm_head(hidden), atol=1e-5)
        context = heads.extend(context, tokens)


def test_frequent_ids_count_and_break_ties_by_id() -> None:
    tokens = torch.tensor([5, 5, 5, 2, 2, 9, 1])
    zeros = torch.zeros(7)
    states = States(torch.zeros(7, 1), tokens, zeros.long(), zeros)
    assert frequent_ids([states], 4, 12).tolist() == [1, 2, 5, 9]
    assert frequent_ids([states], 6, 12).tolist() == [0, 1, 2, 3, 5, 9]


def test_the_learning_rate_rises_and_falls() -> None:
    config = TrainingConfig(steps=100, warmup=10, rate=1.0)
    rates = np.array([config.rate_at(step) for step in range(100)])
    assert rates.argmax() in (9, 10)
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


def test_sources_are_read_and_nonsense_is_refused() -> None:
    assert parse_source("sharegpt:40") == Source("sharegpt", "", 40)
    assert parse_source("gsm8k=/tmp/train.jsonl:7") == Source("gsm8k", "/tmp/train.jsonl", 7)
    assert parse_source("/tmp/own.jsonl") == Source("/tmp/own.jsonl", "", None)
    for text in ("sharegpt:0", "sharegpt:x", ":4", ""):
        with pytest.raises(UsageError):
            parse_source(text)
