"""CUDA graphs for real: the ids, accepted lengths and cache rows of plain steps. Skipped without a CUDA device.

What a GPU is not needed for is in `test_graphs.py`.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from conftest import END, plain, random_heads, tiny_model
from test_graphs import BANK, STOP, switching, told
from test_rounds import RACE, prompts

from entmtp_calib.calibrate.rounds import time_arms
from entmtp_calib.engine.acceptance import GREEDY, Exact, Rule
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.graph_decoder import GraphDecoder, GraphRehearsal
from entmtp_calib.engine.graphs import Graphs
from entmtp_calib.engine.rehearsal import cache_error
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Static
from entmtp_calib.storage import Journal
from entmtp_calib.topology import chain

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def gpu_target() -> Target:
    return Target(tiny_model().to("cuda"), frozenset([END]), "tiny", "sha256:tiny")


@pytest.mark.parametrize("architecture", ["hydra", "hydra++", "medusa"])
@pytest.mark.parametrize("rule", [GREEDY, Exact(0.8, top_p=0.9, seed=3)], ids=str)
def test_captured_steps_are_plain_steps_on_a_gpu(gpu_target: Target, architecture: str, rule: Rule) -> None:
    heads = random_heads(gpu_target, architecture)
    policy = switching(gpu_target, heads, rule)
    graphs = Graphs(gpu_target)
    args = (gpu_target, heads, BANK, policy, "path_value_2", rule)
    fast, slow = GraphDecoder(*args, graphs=graphs), Decoder(*args)
    for prompt in ([3, 1, 4], [9, 2], list(range(6, 60))):
        ours, theirs = fast.begin(prompt, STOP), slow.begin(prompt, STOP)
        assert told(list(fast.resume(ours))) == told(list(slow.resume(theirs)))
        size = len(ours.context.ids)
        assert torch.allclose(ours.context.cache.store[..., :size, :], theirs.context.cache.store[..., :size, :], atol=1e-3)
    assert graphs.reason is None, graphs.reason
    assert set(graphs.steps(ours.context.cache, fast)) == set(policy.members)


def test_interleaved_texts_on_a_gpu(gpu_target: Target) -> None:
    heads = random_heads(gpu_target, "hydra++")
    decoder = GraphDecoder(gpu_target, heads, [chain(3), BANK[2]], Static(1), graphs=Graphs(gpu_target))
    texts = [[3, 1, 4], [9, 9, 2, 6]]
    turns = list(itertools.zip_longest(*(decoder.steps(prompt, STOP) for prompt in texts)))
    for prompt, steps in zip(texts, zip(*turns, strict=True), strict=True):
        assert [token for step in steps if step for token in step.tokens] == plain(gpu_target, prompt, STOP)
    assert decoder.graphs.reason is None, decoder.graphs.reason


def test_a_step_waits_for_the_device_once_on_a_gpu(gpu_target: Target) -> None:
    heads = random_heads(gpu_target, "hydra++")
    decoder = Decoder(gpu_target, heads, BANK, Static(2))
    generation = decoder.begin([3, 1, 4], STOP)
    with torch.inference_mode():
        draft = decoder.draft(generation.root)
        decoder.verify(2, draft, 3, generation.context.cache, generation.context.memory)  # sets up what a first call does
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            _accepted, root = decoder.verify(2, draft, 3, generation.context.cache, generation.context.memory)
            decoder.draft(root)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_every_path_of_a_tree_on_a_gpu(gpu_target: Target) -> None:
    graphs = Graphs(gpu_target)
    rehearsal = GraphRehearsal(gpu_target, random_heads(gpu_target, "hydra++"), BANK[3], graphs=graphs)
    text = plain(gpu_target, [3, 1, 4], STOP)
    while rehearsal.turn < len(rehearsal.paths):
        steps, context = rehearsal.run([3, 1, 4], text, STOP)
        assert [token for step in steps for token in step.tokens] == text
        assert cache_error(gpu_target, context) < 1e-4
    assert graphs.reason is None, graphs.reason


def test_a_timing_with_graphs_on_a_gpu(gpu_target: Target, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    graphs = Graphs(gpu_target)
    time_arms(gpu_target, random_heads(gpu_target, "hydra"), RACE, prompts(2), STOP, 0, journal, [], graphs=graphs)
    assert {row["environment"]["graphs"] for row in journal.rows() if "environment" in row} == {"on"}, graphs.reason
    assert len(graphs.free) == 1
