"""The published layouts of Hydra, Hydra++ and Medusa, against reference forwards written here, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import VOCAB
from head_worlds import (
    HYDRA_CONFIG,
    PREFIX_CONFIG,
    H,
    Tensors,
    hydra_tensors,
    medusa_tensors,
    prefix_tensors,
    stored_once,
    write,
)
from torch import Tensor

from entmtp_calib.engine.head_files import LoadedHeads, load_heads
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError

FILE = "hydra_lm_head.pt"


def load(tmp_path: Path, config: Mapping[str, object], tensors: Tensors, name: str = FILE) -> LoadedHeads:
    return load_heads(str(write(tmp_path / "heads", config, tensors, name)))


def part(t: Tensors, name: str, x: Tensor) -> Tensor:
    """A linear layer of the file, with or without bias."""
    return F.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))


def hydra_reference(t: Tensors, i: int, layers: int, hidden: Tensor, embeds: list[Tensor], shifted: bool = False) -> Tensor:
    """What head i hands to its LM head, from scratch: R(x) + SiLU(W x), then blocks whose R is the identity."""
    names = [f"hydra_mlp.{i}.{2 * j + 1 if shifted else j}" for j in range(layers)]
    x = hidden
    if f"{names[0]}.res_connection.weight" in t:
        wide = torch.cat([hidden, *embeds[: i + 1]], -1)
        x = part(t, f"{names[0]}.res_connection", wide) + F.silu(part(t, f"{names[0]}.linear", wide))
        names = names[1:]
    for name in names:
        x = x + F.silu(part(t, f"{name}.linear", x))
    return x


def prefix_reference(t: Tensors, hidden: Tensor, head_dim: int, theta: float, eps: float) -> Tensor:
    """A Llama layer and its final norm over one text, row by row and head by head."""
    lead = "prefix_embeding_layer.layers.0."

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * t[f"{name}.weight"]

    def turn(row: Tensor, place: int) -> Tensor:
        turned = row.clone()
        for k in range(head_dim // 2):
            angle = torch.tensor(place * theta ** (-2 * k / head_dim))
            a, b = row[k], row[k + head_dim // 2]
            turned[k], turned[k + head_dim // 2] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
        return turned

    x = norm(hidden, f"{lead}input_layernorm")
    q, k, v = (part(t, f"{lead}self_attn.{c}_proj", x).unflatten(-1, (-1, head_dim)) for c in "qkv")
    mixed = torch.zeros_like(q)
    for head in range(q.shape[1]):
        shared = head * k.shape[1] // q.shape[1]
        for row in range(len(x)):
            scores = torch.stack([turn(q[row, head], row) @ turn(k[c, shared], c) for c in range(row + 1)]) / head_dim**0.5
            mixed[row, head] = scores.softmax(0) @ v[: row + 1, shared]
    hidden = hidden + part(t, f"{lead}self_attn.o_proj", mixed.flatten(1))
    x = norm(hidden, f"{lead}post_attention_layernorm")
    gated = F.silu(part(t, f"{lead}mlp.gate_proj", x)) * part(t, f"{lead}mlp.up_proj", x)
    return norm(hidden + part(t, f"{lead}mlp.down_proj", gated), "prefix_embeding_layer.norm")


def contexts(heads: DraftHeads, target: Target, hidden: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Contexts of all heads over random tokens, and the embeddings of these."""
    tokens = torch.randint(0, VOCAB, (heads.depth, len(hidden)), generator=torch.Generator().manual_seed(2))
    made = [heads.start(heads.read(hidden), tokens[0])]
    for row in tokens[1:]:
        made.append(heads.extend(made[-1], row))
    return made, [F.embedding(row, target.embedding.weight) for row in tokens]


