"""Head files: the published layouts against a reference forward written here, our own layout, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import VOCAB, random_heads
from safetensors.torch import save_file
from torch import Tensor

from entmtp_calib.engine.head_files import load_heads, save_heads
from entmtp_calib.engine.heads import DraftHeads, HeadShape
from entmtp_calib.engine.prefix import PrefixShape
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError

H = 32
Tensors = dict[str, Tensor]


def hydra_tensors(heads: int = 3, layers: int = 2, lm_heads: bool = True, tied: bool = True) -> Tensors:
    """A state dict in the layout of the Hydra repository's `mlp` heads."""
    generator = torch.Generator().manual_seed(0)
    made: Tensors = {"input_embed_fn.weight": torch.randn(VOCAB, H, generator=generator)}
    for i in range(heads):
        width = (i + 2) * H
        for name in ("linear", "res_connection"):
            made[f"hydra_mlp.{i}.0.{name}.weight"] = 0.1 * torch.randn(H, width, generator=generator)
            made[f"hydra_mlp.{i}.0.{name}.bias"] = 0.1 * torch.randn(H, generator=generator)
        later = {"weight": 0.1 * torch.randn(H, H, generator=generator), "bias": 0.1 * torch.randn(H, generator=generator)}
        for j in range(1, layers):
            for part, value in later.items():
                made[f"hydra_mlp.{i}.{j}.linear.{part}"] = value if tied else value.clone()
        if lm_heads:
            made[f"hydra_lm_head.{i}.weight"] = torch.randn(VOCAB, H, generator=generator)
            made[f"hydra_lm_head.{i}.bias"] = torch.randn(VOCAB, generator=generator)
    return made


def hydra_reference(t: Tensors, i: int, layers: int, hidden: Tensor, embeds: list[Tensor]) -> Tensor:
    """Head i from scratch: R(x) + SiLU(W x), then identity blocks, then its LM head."""
    x = torch.cat([hidden, *embeds[: i + 1]], -1)
    x = F.linear(x, t[f"hydra_mlp.{i}.0.res_connection.weight"], t[f"hydra_mlp.{i}.0.res_connection.bias"]) + F.silu(
        F.linear(x, t[f"hydra_mlp.{i}.0.linear.weight"], t[f"hydra_mlp.{i}.0.linear.bias"])
    )
    for j in range(1, layers):
        x = x + F.silu(F.linear(x, t[f"hydra_mlp.{i}.{j}.linear.weight"], t[f"hydra_mlp.{i}.{j}.linear.bias"]))
    return F.linear(x, t[f"hydra_lm_head.{i}.weight"], t[f"hydra_lm_head.{i}.bias"])


def write(folder: Path, config: dict[str, object], tensors: Tensors, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".pt"):
        torch.save(tensors, folder / name)
    else:
        save_file({key: value.clone() for key, value in tensors.items()}, folder / name)
    return folder


HYDRA_CONFIG = {"hydra_num_heads": 3, "hydra_num_layers": 2, "hydra_head_arch": "mlp", "grounded_heads": True}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("config", [HYDRA_CONFIG, {"hydra_head_arch": "mlp"}])
def test_published_hydra_heads_give_the_reference_logits(tmp_path: Path, target: Target, config: dict, tied: bool) -> None:
    tensors = hydra_tensors(tied=tied)
    loaded = load_heads(str(write(tmp_path / "h", config, tensors, "hydra_lm_head.pt")))
    assert "Hydra" in loaded.layout
    heads = loaded.heads.bind(target)
    hidden = torch.randn(5, H)
    tokens = torch.randint(0, VOCAB, (3, 5))
    embeds = [F.embedding(row, target.embedding.weight) for row in tokens]
    context = heads.start(hidden, tokens[0])
    for i in range(3):
        assert torch.allclose(heads.logits(i, context), hydra_reference(tensors, i, 2, hidden, embeds), atol=1e-4)
        if i < 2:
            context = heads.extend(context, tokens[i + 1])


