"""`export-heads`: what is written loads again to the same logits, fits the original decoders, and says what it could not keep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import VOCAB, cli, random_heads, tiny_model
from head_worlds import H

from entmtp_calib.engine.head_export import export
from entmtp_calib.engine.head_files import load_heads, save_heads, save_published
from entmtp_calib.engine.heads import DraftHeads, HeadShape
from entmtp_calib.engine.loading import choose_placement, load_target
from entmtp_calib.engine.prefix import PrefixShape
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError, UsageError

FORMATS = {"hydra": "hydra", "hydra++": "hydra", "medusa": "medusa"}
IDS = torch.arange(40) * 2


def some_heads(target: Target, architecture: str, reduced: bool, lm_heads: str = "target", layers: int = 0) -> DraftHeads:
    """Random heads that the originals can run, with values that 16 bits hold exactly."""
    torch.manual_seed(5)
    prefix = PrefixShape(H, H // 2, 64) if architecture == "hydra++" else None
    layers = layers or (1 if architecture == "medusa" else 2)
    shape = HeadShape(architecture, 3, layers, H, 40 if reduced else target.vocab_size, lm_heads,
                      lm_heads != "target" and prefix is None and architecture != "medusa", reduced, prefix)  # fmt: skip
    made = DraftHeads(shape).requires_grad_(False)
    if made.draft_ids is not None:
        made.draft_ids.copy_(IDS)
    return made.half().float().bind(target)


@pytest.fixture(scope="module")
def half_target() -> Target:
    """A target whose weights 16 bits hold exactly."""
    return Target(tiny_model().half().float(), frozenset(), "tiny", "sha256:tiny")


def reloaded(folder: Path, heads: DraftHeads, target: Target) -> DraftHeads:
    made = export(heads, target, FORMATS[heads.shape.architecture])
    assert save_published(folder, made.file, made.tensors, made.config) == (folder / made.file).stat().st_size
    return load_heads(str(folder)).heads.bind(target)


@pytest.mark.parametrize("architecture", ["hydra", "hydra++", "medusa"])
@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize("lm_heads", ["target", "shared", "own"])
def test_exported_heads_give_the_same_logits(
    tmp_path: Path, half_target: Target, architecture: str, reduced: bool, lm_heads: str
) -> None:
    heads = some_heads(half_target, architecture, reduced, lm_heads)
    if architecture == "medusa" and reduced and lm_heads != "target":
        with pytest.raises(ArtefactError, match="no bias to keep the others"):
            export(heads, half_target, "medusa")
        return
    again = reloaded(tmp_path, heads, half_target)
    assert again.shape.architecture == architecture
    assert again.vocabulary == VOCAB
    kept = IDS if reduced else torch.arange(VOCAB)
    hidden, tokens = torch.randn(5, H), torch.randint(0, VOCAB, (3, 5))
    first, second = (made.start(made.read(hidden), tokens[0]) for made in (heads, again))
    for level in range(3):
        wanted, found = heads.logits(level, first), again.logits(level, second)
        assert torch.allclose(found[:, kept], wanted, atol=1e-4)
        if reduced and architecture != "medusa":
            others = [token for token in range(VOCAB) if token not in kept.tolist()]
            assert (found[:, others] < -9000).all()
        first, second = (made.extend(x, tokens[level]) for made, x in ((heads, first), (again, second)))


def test_a_hydra_file_has_the_keys_that_its_decoder_reads(half_target: Target) -> None:
    made = export(some_heads(half_target, "hydra", True), half_target, "hydra")
    assert made.file == "hydra_lm_head.pt"
    assert made.config == {
        "hydra_num_heads": 3, "hydra_num_layers": 2, "hydra_head_arch": "mlp", "base_model_name_or_path": "tiny",
        "grounded_heads": True, "hidden_state_offset": 0,
    }  # fmt: skip
    blocks = [f"hydra_mlp.{i}.{part}" for i in range(3) for part in ("0.linear", "0.res_connection", "1.linear")]
    names = [f"{name}.{kind}" for name in (*blocks, *(f"hydra_lm_head.{i}" for i in range(3))) for kind in ("weight", "bias")]
    assert set(made.tensors) == {*names, "input_embed_fn.weight"}
    assert {value.dtype for value in made.tensors.values()} == {torch.float16}
    assert made.tensors["hydra_lm_head.0.weight"] is made.tensors["hydra_lm_head.2.weight"]  # one object is stored once


def test_a_hydra_plus_plus_file_has_the_keys_that_its_decoder_reads(half_target: Target) -> None:
    made = export(some_heads(half_target, "hydra++", False), half_target, "hydra")
    lead = "prefix_embeding_layer."
    layer = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    layer += ["input_layernorm", "post_attention_layernorm"]
    prefix = [f"{lead}layers.0.{name}.weight" for name in layer] + [f"{lead}norm.weight", f"{lead}embed_tokens.weight"]
    blocks = [f"hydra_mlp.{i}.{part}" for i in range(3) for part in ("1.linear", "1.res_connection", "3.linear")]
    names = [f"{name}.{kind}" for name in (*blocks, *(f"hydra_lm_head.{i}.1" for i in range(3))) for kind in ("weight", "bias")]
    assert set(made.tensors) == {*names, *prefix, "input_embed_fn.weight"}
    assert made.config["hydra_head_arch"] == "prefix-mlp"
    assert made.config["rope_theta"] == 10_000.0
    for key in (f"{lead}embed_tokens.weight", "input_embed_fn.weight"):
        assert torch.equal(made.tensors[key].float(), half_target.embedding.weight)


def test_a_medusa_file_has_the_keys_that_its_decoder_reads(half_target: Target) -> None:
    made = export(some_heads(half_target, "medusa", True), half_target, "medusa")
    assert made.file == "medusa_lm_head.pt"
    assert made.config == {"medusa_num_heads": 3, "medusa_num_layers": 1, "base_model_name_or_path": "tiny"}
    assert set(made.tensors) == {f"{i}.{part}" for i in range(3) for part in ("0.linear.weight", "0.linear.bias", "1.weight")}
    assert any(f"among all {VOCAB} tokens, not among the 40" in note for note in made.notes)


@pytest.mark.parametrize(("architecture", "layers"), [("hydra", 3), ("hydra++", 4), ("medusa", 2)])
def test_blocks_that_differ_where_the_originals_repeat_one_are_refused(
    tmp_path: Path, half_target: Target, architecture: str, layers: int
) -> None:
    """The original decoder would load them all into one block and keep the last, without a word."""
    heads = some_heads(half_target, architecture, True, layers=layers)
    with pytest.raises(ArtefactError, match="different blocks where the original decoder repeats one"):
        export(heads, half_target, FORMATS[architecture])
    first = 0 if architecture == "medusa" else 1
    for head in heads.heads:
        for block in range(first + 1, layers):
            head[block].load_state_dict(head[first].state_dict())  # type: ignore[index]
    again = reloaded(tmp_path, heads, half_target)
    x = torch.randn(2, heads.heads[0][0].linear.in_features)  # type: ignore[index]
    assert torch.allclose(heads.heads[0](x), again.heads[0](x), atol=1e-5)


def test_what_the_originals_have_no_place_for_is_refused_or_said(half_target: Target) -> None:
    biased = DraftHeads(HeadShape("medusa", 2, 1, H, VOCAB, "own", True)).requires_grad_(False).bind(half_target)
    with pytest.raises(ArtefactError, match="LM head with a bias"):
        export(biased, half_target, "medusa")
    odd = random_heads(half_target, "hydra++")  # an MLP of 48 where the target's layers have 64
    assert any("will not load it" in note for note in export(odd, half_target, "hydra").notes)
    assert not any(
        "will not load" in note for note in export(some_heads(half_target, "hydra++", False), half_target, "hydra").notes
    )
    large = some_heads(half_target, "hydra", False)
    large.heads[0][0].linear.weight[0, 0] = 1e6  # type: ignore[index]
    with pytest.raises(ArtefactError, match="16 bits cannot hold"):
        export(large, half_target, "hydra")


@pytest.mark.parametrize(
    ("architecture", "layout"), [("hydra", "medusa"), ("hydra++", "medusa"), ("medusa", "hydra"), ("hydra", "x")]
)
def test_a_layout_of_other_heads_is_a_usage_error(half_target: Target, architecture: str, layout: str) -> None:
    with pytest.raises(UsageError):
        export(some_heads(half_target, architecture, False), half_target, layout)


@pytest.fixture(scope="module")
def head_folders(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> dict[str, Path]:
    """Random heads of each architecture for the tiny model, in our own layout."""
    target, _tokenizer = load_target(str(tiny_folder), choose_placement("cpu", "float32"))
    folders = {}
    for architecture in FORMATS:
        folders[architecture] = tmp_path_factory.mktemp("heads") / architecture
        save_heads(
            some_heads(target, architecture, True), folders[architecture], target.identity, {"base_name": str(tiny_folder)}
        )
    return folders


@pytest.mark.parametrize("architecture", list(FORMATS))
def test_the_command_writes_a_folder_that_loads_again(tmp_path: Path, head_folders: dict[str, Path], architecture: str) -> None:
    out = tmp_path / "out"
    result = cli("export-heads", head_folders[architecture], "--format", FORMATS[architecture], "--out", out)
    assert result.exit_code == 0, result.output
    file = out / f"{FORMATS[architecture]}_lm_head.pt"
    assert f"{file.stat().st_size / 1e6:.1f} MB" in result.stdout
    assert str(file) in result.stdout
    assert "copy of the LM head" in result.stderr
    assert "another model" not in result.stderr
    heads = load_heads(str(out)).heads
    assert heads.shape.architecture == architecture
    assert heads.depth == 3


def test_the_document_says_what_was_written(tmp_path: Path, head_folders: dict[str, Path], tiny_folder: Path) -> None:
    words = ("export-heads", head_folders["hydra"], "--format", "hydra", "--base", tiny_folder)
    result = cli(*words, "--out", tmp_path / "a", "--json")
    document = json.loads(result.stdout)
    assert document["format"] == "entmtp-export-heads"
    size = (tmp_path / "a" / "hydra_lm_head.pt").stat().st_size
    assert document["export"]["megabytes"] == size / 1e6
    assert document["export"]["base"] == str(tiny_folder)
    assert result.stderr == ""
    quiet = cli(*words, "--out", tmp_path / "b", "--quiet")
    assert quiet.stderr == ""
    assert quiet.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("architecture", "words", "code", "text"),
    [
        ("medusa", ("--format", "hydra"), 2, "medusa heads cannot be written in the layout of hydra"),
        ("hydra", ("--format", "medusa"), 2, "hydra heads cannot be written in the layout of medusa"),
        ("hydra++", ("--format", "medusa"), 2, "hydra++ heads cannot be written"),
        ("hydra", ("--format", "eagle"), 2, "unknown format 'eagle'"),
        ("hydra", (), 2, "--format"),
        ("hydra", ("--format", "hydra", "--base", "no-such-model"), 3, "there is no model"),
    ],
)
def test_what_cannot_be_exported_gets_a_sentence_and_the_right_code(
    tmp_path: Path, head_folders: dict[str, Path], architecture: str, words: tuple, code: int, text: str
) -> None:
    result = cli("export-heads", head_folders[architecture], "--out", tmp_path / "out", *words)
    assert result.exit_code == code, result.output
    assert text in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_over(head_folders: dict[str, Path]) -> None:
    folder = head_folders["hydra"]
    before = {path: path.read_bytes() for path in folder.iterdir()}
    result = cli("export-heads", folder, "--format", "hydra", "--out", folder)
    assert result.exit_code == 2
    assert "not empty" in result.stderr
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


def test_another_base_is_warned_of(tmp_path: Path, head_folders: dict[str, Path], tiny_folder: Path) -> None:
    loaded = load_heads(str(head_folders["medusa"]))
    assert loaded.heads.shape == replace(loaded.heads.shape, reduced=True)
    save_heads(loaded.heads, tmp_path / "h", "sha256:other", {})
    result = cli(
        "export-heads", tmp_path / "h", "--format", "medusa", "--out", tmp_path / "out", "--base", tiny_folder, "--quiet"
    )
    assert result.exit_code == 0, result.output
    assert "trained for another model" in result.stderr


def test_the_help_shows_an_example() -> None:
    assert "entmtp export-heads my-heads --format hydra" in " ".join(cli("export-heads", "--help").stdout.split())
