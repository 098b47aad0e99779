"""Heads and their files: meeting a target, kinds of weight files, our own layout in 16 and 8 bits, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import VOCAB, random_heads
from head_worlds import HYDRA_CONFIG, H, Tensors, hydra_tensors, medusa_tensors, write, write_shards
from safetensors.torch import load_file, save_file

from entmtp_calib.engine.head_files import load_heads, save_heads
from entmtp_calib.engine.heads import DraftHeads, HeadShape
from entmtp_calib.engine.loading import choose_placement, load_target
from entmtp_calib.engine.prefix import PrefixShape
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError

ARCHITECTURES = ("hydra", "hydra++", "medusa")


def test_heads_without_an_lm_head_borrow_the_targets(tmp_path: Path, target: Target) -> None:
    folder = write(tmp_path / "h", HYDRA_CONFIG, hydra_tensors(lm_heads=0), "hydra_lm_head.pt")
    heads = load_heads(str(folder)).heads.bind(target)
    assert heads.shape.lm_heads == "target"
    assert heads.vocabulary == VOCAB
    states = torch.randn(2, H)
    assert torch.equal(F.linear(states, heads.lm_weight()), F.linear(states, target.lm_head.weight))


def test_binding_does_not_touch_the_target(tmp_path: Path, target: Target) -> None:
    folder = write(tmp_path / "h", HYDRA_CONFIG, hydra_tensors(lm_heads=0), "hydra_lm_head.pt")
    heads = load_heads(str(folder)).heads.bind(target)
    heads.double()
    assert target.embedding.weight.dtype == torch.float32
    assert not any("embed" in key for key in heads.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_heads_take_the_targets_dtype_when_they_meet(tmp_path: Path, target: Target, dtype: torch.dtype) -> None:
    tensors = {key: value.to(dtype) for key, value in hydra_tensors().items()}
    loaded = load_heads(str(write(tmp_path / "h", HYDRA_CONFIG, tensors, "hydra_lm_head.pt")))
    assert loaded.stored == str(dtype).removeprefix("torch.")
    heads = loaded.heads.bind(target)
    assert {value.dtype for value in heads.parameters()} == {torch.float32}
    wanted = tensors["hydra_mlp.0.0.linear.weight"].float()
    assert torch.equal(heads.state_dict()["heads.0.0.linear.weight"], wanted)


class Foreign:
    """An object that somebody pickled beside the tensors."""


def test_pickled_objects_are_never_loaded_and_their_class_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "h", HYDRA_CONFIG, {}, "other.pt")
    torch.save({"config": Foreign()} | hydra_tensors(), folder / "hydra_lm_head.pt")
    with pytest.raises(ArtefactError, match=r"pickled test_heads\.Foreign"):
        load_heads(str(folder))


@pytest.mark.parametrize("content", [b"", b"not a weight file at all", b"PK\x03\x04broken"])
@pytest.mark.parametrize("name", ["hydra_lm_head.pt", "heads.safetensors", "pytorch_model.bin"])
def test_damaged_weight_files_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArtefactError, match="cannot be read"):
        load_heads(str(tmp_path))


def test_a_file_that_is_no_dictionary_of_tensors_is_refused(tmp_path: Path) -> None:
    write(tmp_path, HYDRA_CONFIG, {}, "x.pt")
    torch.save([torch.zeros(3)], tmp_path / "hydra_lm_head.pt")
    with pytest.raises(ArtefactError, match="not a state dict"):
        load_heads(str(tmp_path))


def first_bias(folder: Path) -> float:
    return float(load_heads(str(folder)).heads.state_dict()["heads.0.0.linear.bias"][0])


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["medusa_lm_head.pt"], "medusa_lm_head.pt"),
        (["medusa_lm_head.safetensors"], "medusa_lm_head.safetensors"),
        (["pytorch_model.bin"], "pytorch_model.bin"),
        (["medusa_lm_head.pt", "medusa_lm_head.safetensors"], "medusa_lm_head.safetensors"),
        (["medusa_lm_head.pt", "pytorch_model.bin"], "medusa_lm_head.pt"),
        (["training_args.bin", "optimizer.pt", "medusa_lm_head.pt"], "medusa_lm_head.pt"),
        (["anything.pt"], "anything.pt"),
    ],
)
def test_of_several_weight_files_one_is_read_and_named(tmp_path: Path, names: list[str], taken: str) -> None:
    """The files have different content."""
    for number, name in enumerate(names):
        tensors = medusa_tensors() | {"0.0.linear.bias": torch.full((H,), float(number))}
        write(tmp_path, {"medusa_num_layers": 1}, tensors, name)
    loaded = load_heads(str(tmp_path))
    assert first_bias(tmp_path) == names.index(taken)
    assert loaded.layout == f"Medusa ({taken})"
    rivals = [name for name in names if name != taken and not name.startswith(("training", "optim"))]
    assert loaded.notes == tuple(f"{taken} is read; {name} beside it is not" for name in rivals)


def test_several_weight_files_of_one_kind_are_refused_by_name(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        write(tmp_path, {}, medusa_tensors(), name)
    with pytest.raises(ArtefactError, match=r"a\.safetensors, b\.safetensors"):
        load_heads(str(tmp_path))


@pytest.mark.parametrize(("stem", "kind"), [("model", "safetensors"), ("pytorch_model", "bin")])
def test_sharded_heads_are_read_by_their_index(tmp_path: Path, target: Target, stem: str, kind: str) -> None:
    tensors = hydra_tensors(tied=False)
    whole = load_heads(str(write(tmp_path / "w", HYDRA_CONFIG, tensors, "hydra_lm_head.pt")))
    folder = write_shards(tmp_path / "s", HYDRA_CONFIG, tensors, stem, kind)
    write(folder, HYDRA_CONFIG, {"stray.weight": torch.zeros(3)}, f"stray.{kind}")
    parts = load_heads(str(folder))
    assert parts.identity == whole.identity
    assert parts.heads.bind(target).depth == 3


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a_missing_shard_is_named(tmp_path: Path, kind: str) -> None:
    folder = write_shards(tmp_path, HYDRA_CONFIG, hydra_tensors(), "model", kind)
    (folder / f"model-00002-of-00003.{kind}").unlink()
    with pytest.raises(ArtefactError, match=f"lacks the shard model-00002-of-00003.{kind}"):
        load_heads(str(folder))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda placed: placed | {"ghost.weight": "model-00001-of-00003.safetensors"}, r"lacks the tensor ghost\.weight"),
        (lambda placed: dict(list(placed.items())[1:]), "does not list the tensor"),
        (lambda placed: placed | {"x": "../elsewhere.safetensors"}, "which file holds which tensor"),
        (lambda placed: None, "which file holds which tensor"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(tmp_path: Path, change: Callable, words: str) -> None:
    folder = write_shards(tmp_path, HYDRA_CONFIG, hydra_tensors(), "model", "safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": change(json.loads(index.read_text())["weight_map"])}))
    with pytest.raises(ArtefactError, match=words):
        load_heads(str(folder))


def test_a_model_given_as_heads_says_so(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="not heads") as caught:
        load_heads(str(tiny_folder))
    assert "--model" in caught.value.hint
    index = {"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))  # told from the index; the shards are not read
    with pytest.raises(ArtefactError, match="holds a llama model, not heads"):
        load_heads(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({}, "hydra_lm_head.pt"),
        ({}, "medusa_lm_head.safetensors"),
        ({}, "heads.safetensors"),
        ({"format": "entmtp-heads"}, "x.safetensors"),
        ({"medusa_num_heads": 4}, "x.pt"),
        ({"model_type": "", "hydra_num_heads": 4}, "x.pt"),
    ],
)
def test_heads_given_as_a_model_say_so(tmp_path: Path, config: dict, name: str) -> None:
    write(tmp_path, config, {"a": torch.zeros(1)}, name)
    with pytest.raises(ArtefactError, match="holds heads, not a model") as caught:
        load_target(str(tmp_path), choose_placement("cpu", "float32"))
    assert "--heads" in caught.value.hint


@pytest.mark.parametrize("content", ["[]", "{}", '{"model_type": null}'])
def test_a_model_folder_that_says_nothing_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ArtefactError, match="names no model_type"):
        load_target(str(tmp_path), choose_placement("cpu", "float32"))


def test_names_that_lead_to_no_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="no heads 'smollm2-hydro'"):
        load_heads("smollm2-hydro")
    with pytest.raises(ArtefactError, match="GGUF file"):
        load_heads("model.gguf")
    (tmp_path / "hydra_lm_head.pt").write_bytes(b"x")
    with pytest.raises(ArtefactError, match="is a file") as caught:
        load_heads(str(tmp_path / "hydra_lm_head.pt"))
    assert str(tmp_path) in caught.value.hint
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "hydra_lm_head.pt").unlink()
    with pytest.raises(ArtefactError, match="holds no weights"):
        load_heads(str(tmp_path))


def test_a_hub_name_is_fetched_and_a_failure_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    folder = write(tmp_path / "h", {"medusa_num_layers": 1}, medusa_tensors(), "medusa_lm_head.pt")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, allow_patterns: str(folder))
    assert load_heads("someone/heads").heads.depth == 4

    def fail(name: str, allow_patterns: list[str]) -> str:
        raise OSError("no network\nand more lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ArtefactError, match=r"reachable on the hub \(no network\)"):
        load_heads("someone/heads")


def test_heads_of_another_width_or_vocabulary_are_refused(target: Target) -> None:
    with pytest.raises(ArtefactError, match="64 wide and tiny is 32 wide"):
        DraftHeads(HeadShape("hydra", 2, 1, 64, VOCAB)).bind(target)
    with pytest.raises(ArtefactError, match="50 tokens and tiny has 97"):
        DraftHeads(HeadShape("hydra", 2, 1, H, 50, "own")).bind(target)


def some_heads(target: Target, architecture: str, reduced: bool = False, lm_heads: str = "target", layers: int = 2) -> DraftHeads:
    """Random heads of any shape, bound, whose values 16 bits hold exactly."""
    torch.manual_seed(7)
    vocabulary = 40 if reduced else VOCAB
    prefix = PrefixShape(H, H, 40) if architecture == "hydra++" else None
    shape = HeadShape(architecture, 3, layers, H, vocabulary, lm_heads, lm_heads != "target", reduced, prefix)
    made = DraftHeads(shape).requires_grad_(False)
    if made.draft_ids is not None:
        made.draft_ids.copy_(torch.arange(40) * 2)
    return made.half().float().bind(target)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize("compact", [True, False])
def test_our_own_layout_round_trips(tmp_path: Path, target: Target, architecture: str, reduced: bool, compact: bool) -> None:
    made = some_heads(target, architecture, reduced)
    save_heads(made, tmp_path / "heads", "sha256:base", {"note": "made by a test"}, compact)
    loaded = load_heads(str(tmp_path / "heads"))
    assert loaded.base == "sha256:base"
    assert loaded.about == {"note": "made by a test"}
    assert loaded.stored == ("int8" if compact else "float16")
    again = loaded.heads.bind(target)
    hidden, roots = torch.randn(4, H), torch.arange(4)
    first, second = (heads.logits(0, heads.start(heads.read(hidden), roots)) for heads in (made, again))
    assert torch.allclose(first, second, atol=0.1 if compact else 1e-3)
    guesses = again.to_target_ids(torch.tensor([0, 5]))
    assert guesses.tolist() == ([0, 10] if reduced else [0, 5])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("lm_heads", ["target", "shared", "own"])
def test_8_bits_are_off_by_half_a_step_of_their_64_columns(
    tmp_path: Path, target: Target, architecture: str, lm_heads: str
) -> None:
    made = some_heads(target, architecture, True, lm_heads)
    made.heads[0][0].linear.weight[3] = 0  # type: ignore[index]
    made.heads[-1][0].linear.weight[:, 0] = 9  # type: ignore[index]
    save_heads(made, tmp_path, "", {})
    again = load_heads(str(tmp_path)).heads.state_dict()
    assert torch.equal(again["heads.0.0.linear.weight"][3], torch.zeros(again["heads.0.0.linear.weight"].shape[1]))
    stored = load_file(tmp_path / "heads.safetensors")
    assert stored["draft_ids"].dtype == torch.int32
    for key, value in made.state_dict().items():
        if value.ndim == 2:
            assert (stored[key].dtype, stored[f"{key}.scale"].dtype) == (torch.int8, torch.float16)
            step = torch.cat([part.abs().amax(1, keepdim=True).expand_as(part) for part in value.split(64, 1)], 1) / 127
            assert ((again[key] - value).abs() <= step * 0.5 * 1.05 + 1e-7).all(), key  # the scale is rounded to 16 bits
        else:
            assert torch.equal(again[key], value), key
    assert all(again[key].dtype == torch.float32 for key in again if key != "draft_ids")


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_saving_what_was_loaded_gives_the_same_bytes(tmp_path: Path, target: Target, architecture: str, compact: bool) -> None:
    made = some_heads(target, architecture, True, "own")
    with torch.no_grad():  # rows so small that their scales are blurred
        made.heads[0][0].linear.weight.mul_(torch.logspace(-9, 0, H)[:, None])  # type: ignore[union-attr]
    save_heads(made, tmp_path / "a", "sha256:base", {"x": 1}, compact)
    first = load_heads(str(tmp_path / "a"))
    save_heads(first.heads, tmp_path / "b", first.base, first.about, compact)
    for name in ("config.json", "heads.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert load_heads(str(tmp_path / "b")).identity == first.identity


def compact_folder(tmp_path: Path, target: Target) -> tuple[Path, Tensors]:
    save_heads(some_heads(target, "hydra", True), tmp_path, "", {})
    return tmp_path, load_file(tmp_path / "heads.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: {k: v for k, v in t.items() if k != "heads.0.0.linear.weight.scale"},
            r"lack the tensor .*linear\.weight\.scale",
        ),
        (lambda t: t | {"heads.0.0.linear.weight.scale": torch.ones(3)}, "in its shape"),
        (lambda t: t | {"heads.9.0.linear.weight.scale": torch.ones(H)}, "belongs to no int8 tensor"),
        (lambda t: t | {"heads.0.0.linear.weight": torch.ones(H, 2 * H)}, "belongs to no int8 tensor"),
        (lambda t: t | {"draft_ids": torch.zeros(40, dtype=torch.int32)}, "no list of different token ids"),
        (lambda t: t | {"draft_ids": torch.arange(40).float()}, "no list of different token ids"),
    ],
)
def test_damaged_8_bit_files_are_refused(tmp_path: Path, target: Target, change: Callable, words: str) -> None:
    folder, tensors = compact_folder(tmp_path, target)
    save_file(change(tensors), folder / "heads.safetensors")
    with pytest.raises(ArtefactError, match=words):
        load_heads(str(folder))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 9}, "version 9 and this tool reads 1"),
        ({"storage": "int4"}, "unknown storage 'int4'"),
        ({"storage": "float16"}, "is int8"),
        ({"shape": {}}, "lacks a field"),
    ],
)
def test_configurations_of_our_own_layout_are_read_strictly(tmp_path: Path, target: Target, change: dict, words: str) -> None:
    folder, _tensors = compact_folder(tmp_path, target)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ArtefactError, match=words):
        load_heads(str(folder))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 0}, "impossible counts"),
        ({"architecture": "tower"}, "unknown head architecture"),
        ({"architecture": "hydra++"}, "lack the sizes of a prefix layer"),
        ({"prefix": {"query_width": H, "kv_width": H, "inner": 40}}, "have the sizes of a prefix layer"),
    ],
)
def test_impossible_shapes_are_refused(tmp_path: Path, target: Target, change: dict, words: str) -> None:
    folder, _tensors = compact_folder(tmp_path, target)
    config = json.loads((folder / "config.json").read_text())
    config["shape"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArtefactError, match=words):
        load_heads(str(folder))


def test_files_that_do_not_say_their_storage_are_16_bits(tmp_path: Path, target: Target) -> None:
    """The first heads that were shipped are such; their ids are int64."""
    made = some_heads(target, "hydra", True)
    save_heads(made, tmp_path, "", {}, compact=False)
    config = json.loads((tmp_path / "config.json").read_text())
    identity = load_heads(str(tmp_path)).identity
    del config["storage"]
    tensors = load_file(tmp_path / "heads.safetensors")
    save_file(tensors | {"draft_ids": tensors["draft_ids"].long()}, tmp_path / "heads.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_heads(str(tmp_path)).identity == identity


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, target: Target) -> None:
    for compact in (True, False):
        made = some_heads(target, "medusa")
        made.heads[0][0].linear.weight[0, 0] = float("nan")  # type: ignore[index]
        with pytest.raises(ArtefactError, match="16 bits cannot hold"):
            save_heads(made, tmp_path, "", {}, compact)


def test_drafting_equals_the_heads_run_by_hand(target: Target) -> None:
    """Level by level with gathers, against a loop over nodes."""
    from entmtp_calib.engine.drafter import draft_tree
    from entmtp_calib.engine.layout import TreeLayout
    from entmtp_calib.topology import published_default

    for architecture in ARCHITECTURES:
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