def compare_hydra(
    heads: DraftHeads, target: Target, t: Tensors, layers: int, shifted: bool = False, read: Tensor | None = None
) -> None:
    """All heads against the reference; `read` is the reference of what stands between the states and the heads."""
    hidden = torch.randn(6, H, generator=torch.Generator().manual_seed(3))
    found, embeds = contexts(heads, target, hidden)
    base = hidden if read is None else read
    for i in range(heads.depth):
        states = hydra_reference(t, i, layers, base, embeds, shifted)
        name = f"hydra_lm_head.{i}.1" if shifted else f"hydra_lm_head.{i}"
        own = f"{name}.weight" in t
        wanted = part(t, name, states) if own else F.linear(states, target.lm_head.weight)
        assert torch.allclose(heads.logits(i, found[i]), wanted, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("config", [HYDRA_CONFIG, {"hydra_head_arch": "mlp"}, {}])
@pytest.mark.parametrize("more", [{}, {"lm_bias": False}, {"lm_heads": 0}, {"bias": False}, {"grounded": False}])
def test_hydra_heads_give_the_reference_logits(tmp_path: Path, target: Target, config: dict, tied: bool, more: dict) -> None:
    tensors = hydra_tensors(tied=tied, **more)
    if "grounded" in more and config:
        config = config | {"grounded_heads": False}
    loaded = load(tmp_path, config, tensors)
    assert loaded.layout == f"Hydra mlp ({FILE})"
    compare_hydra(loaded.heads.bind(target), target, tensors, 2)
    assert loaded.heads.shape.lm_heads == ("target" if more.get("lm_heads") == 0 else "own")
    assert any("no bias" in note for note in loaded.notes) == ("bias" in more)


@pytest.mark.parametrize("grounded", [True, False])
def test_blocks_that_are_one_object_are_repeated_where_the_file_stores_one(
    tmp_path: Path, target: Target, grounded: bool
) -> None:
    tensors = hydra_tensors(layers=4, grounded=grounded)
    fewer = stored_once(tensors)
    assert len(fewer) < len(tensors)
    config = HYDRA_CONFIG | {"hydra_num_layers": 4, "grounded_heads": grounded}
    loaded = load(tmp_path, config, fewer)
    compare_hydra(loaded.heads.bind(target), target, tensors, 4)
    assert f"blocks {2 if grounded else 1} to 4 of every head are one, stored once" in loaded.notes
    del config["hydra_num_layers"]
    assert load(tmp_path / "b", config, fewer).heads.shape.layers == (2 if grounded else 1)


def test_blocks_that_are_several_objects_are_all_needed(tmp_path: Path) -> None:
    tensors = hydra_tensors(layers=4, tied=False)
    fewer = {key: value for key, value in tensors.items() if not key.startswith("hydra_mlp.1.2.")}
    with pytest.raises(ArtefactError, match=r"lacks the tensor hydra_mlp\.1\.2\.linear\.weight"):
        load(tmp_path, {}, fewer)


@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("buffer", [True, False])
def test_hydra_plus_plus_heads_give_the_reference_logits(
    tmp_path: Path, target: Target, shifted: bool, once: bool, buffer: bool
) -> None:
    """The file's rotary frequencies say head size and base, which differ from the target's; without them the target's hold."""
    columns, theta = (4, 500.0) if buffer else (8, 10_000.0)
    tensors = hydra_tensors(layers=4, shifted=shifted) | prefix_tensors(head_dim=columns, theta=theta)
    if not buffer:
        tensors = {key: value for key, value in tensors.items() if "inv_freq" not in key}
    config = PREFIX_CONFIG | {"hydra_num_layers": 4}
    loaded = load(tmp_path, config, stored_once(tensors) if once else tensors)
    assert loaded.layout.startswith("Hydra prefix-mlp")
    heads = loaded.heads.bind(target)
    assert heads.shape.architecture == "hydra++"
    hidden = torch.randn(6, H, generator=torch.Generator().manual_seed(3))
    read = prefix_reference(tensors, hidden, columns, theta, 1e-6)
    assert torch.allclose(heads.read(hidden), read, atol=1e-4)
    compare_hydra(heads, target, tensors, 4, shifted, read)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0, 1e6])