def medusa_tensors(heads: int = 4, layers: int = 1, prefix: str = "") -> Tensors:
    generator = torch.Generator().manual_seed(0)
    made: Tensors = {}
    for i in range(heads):
        for j in range(layers):
            made[f"{prefix}{i}.{j}.linear.weight"] = 0.1 * torch.randn(H, H, generator=generator)
            made[f"{prefix}{i}.{j}.linear.bias"] = 0.1 * torch.randn(H, generator=generator)
        made[f"{prefix}{i}.{layers}.weight"] = torch.randn(VOCAB, H, generator=generator)
    return made


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
@pytest.mark.parametrize("layers", [1, 2])
def test_published_medusa_heads_give_the_reference_logits(
    tmp_path: Path, target: Target, prefix: str, name: str, layers: int
) -> None:
    """The configuration says two heads, as a published one does; the keys decide."""
    tensors = medusa_tensors(4, layers, prefix)
    config = {"medusa_num_heads": 2, "medusa_num_layers": layers}
    heads = load_heads(str(write(tmp_path / "m", config, tensors, name))).heads.bind(target)
    assert heads.depth == 4
    hidden = torch.randn(5, H)
    for i in range(4):
        x = hidden
        for j in range(layers):
            x = x + F.silu(F.linear(x, tensors[f"{prefix}{i}.{j}.linear.weight"], tensors[f"{prefix}{i}.{j}.linear.bias"]))
        wanted = F.linear(x, tensors[f"{prefix}{i}.{layers}.weight"])
        assert torch.allclose(heads.logits(i, heads.start(hidden, torch.zeros(5, dtype=torch.long))), wanted, atol=1e-4)


def test_heads_without_an_lm_head_borrow_the_targets(tmp_path: Path, target: Target) -> None:
    folder = write(tmp_path / "h", HYDRA_CONFIG, hydra_tensors(lm_heads=False), "hydra_lm_head.pt")
    heads = load_heads(str(folder)).heads.bind(target)
    assert heads.shape.lm_heads == "target"
    assert heads.vocabulary == VOCAB
    states = torch.randn(2, H)
    assert torch.equal(F.linear(states, heads.lm_weight()), F.linear(states, target.lm_head.weight))


def test_binding_does_not_touch_the_target(tmp_path: Path, target: Target) -> None:
    folder = write(tmp_path / "h", HYDRA_CONFIG, hydra_tensors(lm_heads=False), "hydra_lm_head.pt")
    heads = load_heads(str(folder)).heads.bind(target)
    heads.double()
    assert target.embedding.weight.dtype == torch.float32
    assert not any("embed" in key for key in heads.state_dict())


def test_every_missing_tensor_is_an_error(tmp_path: Path) -> None:
    tensors = hydra_tensors()
    needed = [key for key in tensors if key.startswith("hydra_mlp")]
    for number, key in enumerate(needed):
        fewer = {name: value for name, value in tensors.items() if name != key}
        with pytest.raises(ArtefactError, match="lacks the tensor"):
            load_heads(str(write(tmp_path / str(number), {"hydra_head_arch": "mlp"}, fewer, "hydra_lm_head.pt")))


def test_an_unused_tensor_is_named(tmp_path: Path) -> None:
    tensors = hydra_tensors() | {"surprise.weight": torch.zeros(3)}
    with pytest.raises(ArtefactError, match=r"surprise\.weight"):
        load_heads(str(write(tmp_path / "h", HYDRA_CONFIG, tensors, "hydra_lm_head.pt")))


def test_counts_that_disagree_are_both_named(tmp_path: Path) -> None:
    config = HYDRA_CONFIG | {"hydra_num_heads": 5}
    with pytest.raises(ArtefactError, match=r"hydra_num_heads=5 and the weights hold 3"):
        load_heads(str(write(tmp_path / "h", config, hydra_tensors(), "hydra_lm_head.pt")))


def test_grounding_that_disagrees_with_the_widths_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="grounded_heads=False"):
        load_heads(str(write(tmp_path / "h", HYDRA_CONFIG | {"grounded_heads": False}, hydra_tensors(), "hydra_lm_head.pt")))


