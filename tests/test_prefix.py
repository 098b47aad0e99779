"""The prefix layer of Hydra++: transformers' own Llama layer as the reference, and a memory that only true states enter."""

from __future__ import annotations

import pytest
import torch
from conftest import random_heads, tiny_model
from transformers import LlamaConfig, LlamaModel

from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.prefix import PrefixLayer, PrefixShape
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError
from entmtp_calib.policy import Ladder
from entmtp_calib.topology import Topology, chain

H = 32
NAMES = {
    "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj", "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip


def twins(theta: float = 500.0) -> tuple[PrefixLayer, LlamaModel]:
    """A prefix layer and a one-layer Llama with the same random weights."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=7, hidden_size=H, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        initializer_range=0.3, rope_parameters={"rope_type": "default", "rope_theta": theta}, rms_norm_eps=1e-5,
    )  # fmt: skip
    llama = LlamaModel(config).eval().requires_grad_(False)
    layer = PrefixLayer(H, PrefixShape(H, H // 2, 48, H // 4, theta, 1e-5)).requires_grad_(False)
    for ours, theirs in NAMES.items():
        getattr(layer, ours).weight.copy_(llama.layers[0].get_submodule(theirs).weight)
    for ours, theirs in (
        (layer.attention_norm, llama.layers[0].input_layernorm),
        (layer.mlp_norm, llama.layers[0].post_attention_layernorm),
        (layer.final_norm, llama.norm),
    ):
        theirs.weight.copy_(1 + 0.2 * torch.randn(H))
        ours.copy_(theirs.weight)
    return layer, llama


def test_the_layer_is_a_llama_model_of_one_layer() -> None:
    layer, llama = twins()
    hidden = torch.randn(2, 11, H)
    assert torch.allclose(layer(hidden), llama(inputs_embeds=hidden).last_hidden_state, atol=1e-5)


@pytest.mark.parametrize("pieces", [[11], [4, 1, 6], [1] * 11])
def test_the_memory_gives_what_one_pass_gives(pieces: list[int]) -> None:
    layer, _llama = twins()
    hidden, memory, start = torch.randn(1, 11, H), KVCache(1, 11), 0
    found = []
    for rows in pieces:
        found.append(layer(hidden[:, start : start + rows], start, memory))
        start += rows
    assert torch.allclose(torch.cat(found, 1), layer(hidden), atol=1e-5)


def test_rows_that_are_written_again_leave_no_trace() -> None:
    """Rows behind the accepted part of a path are scratch: the next step writes over them."""
    layer, _llama = twins()
    hidden, memory = torch.randn(1, 9, H), KVCache(1, 12)
    layer(hidden[:, :4], 0, memory)
    layer(torch.randn(1, 5, H), 4, memory)
    again = layer(hidden[:, 4:], 4, memory)
    assert torch.allclose(again, layer(hidden)[:, 4:], atol=1e-5)


def test_the_memory_of_a_rollout_holds_true_states_only(target: Target) -> None:
    """After every step, what drafts start from equals one pass over the committed text; trees switch under way."""
    heads = random_heads(target, "hydra++")
    bank = [chain(2), Topology(((0,), (1,), (2,), (0, 0), (1, 0), (0, 0, 0))), chain(4)]
    decoder = Decoder(target, heads, bank, Ladder((0.002, 0.02), (0, 1, 2)), "path_value_2")
    prompt, text, seen = [11, 12, 13], [11, 12, 13], []
    for step in _with_roots(decoder, seen).steps(prompt, StopRule(frozenset(), 60)):
        text += step.tokens
    assert len({int(length) for length, _root in seen}) > 3
    with torch.inference_mode():
        states = heads.read(target.prefill(torch.tensor([text]), target.new_cache(len(text))).hidden[0])
    for length, hidden in seen:
        assert torch.allclose(hidden[0], states[length - 1], atol=1e-4)


def _with_roots(decoder: Decoder, seen: list[tuple[int, torch.Tensor]]) -> Decoder:
    """A decoder that notes every root's state and the length of the text that it stands for."""
    verify = decoder.verify

    def noting(index, draft, length, cache, memory):  # type: ignore[no-untyped-def]
        accepted, root = verify(index, draft, length, cache, memory)
        seen.append((length + 1 + int(accepted.length), root.hidden.clone()))
        return accepted, root

    decoder.verify = noting  # type: ignore[method-assign]
    return decoder


def test_what_the_file_leaves_out_is_the_targets(target: Target) -> None:
    heads = random_heads(target, "hydra++")
    assert heads.shape.prefix == PrefixShape(H, H // 2, 48, 8, 10_000.0, 1e-6)


def test_widths_that_hold_no_whole_heads_are_refused() -> None:
    with pytest.raises(ArtefactError, match="36 query and 18 key columns"):
        PrefixLayer(H, PrefixShape(36, 18, 48)).complete(8, 10_000.0, 1e-6)


def test_a_scaled_rotary_embedding_is_not_taken_for_a_plain_one() -> None:
    rope = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
    scaled = Target(tiny_model(rope_parameters=rope), frozenset(), "scaled", "sha256:scaled")
    with pytest.raises(ArtefactError, match="scales its rotary embedding"):
        PrefixLayer(H, PrefixShape(H, H, 48)).complete(*scaled.layer_shape)
    PrefixLayer(H, PrefixShape(H, H, 48, rope_theta=500.0)).complete(*scaled.layer_shape)


def test_past_the_positions_of_the_heads_decoding_goes_on_without_a_tree(target: Target) -> None:
    from dataclasses import replace

    from conftest import plain

    from entmtp_calib.engine.decoder import NO_ROOM
    from entmtp_calib.policy import Static

    heads = random_heads(target, "hydra++", seed=4)
    assert heads.shape.prefix is not None
    heads.shape = replace(heads.shape, prefix=replace(heads.shape.prefix, max_positions=20))
    stop = StopRule(frozenset(), 40)
    steps = list(Decoder(target, heads, [chain(2)], Static(0)).steps([3, 4], stop))
    assert [token for step in steps for token in step.tokens] == plain(target, [3, 4], stop)
    assert steps[0].index == 0
    assert steps[-2].index == NO_ROOM