def test_the_rotary_base_is_read_from_the_frequencies_of_any_dtype(tmp_path: Path, dtype: torch.dtype, theta: float) -> None:
    tensors = hydra_tensors(shifted=True) | prefix_tensors(query=128, kv=64, head_dim=64, theta=theta)
    loaded = load(tmp_path, PREFIX_CONFIG, {key: value.to(dtype) for key, value in tensors.items()})
    assert loaded.heads.shape.prefix is not None
    assert (loaded.heads.shape.prefix.head_dim, loaded.heads.shape.prefix.rope_theta) == (64, theta)


def test_sizes_of_the_prefix_layer_are_read_from_the_configuration(tmp_path: Path) -> None:
    tensors = {key: value for key, value in (hydra_tensors() | prefix_tensors()).items() if "inv_freq" not in key}
    config = PREFIX_CONFIG | {"num_attention_heads": 8, "rope_theta": 500.0, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    shape = load(tmp_path, config, tensors).heads.shape.prefix
    assert shape is not None
    assert (shape.query_width, shape.kv_width, shape.inner) == (H, H // 2, 48)
    assert (shape.head_dim, shape.rope_theta, shape.eps, shape.max_positions) == (4, 500.0, 1e-5, 64)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_state_offset": 1}, "hidden_state_offset=1"),
        ({"hydra_head_arch": "mlp"}, "hydra_head_arch=mlp and the file holds prefix-mlp"),
        ({"num_attention_heads": 8}, "heads of 4 columns and the file holds 8"),
        ({"num_attention_heads": 5}, "32 query columns, no whole 5 heads"),
        ({"rope_theta": 500.0}, "rope_theta=500 and the file holds 10000"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "scales its rotary embedding"),
        ({"rope_theta": "many"}, "rope_theta='many'"),
        ({"hydra_num_layers": 3}, "hydra_num_layers=3 and the weights hold 4"),
        ({"hydra_num_layers": 9}, "hydra_num_layers=9 and the weights hold 4"),
    ],
)
def test_configurations_that_contradict_a_hydra_plus_plus_file_are_refused(tmp_path: Path, config: dict, words: str) -> None:
    tensors = hydra_tensors(layers=4, shifted=True) | prefix_tensors()
    with pytest.raises(ArtefactError) as caught:
        load(tmp_path, PREFIX_CONFIG | {"hydra_num_layers": 4} | config, tensors)
    assert words in caught.value.message


def test_scaled_rotary_frequencies_are_refused(tmp_path: Path) -> None:
    tensors = hydra_tensors(shifted=True) | prefix_tensors()
    key = "prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq"
    with pytest.raises(ArtefactError, match="scales"):
        load(tmp_path, PREFIX_CONFIG, tensors | {key: tensors[key] / 4})


def test_heads_behind_a_prefix_layer_that_see_no_tokens_are_refused(tmp_path: Path) -> None:
    tensors = hydra_tensors(grounded=False) | prefix_tensors()
    with pytest.raises(ArtefactError, match="see no tokens"):
        load(tmp_path, PREFIX_CONFIG | {"grounded_heads": False}, tensors)


@pytest.mark.parametrize("lead", ["", "medusa_head."])
@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
@pytest.mark.parametrize(("layers", "once"), [(1, False), (2, False), (3, True)])
def test_medusa_heads_give_the_reference_logits(
    tmp_path: Path, target: Target, lead: str, name: str, layers: int, once: bool
) -> None:
    """The configuration says two heads, as a published one does; the keys decide, and it is said."""
    tensors = medusa_tensors(5, layers, lead, tied=once)
    config = {"medusa_num_heads": 2, "medusa_num_layers": layers}
    loaded = load(tmp_path, config, stored_once(tensors) if once else tensors, name)
    heads = loaded.heads.bind(target)
    assert heads.depth == 5
    assert "the configuration says medusa_num_heads=2 and the file holds 5; the file decides" in loaded.notes
    hidden = torch.randn(5, H)
    for i in range(5):
        x = hidden
        for j in range(layers):
            x = x + F.silu(part(tensors, f"{lead}{i}.{j}.linear", x))
        wanted = part(tensors, f"{lead}{i}.{layers}", x)
        assert torch.allclose(heads.logits(i, heads.start(hidden, torch.zeros(5, dtype=torch.long))), wanted, atol=1e-4)


