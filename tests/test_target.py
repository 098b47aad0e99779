"""The target adapter, its cache and the self-tests at load."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from conftest import END, VOCAB, plain, random_heads, tiny_model
from torch import Tensor

from entmtp_calib.engine.attention import NAME, adopt, register
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.loading import choose_placement, end_token_ids
from entmtp_calib.engine.selftest import check_heads, check_tree_attention
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Output, Target, _position_limit
from entmtp_calib.engine.writer import write
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.policy import Static
from entmtp_calib.topology import published_default


def test_cache_after_a_non_contiguous_commit_equals_a_straight_forward(target: Target) -> None:
    layout = TreeLayout(published_default(), target.device)
    prefix, tree = [4, 9, 2], torch.arange(20, 20 + layout.rows)
    row = layout.topology.nodes.index((2, 0, 0)) + 1
    path = layout.paths[row][: int(layout.depths[row]) + 1]
    assert path.tolist() != list(range(len(path)))
    with torch.inference_mode():
        cache = target.new_cache(128)
        target.prefill(torch.tensor([prefix]), cache)
        cache.place(torch.arange(3, 3 + layout.rows), 3 + layout.rows)
        mask = torch.cat((layout.mask.new_ones(layout.rows, 3), layout.mask), 1)
        target.forward(tree[None], mask[None, None], (layout.depths + 3)[None], cache)
        cache.commit(3, path)
        straight = target.new_cache(128)
        target.prefill(torch.tensor([[*prefix, *tree[path].tolist()]]), straight)
    assert cache.store is not None
    assert straight.store is not None
    end = 3 + len(path)
    assert torch.allclose(cache.store[..., :end, :], straight.store[..., :end, :], atol=1e-5)


def test_prefill_in_pieces_equals_prefill_at_once(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.randint(0, VOCAB, (1, 90), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        whole = target.prefill(ids, target.new_cache(90))
        monkeypatch.setattr("entmtp_calib.engine.target.PREFILL_CHUNK", 16)
        pieces = target.prefill(ids, target.new_cache(90))
    assert torch.allclose(whole.logits, pieces.logits, atol=1e-5)
    assert torch.allclose(whole.hidden, pieces.hidden, atol=1e-5)


def test_the_cache_refuses_more_rows_than_it_has(target: Target) -> None:
    with pytest.raises(IndexError, match="5 slots and 6"):
        target.new_cache(4).place(torch.arange(6), 6)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_batched_writing_equals_plain_decoding_for_any_batch_size(target: Target, batch: int) -> None:
    rng = random.Random(2)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 30))] for _ in range(11)]
    stop = StopRule(target.end_ids, 25)
    texts = dict(write(target, prompts, stop, batch))
    assert [texts[index] for index in range(11)] == [plain(target, prompt, stop) for prompt in prompts]


@pytest.mark.parametrize("attention", ["sdpa", "eager", "entmtp_grouped"])
def test_the_attention_self_test_passes_for_a_sound_model(attention: str) -> None:
    register()
    model = tiny_model(attn_implementation=attention)
    assert check_tree_attention(Target(model, frozenset(), attention, ""), range(11)) < 1e-4


class _Spoiled(Target):
    """A target with a planted fault."""

    fault = ""

    def forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache=None, keep=0) -> Output:
        rows = ids.shape[1]
        if self.fault == "mask" and rows > 1:
            mask = torch.ones_like(mask).tril(mask.shape[-1] - rows)
        if self.fault == "position" and rows > 1:
            positions = positions.min() + torch.arange(rows)[None]
        return super().forward(ids, mask, positions, cache, keep)


@pytest.mark.parametrize("fault", ["mask", "position"])
def test_the_attention_self_test_catches_a_planted_fault(fault: str) -> None:
    spoiled = _Spoiled(tiny_model(), frozenset(), "spoiled", "")
    spoiled.fault = fault
    with pytest.raises(ArtefactError, match="does not honour tree masks"):
        check_tree_attention(spoiled, range(11))


def test_the_attention_self_test_catches_a_cache_that_keeps_the_wrong_row(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from entmtp_calib.engine.kv_cache import KVCache

    sound = KVCache.commit
    monkeypatch.setattr(KVCache, "commit", lambda self, base, rows: sound(self, base, torch.arange(len(rows))))
    with pytest.raises(ArtefactError):
        check_tree_attention(target, range(11))


def test_random_heads_are_recognised_as_no_better_than_chance(target: Target) -> None:
    with pytest.raises(ArtefactError, match="chance gives"):
        check_heads(target, random_heads(target, "hydra"), [[a, a + 1, a + 2] for a in range(12)])


def test_heads_with_one_answer_are_recognised(target: Target) -> None:
    heads = random_heads(target, "medusa")
    with torch.no_grad():
        heads.lm_heads[0].weight.zero_()
        heads.lm_heads[0].weight[3] = 0.0
    with pytest.raises(ArtefactError, match="same token"):
        check_heads(target, heads, [[a, a + 1, a + 2] for a in range(12)])


def test_models_that_cannot_be_rolled_back_are_refused_by_name() -> None:
    model = tiny_model()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ArtefactError, match="linear_attention"):
        Target(model, frozenset(), "hybrid", "")


def test_flash_attention_is_refused() -> None:
    model = tiny_model()
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ArtefactError, match="tree mask"):
        Target(model, frozenset(), "flash", "")


def test_a_sliding_window_bounds_the_context() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, sliding_window=40, initializer_range=0.5, head_dim=8))  # fmt: skip
    target = Target(model, frozenset([END]), "sliding", "")
    assert target.max_positions == 40
    assert check_tree_attention(target, range(11)) < 1e-4
    stop = StopRule(frozenset(), 100)
    text = [
        t
        for s in Decoder(target, random_heads(target, "hydra"), [published_default()], Static(0)).steps([1, 2], stop)
        for t in s.tokens
    ]
    assert len(text) == 38
    assert text == plain(target, [1, 2], stop)


def test_chunks_of_attention_bound_the_context_where_a_layer_has_them() -> None:
    from transformers import Llama4TextConfig

    config = Llama4TextConfig(num_hidden_layers=4, max_position_embeddings=128, attention_chunk_size=32)
    assert any("chunk" in kind for kind in config.layer_types)
    assert _position_limit(config) == 32
    config.layer_types = ["full_attention"] * 4
    assert _position_limit(config) == 128


def test_a_model_without_masks_and_positions_of_its_own_is_refused_by_name() -> None:
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(ArtefactError, match="bloom cannot run a tree"):
        check_tree_attention(Target(model, frozenset(), "bloom", ""), range(11))


@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "gemma"])
def test_other_families_pass_the_self_test_and_decode_exactly(kind: str) -> None:
    """Learned positions, biases, scaled embeddings: nothing of Llama is assumed."""
    import transformers as hf

    torch.manual_seed(0)
    common = {"vocab_size": VOCAB, "initializer_range": 0.4}
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128}  # fmt: skip
    model = {
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, **common)),
        "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**common, **small)),
        "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**common, **small)),
    }[kind]()
    target = Target(model, frozenset(), kind, "")
    assert check_tree_attention(target, range(11)) < 1e-4
    heads: DraftHeads = random_heads(target, "hydra")
    stop = StopRule(frozenset(), 30)
    text = [t for s in Decoder(target, heads, [published_default()], Static(0)).steps([1, 2], stop) for t in s.tokens]
    assert text == plain(target, [1, 2], stop)


def test_end_ids_are_the_union_of_all_sources() -> None:
    sources = [SimpleNamespace(eos_token_id=1), SimpleNamespace(eos_token_id=[1, 2]), SimpleNamespace(eos_token_id=None), None,
               SimpleNamespace(eos_token_id=3)]  # fmt: skip
    assert end_token_ids(*sources) == {1, 2, 3}


def test_unknown_devices_and_dtypes_are_refused() -> None:
    with pytest.raises(UsageError, match="float8"):
        choose_placement("cpu", "float8")
    with pytest.raises(UsageError, match="nowhere"):
        choose_placement("nowhere", "auto")
    assert "asked for" in choose_placement("cpu", "float32").reason


def test_grouped_attention_is_adopted_where_it_computes_the_same() -> None:
    model = tiny_model()
    assert adopt(model)
    assert model.config._attn_implementation == NAME


def test_models_with_more_in_their_attention_keep_their_own() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.6, attn_logit_softcapping=0.5))  # fmt: skip
    before = model.config._attn_implementation
    assert not adopt(model)
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_in_bfloat16_on_the_cpu_a_row_does_not_depend_on_its_company(seed: int) -> None:
    """The text of trees and of plain decoding is the same in 16 bits too, near ties or not."""
    model = tiny_model(seed=seed).to(torch.bfloat16)
    assert adopt(model)
    target = Target(model, frozenset([END]), "tiny", "")
    heads = random_heads(target, "hydra", seed=seed)
    stop = StopRule(target.end_ids, 60)
    for prompt in ([3], [1, 2, 3], list(range(20))):
        text = [t for s in Decoder(target, heads, [published_default()], Static(0)).steps(prompt, stop) for t in s.tokens]
        assert text == plain(target, prompt, stop)