class _Foreign:
    pass


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    folder = write(tmp_path / "h", HYDRA_CONFIG, {}, "other.pt")
    torch.save({"config": _Foreign()} | hydra_tensors(), folder / "hydra_lm_head.pt")
    with pytest.raises(ArtefactError, match="pickled"):
        load_heads(str(folder))


@pytest.mark.parametrize("content", [b"", b"not a weight file at all", b"PK\x03\x04broken"])
@pytest.mark.parametrize("name", ["hydra_lm_head.pt", "heads.safetensors"])
def test_damaged_weight_files_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArtefactError):
        load_heads(str(tmp_path))


def test_eagle_drafters_are_refused_by_name(tmp_path: Path) -> None:
    tensors = {"fc.weight": torch.zeros(H, 2 * H), "layers.0.self_attn.q_proj.weight": torch.zeros(H, H)}
    with pytest.raises(ArtefactError, match="EAGLE"):
        load_heads(str(write(tmp_path / "e", {}, tensors, "model.safetensors")))


def test_a_model_folder_given_as_heads_says_so(tiny_folder: Path) -> None:
    with pytest.raises(ArtefactError, match="not heads") as caught:
        load_heads(str(tiny_folder))
    assert "--model" in caught.value.hint


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ArtefactError, match="no heads 'smollm2-hydro'"):
        load_heads("smollm2-hydro")


def test_heads_of_another_width_or_vocabulary_are_refused(target: Target) -> None:
    with pytest.raises(ArtefactError, match="64 wide and tiny is 32 wide"):
        DraftHeads(HeadShape("hydra", 2, 1, 64, VOCAB)).bind(target)
    with pytest.raises(ArtefactError, match="50 tokens and tiny has 97"):
        DraftHeads(HeadShape("hydra", 2, 1, H, 50, "own")).bind(target)


@pytest.mark.parametrize("architecture", ["hydra", "hydra++", "medusa"])
@pytest.mark.parametrize("reduced", [True, False])
def test_our_own_layout_round_trips(tmp_path: Path, target: Target, architecture: str, reduced: bool) -> None:
    vocabulary = 40 if reduced else VOCAB
    prefix = PrefixShape(H, H, 40) if architecture == "hydra++" else None
    made = DraftHeads(HeadShape(architecture, 3, 2, H, vocabulary, "target", False, reduced, prefix)).requires_grad_(False)
    if reduced:
        assert made.draft_ids is not None
        made.draft_ids.copy_(torch.arange(40) * 2)
    made.half().float().bind(target)
    save_heads(made, tmp_path / "heads", "sha256:base", {"note": "made by a test"})
    loaded = load_heads(str(tmp_path / "heads"))
    assert loaded.base == "sha256:base"
    again = loaded.heads.bind(target)
    hidden, roots = torch.randn(4, H), torch.arange(4)
    first, second = (heads.logits(0, heads.start(heads.read(hidden), roots)) for heads in (made, again))
    assert torch.allclose(first, second, atol=1e-3)
    guesses = again.to_target_ids(torch.tensor([0, 5]))
    assert guesses.tolist() == ([0, 10] if reduced else [0, 5])


def test_drafting_equals_the_heads_run_by_hand(target: Target) -> None:
    """Level by level with gathers, against a loop over nodes."""
    from entmtp_calib.engine.drafter import draft_tree
    from entmtp_calib.engine.layout import TreeLayout
    from entmtp_calib.topology import published_default

    for architecture in ("hydra", "hydra++", "medusa"):
        heads = random_heads(target, architecture)
        layout = TreeLayout(published_default(), target.device)
        hidden, root = torch.randn(1, H), torch.tensor([17])
        draft = draft_tree(heads, layout, hidden, root)
        known = {(): 17}
        for node in layout.topology.nodes:
            context = heads.start(hidden, root)
            for d in range(1, len(node)):
                context = heads.extend(context, torch.tensor([known[node[:d]]]))
            ranked = heads.logits(len(node) - 1, context)[0].argsort(descending=True)
            known[node] = int(ranked[node[-1]])
        assert draft.tokens.tolist() == list(known.values())
        assert draft.chain_logp.shape == (4,)