def test_medusa_heads_without_an_lm_head_borrow_the_targets(tmp_path: Path, target: Target) -> None:
    tensors = medusa_tensors(3, lm_heads=0)
    heads = load(tmp_path, {"medusa_num_heads": 3}, tensors, "medusa_lm_head.safetensors").heads.bind(target)
    hidden = torch.randn(4, H)
    wanted = F.linear(hidden + F.silu(part(tensors, "1.0.linear", hidden)), target.lm_head.weight)
    assert torch.allclose(heads.logits(1, heads.start(hidden, torch.zeros(4, dtype=torch.long))), wanted, atol=1e-4)


@pytest.mark.parametrize(("layers", "lm_heads"), [(1, VOCAB), (2, VOCAB), (1, 0)])
def test_medusa_layers_that_disagree_are_both_named(tmp_path: Path, layers: int, lm_heads: int) -> None:
    with pytest.raises(ArtefactError, match=rf"medusa_num_layers=3 and the weights hold {layers}"):
        load(tmp_path, {"medusa_num_layers": 3}, medusa_tensors(layers=layers, lm_heads=lm_heads), "medusa_lm_head.pt")


def test_every_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = hydra_tensors()
    needed = [key for key in tensors if key.startswith("hydra_mlp")]
    for number, key in enumerate(needed):
        fewer = {name: value for name, value in tensors.items() if name != key}
        with pytest.raises(ArtefactError) as caught:
            load(tmp_path / str(number), {"hydra_head_arch": "mlp"}, fewer)
        assert f"lacks the tensor {key}." in caught.value.message


@pytest.mark.parametrize("key", ["hydra_lm_head.1.1.weight", "hydra_lm_head.1.1.bias", "prefix_embeding_layer.norm.weight"])
def test_a_missing_part_of_hydra_plus_plus_is_named(tmp_path: Path, key: str) -> None:
    tensors = hydra_tensors(shifted=True) | prefix_tensors()
    del tensors[key]
    with pytest.raises(ArtefactError, match=rf"lacks the tensor {key}"):
        load(tmp_path, PREFIX_CONFIG, tensors)


def test_a_head_that_is_missing_whole_is_named(tmp_path: Path) -> None:
    tensors = {key: value for key, value in hydra_tensors().items() if not key.startswith("hydra_mlp.1.")}
    with pytest.raises(ArtefactError, match="no block of head 1"):
        load(tmp_path, {}, tensors)


@pytest.mark.parametrize("key", ["surprise.weight", "hydra_mlp.0.1.norm.weight", "hydra_lm_head.7.weight", "t2d"])
def test_an_unused_tensor_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ArtefactError, match=rf"no part of the heads uses: {key}"):
        load(tmp_path, HYDRA_CONFIG, hydra_tensors() | {key: torch.zeros(3)})


def test_counts_that_disagree_are_both_named(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"hydra_num_heads=5 and the weights hold 3"):
        load(tmp_path, HYDRA_CONFIG | {"hydra_num_heads": 5}, hydra_tensors())
    with pytest.raises(ArtefactError, match=r"hydra_num_layers=1 and the weights hold 2"):
        load(tmp_path, HYDRA_CONFIG | {"hydra_num_layers": 1}, hydra_tensors())


def test_grounding_that_disagrees_with_the_widths_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="grounded_heads=False"):
        load(tmp_path, HYDRA_CONFIG | {"grounded_heads": False}, hydra_tensors())


