"""Heads that cannot be right for a target are told at load: shuffled, constant, of another vocabulary or another model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import byte_tokenizer
from head_worlds import Tensors
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from entmtp_calib.engine.head_export import export
from entmtp_calib.engine.head_files import load_heads, save_heads, save_published
from entmtp_calib.engine.loading import choose_placement, load_target
from entmtp_calib.engine.pair import Pair, load_pair
from entmtp_calib.errors import ArtefactError

PLACEMENT = choose_placement("cpu", "float32")


def pair_of(model: Path, heads: Path) -> Pair:
    return load_pair(str(model), str(heads), PLACEMENT)


@pytest.fixture(scope="module")
def whole_heads(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, tiny_heads: Path) -> Path:
    """The tiny heads with LM heads of their own, in Hydra's layout."""
    folder = tmp_path_factory.mktemp("whole") / "hydra"
    target, _tokenizer = load_target(str(tiny_folder), PLACEMENT)
    made = export(load_heads(str(tiny_heads)).heads.bind(target), target, "hydra")
    save_published(folder, made.file, made.tensors, made.config)
    return folder


def changed(folder: Path, to: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """A copy of exported heads with other tensors."""
    shutil.copytree(folder, to)
    tensors = torch.load(to / "hydra_lm_head.pt", weights_only=True)
    torch.save(change(dict(tensors)), to / "hydra_lm_head.pt")
    return to


def test_trained_heads_pass_in_both_layouts(tiny_folder: Path, tiny_heads: Path, whole_heads: Path) -> None:
    own, exported = pair_of(tiny_folder, tiny_heads), pair_of(tiny_folder, whole_heads)
    assert own.sanity is not None
    assert exported.sanity is not None
    assert min(own.sanity.top10) > 3 * own.sanity.chance
    assert exported.sanity.top10 == pytest.approx(own.sanity.top10, abs=0.05)
    assert "the heads are stored in float16 and run in float32 like the target, converted once" in exported.notes
    assert not any("another model" in note for note in own.notes)


def test_heads_with_shuffled_rows_are_refused(tmp_path: Path, tiny_folder: Path, whole_heads: Path) -> None:
    """Every tensor has its right shape and values; only their order is lost."""
    generator = torch.Generator().manual_seed(0)

    def shuffle(tensors: Tensors) -> Tensors:
        return {key: value[torch.randperm(len(value), generator=generator)] for key, value in tensors.items()}

    with pytest.raises(ArtefactError, match="chance gives"):
        pair_of(tiny_folder, changed(whole_heads, tmp_path / "h", shuffle))


@pytest.mark.parametrize("head", [0, 1, 2])
def test_a_head_that_ignores_its_input_is_refused_even_where_it_names_frequent_tokens(
    tmp_path: Path, tiny_folder: Path, whole_heads: Path, head: int
) -> None:
    target, tokenizer = load_target(str(tiny_folder), PLACEMENT)
    common = torch.bincount(torch.tensor(written(target, tokenizer)), minlength=target.vocab_size)

    def constant(tensors: Tensors) -> Tensors:
        weight, bias = (f"hydra_lm_head.{head}.{part}" for part in ("weight", "bias"))
        return tensors | {weight: torch.zeros_like(tensors[weight]), bias: common.log1p().half()}

    with pytest.raises(ArtefactError, match=f"head {head + 1} guesses the same token"):
        pair_of(tiny_folder, changed(whole_heads, tmp_path / "h", constant))


def written(target, tokenizer) -> list[int]:
    """What the target writes after the prompts of the check."""
    from entmtp_calib.engine.pair import _SANITY_TEXTS
    from entmtp_calib.engine.stopping import StopRule
    from entmtp_calib.engine.writer import write
    from entmtp_calib.template import encode

    prompts = [encode([("user", text)], tokenizer) for text in _SANITY_TEXTS]
    return [token for _index, text in write(target, prompts, StopRule(target.end_ids, 24), len(prompts)) for token in text]


def test_heads_for_a_permuted_vocabulary_of_the_same_size_are_refused(
    tmp_path: Path, tiny_folder: Path, whole_heads: Path
) -> None:
    """The same model with other token ids, as under another tokenizer: all shapes fit and no guess does."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    order = torch.randperm(257, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            layer.weight.copy_(layer.weight[order])
    model.save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    with pytest.raises(ArtefactError, match="chance gives"):
        pair_of(tmp_path / "model", whole_heads)


def test_heads_of_another_model_are_told_with_measured_figures(tmp_path: Path, tiny_folder: Path, tiny_heads: Path) -> None:
    shutil.copytree(tiny_heads, tmp_path / "h")
    config = json.loads((tmp_path / "h" / "config.json").read_text())
    config["base"] = "sha256:other"
    (tmp_path / "h" / "config.json").write_text(json.dumps(config))
    pair = pair_of(tiny_folder, tmp_path / "h")
    assert pair.sanity is not None
    here = ", ".join(f"{rate:.0%}" for rate in pair.sanity.top10)
    then = ", ".join(f"{row['top10']:.0%}" for row in config["about"]["hit_rates"])
    (note,) = pair.warnings
    assert f"{here} here, on {pair.sanity.positions} tokens, against {then} when they were made" in note


@pytest.mark.parametrize("rates", [None, [], [{"head": 1}], "many", [{"head": 1, "top10": "x"}]])
def test_figures_that_are_not_recorded_are_not_invented(
    tmp_path: Path, tiny_folder: Path, tiny_heads: Path, rates: object
) -> None:
    shutil.copytree(tiny_heads, tmp_path / "h")
    config = json.loads((tmp_path / "h" / "config.json").read_text())
    config["about"]["hit_rates"], config["base"] = rates, "sha256:other"
    (tmp_path / "h" / "config.json").write_text(json.dumps(config))
    assert any("unrecorded figures" in note for note in pair_of(tiny_folder, tmp_path / "h").warnings)


def test_a_lost_scale_is_seen_before_any_check(tmp_path: Path, tiny_folder: Path, tiny_heads: Path) -> None:
    loaded = load_heads(str(tiny_heads))
    save_heads(loaded.heads, tmp_path / "h", loaded.base, loaded.about)
    tensors = load_file(tmp_path / "h" / "heads.safetensors")
    tensors.pop("heads.0.0.linear.weight.scale")
    save_file(tensors, tmp_path / "h" / "heads.safetensors")
    with pytest.raises(ArtefactError, match="scale"):
        pair_of(tiny_folder, tmp_path / "h")
