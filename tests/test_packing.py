"""Packed layers compute what plain ones do, and a packed model decodes as exactly as a plain one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import plain, random_heads, random_tree, tiny_model
from torch import nn

from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.loading import choose_placement, load_target
from entmtp_calib.engine.packing import PackedLinear, can_pack, pack, pack_linears, packed_linear
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Static

CPU = torch.device("cpu")
needs = pytest.mark.skipif(not can_pack(CPU, torch.float32), reason="this build of torch packs no weights")


@needs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 9, 65])
def test_a_packed_layer_computes_what_the_plain_one_does(dtype: torch.dtype, rows: int) -> None:
    if not can_pack(CPU, dtype):
        pytest.skip("this CPU packs no such weights")
    torch.manual_seed(0)
    for bias in (True, False):
        layer = nn.Linear(48, 97, bias=bias).to(dtype).requires_grad_(False)
        x = torch.randn(2, rows, 48).to(dtype)
        wanted, found = layer(x), PackedLinear(layer, keep=True)(x)
        assert found.shape == wanted.shape
        assert torch.allclose(found.float(), wanted.float(), atol=1e-5 if dtype == torch.float32 else 2e-2)


@needs
def test_a_row_does_not_depend_on_how_many_run_beside_it_in_bfloat16() -> None:
    if not can_pack(CPU, torch.bfloat16):
        pytest.skip("this CPU packs no such weights")
    torch.manual_seed(1)
    weight = torch.randn(192, 64).bfloat16()
    x, packed = torch.randn(33, 64).bfloat16(), pack(weight)
    whole = packed_linear(x, packed, None)
    for rows in (1, 2, 3, 8, 17):
        assert torch.equal(packed_linear(x[:rows], packed, None), whole[:rows])


@needs
def test_what_others_read_stays_and_the_rest_is_let_go() -> None:
    model = tiny_model().requires_grad_(False)
    count = pack_linears(model, {id(model.lm_head.weight)})
    assert count == 2 * 7 + 1
    assert model.lm_head.weight.shape == (97, 32)
    assert model.model.layers[0].mlp.up_proj.weight.numel() == 0


@needs
def test_a_packed_model_and_packed_heads_decode_exactly() -> None:
    rng = random.Random(0)
    packed = Target(tiny_model(), frozenset(), "packed", "sha256:packed")
    pack_linears(packed.model, {id(packed.lm_head.weight)})
    for architecture in ("hydra", "hydra++", "medusa"):
        heads = random_heads(packed, architecture).pack()
        for _ in range(3):
            prompt, stop = [rng.randrange(6, 97) for _ in range(3)], StopRule(frozenset(), 40)
            steps = Decoder(packed, heads, [random_tree(rng, 20)], Static(0)).steps(prompt, stop)
            assert [token for step in steps for token in step.tokens] == plain(packed, prompt, stop)


@needs
def test_packed_heads_guess_what_plain_ones_do() -> None:
    target = Target(tiny_model(), frozenset(), "tiny", "sha256:tiny")
    for architecture in ("hydra", "hydra++", "medusa"):
        one, other = random_heads(target, architecture), random_heads(target, architecture).pack()
        hidden, roots = torch.randn(5, 32), torch.arange(5)
        found = [heads.logits(0, heads.start(heads.read(hidden), roots)) for heads in (one, other)]
        assert torch.allclose(*found, atol=1e-4)
        assert one.state_dict().keys() == other.state_dict().keys()


def test_packing_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> None:
    monkeypatch.setenv("ENTMTP_PACK", "0")
    target, _tokenizer = load_target(str(tiny_folder), choose_placement("cpu", "float32"))
    assert not any(isinstance(module, PackedLinear) for module in target.model.modules())


def test_a_build_without_the_operators_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise AttributeError("no such operator")

    monkeypatch.setattr("entmtp_calib.engine.packing.pack", missing)
    assert not can_pack(CPU, torch.float32)


def test_operators_that_disagree_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entmtp_calib.engine.packing.packed_linear", lambda x, packed, bias: F.linear(x, torch.ones(48, 32)))
    monkeypatch.setattr("entmtp_calib.engine.packing.pack", lambda weight: weight)
    assert not can_pack(CPU, torch.float32)