@pytest.mark.parametrize(
    ("keys", "config", "words"),
    [
        (("cross_attn.q_proj.weight", "lm_head.weight"), {"hydra_head_arch": "cross-attn"}, "Hydra cross-attn heads"),
        (("attn.self_attn.q_proj.weight", "fc.weight"), {"hydra_head_arch": "eagle-attn"}, "Hydra eagle-attn heads"),
        (("something.weight",), {"hydra_head_arch": "tower"}, "Hydra tower heads"),
        (("fc.weight", "layers.0.self_attn.q_proj.weight"), {"model_type": "llama"}, "an EAGLE drafter"),
        (("layers.0.self_attn.q_proj.weight",), {}, "an EAGLE drafter"),
        (("midlayer.self_attn.q_proj.weight", "fc.weight", "d2t"), {"model_type": "llama"}, "an EAGLE-3 drafter"),
        (("model.embed_tokens.weight", "mtp.layers.0.weight"), {"model_type": "qwen3"}, "a qwen3 model, not heads"),
        (("mtp.layers.0.weight",), {}, "no known head layout"),
    ],
)
def test_drafters_of_other_kinds_are_refused_by_name(tmp_path: Path, keys: tuple[str, ...], config: dict, words: str) -> None:
    with pytest.raises(ArtefactError, match=words):
        load(tmp_path, config, {key: torch.zeros(H, 2 * H) for key in keys}, "model.safetensors")


@pytest.mark.parametrize("arch", ["cross-attn", "eagle-attn", "tower"])
def test_hydra_variants_are_refused_by_their_configuration_too(tmp_path: Path, arch: str) -> None:
    with pytest.raises(ArtefactError, match=f"Hydra {arch}"):
        load(tmp_path, HYDRA_CONFIG | {"hydra_head_arch": arch}, hydra_tensors())


def test_quantised_and_broken_weights_are_refused(tmp_path: Path) -> None:
    key = "hydra_mlp.0.0.linear.weight"
    tensors = hydra_tensors()
    with pytest.raises(ArtefactError, match=f"{key} is int8"):
        load(tmp_path / "a", HYDRA_CONFIG, tensors | {key: tensors[key].to(torch.int8)})
    with pytest.raises(ArtefactError, match=f"{key} holds values that are not finite"):
        load(tmp_path / "b", HYDRA_CONFIG, tensors | {key: tensors[key] * float("nan")})


def test_an_lm_head_in_the_file_wins_over_the_targets(tmp_path: Path, target: Target) -> None:
    tensors = hydra_tensors()
    heads = load(tmp_path, HYDRA_CONFIG, tensors).heads.bind(target)
    assert tensors["hydra_lm_head.0.weight"].shape == target.lm_head.weight.shape
    states = torch.randn(2, H)
    assert torch.equal(heads.lm_heads[0](states), part(tensors, "hydra_lm_head.0", states))


def ids_of(size: int = 40) -> Tensor:
    """Some token ids, ascending, with a gap behind the first few."""
    return torch.cat((torch.arange(5), torch.arange(5, size) + 2 * (torch.arange(5, size) % 7 == 0).cumsum(0) + 10))


@pytest.mark.parametrize("form", ["offset", "absolute"])
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("lm_heads", [40, 0])
def test_both_forms_of_a_published_vocabulary_map_are_read(
    tmp_path: Path, target: Target, form: str, marked: bool, lm_heads: int
) -> None:
    ids = ids_of()
    if form == "absolute":
        ids = ids.flip(0)  # descending ids are no offsets
    tensors = hydra_tensors(lm_heads=lm_heads)
    tensors["d2t"] = ids - torch.arange(40) if form == "offset" else ids
    if marked:
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)
    loaded = load(tmp_path, HYDRA_CONFIG, tensors)
    heads = loaded.heads.bind(target)
    assert heads.vocabulary == 40
    assert heads.to_target_ids(torch.arange(40)).tolist() == ids.tolist()
    hidden = torch.randn(3, H)
    found, embeds = contexts(heads, target, hidden)
    states = hydra_reference(tensors, 1, 2, hidden, embeds)
    wanted = part(tensors, "hydra_lm_head.1", states) if lm_heads else F.linear(states, target.lm_head.weight[ids])
    assert torch.allclose(heads.logits(1, found[1]), wanted, atol=1e-4)
    assert not any("can be read" in note for note in loaded.notes)


def test_a_map_with_two_readings_is_read_as_offsets_unless_something_else_is_said(tmp_path: Path) -> None:
    ids = ids_of()
    plain = hydra_tensors(lm_heads=40) | {"d2t": ids}
    loaded = load(tmp_path / "a", HYDRA_CONFIG, plain)
    assert loaded.heads.draft_ids is not None
    assert loaded.heads.draft_ids.tolist() == (ids + torch.arange(40)).tolist()
    assert any("it is read as offsets" in note for note in loaded.notes)
    said = load(tmp_path / "b", HYDRA_CONFIG | {"d2t_form": "absolute"}, plain)
    marked = load(tmp_path / "c", HYDRA_CONFIG, plain | {"t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)})
    for loaded in (said, marked):
        assert loaded.heads.draft_ids is not None
        assert loaded.heads.draft_ids.tolist() == ids.tolist()
        assert loaded.notes == ()


@pytest.mark.parametrize(
    ("change", "config", "words"),
    [
        ({"d2t": torch.zeros(40)}, {}, "no list of integers"),
        ({"d2t": -torch.arange(40) - 1}, {}, "neither as offsets nor as token ids"),
        ({"d2t": torch.zeros(30, dtype=torch.long)}, {}, "40 rows and the vocabulary map d2t has 30"),
        ({"t2d": torch.ones(VOCAB, dtype=torch.bool)}, {}, "t2d marks 97 tokens, which are not the 40"),
        ({}, {"d2t_form": "absolute"}, "d2t_form=absolute and the map is not of that form"),
        ({}, {"d2t_form": "both"}, "d2t_form='both'"),
    ],
)
def test_maps_that_contradict_themselves_are_refused(tmp_path: Path, change: Tensors, config: dict, words: str) -> None:
    tensors = hydra_tensors(lm_heads=40) | {"d2t": ids_of() - torch.arange(40)} | change
    with pytest.raises(ArtefactError, match=words):
        load(tmp_path, HYDRA_CONFIG | config, tensors)


def test_ids_beyond_the_targets_vocabulary_are_refused_at_the_meeting(tmp_path: Path, target: Target) -> None:
    tensors = hydra_tensors(lm_heads=40) | {"d2t": torch.arange(40) * 3}
    with pytest.raises(ArtefactError, match=rf"among {39 * 4 + 1} tokens and tiny has {VOCAB}"):
        load(tmp_path, HYDRA_CONFIG, tensors).heads.bind(target)


@pytest.mark.parametrize("rows", [VOCAB - 1, VOCAB + 3])
def test_an_lm_head_of_another_vocabulary_without_a_map_is_refused_not_cut(tmp_path: Path, target: Target, rows: int) -> None:
    with pytest.raises(ArtefactError, match=f"{rows} tokens and tiny has {VOCAB}") as caught:
        load(tmp_path, HYDRA_CONFIG, hydra_tensors(lm_heads=rows)).heads.bind(target)
    assert "lack the map of a reduced one" in caught.value.hint


def test_another_map_is_another_set_of_heads(tmp_path: Path) -> None:
    """What is kept of a run is keyed by this identity, so a run with another map starts anew."""
    tensors = hydra_tensors(lm_heads=40)
    first, second = (
        load(tmp_path / str(step), HYDRA_CONFIG, tensors | {"d2t": torch.arange(40) * step}).identity for step in (0, 1)
    )
    assert first != second


def test_a_stored_embedding_tells_the_vocabulary_of_heads_that_borrow(tmp_path: Path, target: Target) -> None:
    tensors = hydra_tensors(lm_heads=0) | {"input_embed_fn.weight": torch.zeros(VOCAB + 5, H)}
    with pytest.raises(ArtefactError, match=f"{VOCAB + 5} tokens and tiny has {VOCAB}"):
        load(tmp_path, HYDRA_CONFIG, tensors).heads.bind(target)
