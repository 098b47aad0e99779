"""Models whose folder lacks something, or whose tokenizer knows more than they do: a sentence, never random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import byte_tokenizer, cli
from safetensors.torch import load_file, save_file
from torch import Tensor

from entmtp_calib.engine.loading import choose_placement, load_target
from entmtp_calib.engine.pair import load_pair
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.writer import write
from entmtp_calib.errors import ArtefactError, UsageError

PLACEMENT = choose_placement("cpu", "float32")
Tensors = dict[str, Tensor]


def changed(model: Path, to: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """A copy of a saved model with other weights."""
    shutil.copytree(model, to)
    save_file(change(load_file(to / "model.safetensors")), to / "model.safetensors", {"format": "pt"})
    return to


def without(*words: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: value for key, value in tensors.items() if not any(word in key for word in words)}


def test_a_tensor_that_is_missing_is_named_and_no_random_one_takes_its_place(tmp_path: Path, tiny_folder: Path) -> None:
    for number, word in enumerate(("layers.1.mlp.up_proj", "lm_head", "embed_tokens", "model.norm")):
        with pytest.raises(ArtefactError, match=rf"lack .*{word}"):
            load_target(str(changed(tiny_folder, tmp_path / str(number), without(word))), PLACEMENT)
    with pytest.raises(ArtefactError, match=r"lack model.layers.0.* and 8 more"):
        load_target(str(changed(tiny_folder, tmp_path / "layer", without("layers.0"))), PLACEMENT)


def test_tensors_beside_those_of_the_model_do_no_harm(tmp_path: Path, tiny_folder: Path) -> None:
    more = changed(tiny_folder, tmp_path / "more", lambda tensors: tensors | {"mtp.layers.0.weight": torch.zeros(3, 3)})
    assert load_target(str(more), PLACEMENT)[0].identity == load_target(str(tiny_folder), PLACEMENT)[0].identity


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe{", b"[" * 100_000])
def test_a_configuration_that_cannot_be_read_is_refused(tmp_path: Path, tiny_folder: Path, name: str, content: bytes) -> None:
    """The end tokens of a broken generation configuration would be lost in silence."""
    shutil.copytree(tiny_folder, tmp_path / "model")
    (tmp_path / "model" / name).write_bytes(content)
    with pytest.raises(ArtefactError, match=name) as refusal:
        load_target(str(tmp_path / "model"), PLACEMENT)
    assert refusal.value.hint


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("content", [None, b"", b"x", b"\xff" * 100])
def test_a_file_that_is_missing_or_damaged_is_a_sentence(
    tmp_path: Path, tiny_folder: Path, name: str, content: bytes | None
) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model")
    path = tmp_path / "model" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArtefactError, match="cannot be loaded"):
        load_target(str(tmp_path / "model"), PLACEMENT)


def test_an_empty_name_is_no_folder() -> None:
    with pytest.raises(ArtefactError, match="empty"):
        load_target("", PLACEMENT)


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """The tiny model with a tokenizer that has one token more than it."""
    folder = tmp_path_factory.mktemp("larger") / "model"
    shutil.copytree(tiny_folder, folder)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(folder)
    return folder


def test_rows_with_tokens_that_the_model_lacks_are_left_out(
    tmp_path: Path, larger: Path, tiny_heads: Path, prompt_file: Path
) -> None:
    task = tmp_path / "p.jsonl"
    task.write_text("".join(json.dumps({"prompt": f"{'<new>' * (n % 3 == 0)}Q{n}"}) + "\n" for n in range(12)))
    result = cli("search", "--out", tmp_path / "run", "--model", larger, "--heads", tiny_heads, "--task", task, "--json",
                 "--search-prompts", 4, "--fit-prompts", 3, "--test-prompts", 2, "--max-new-tokens", 8, "--max-nodes", 4,
                 "--dtype", "float32")  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = {row["what"]: row["prompts"] for row in json.loads(result.stdout)["prompts"]}
    assert rows == {"kept": 8, "skipped: tokens that the model does not have": 4}


def test_a_text_with_tokens_that_the_model_lacks_is_refused_before_it_is_run(target: Target) -> None:
    for ids in ([1, target.vocab_size], [10**9]):
        with pytest.raises(UsageError, match=f"token {ids[-1]} and tiny has {target.vocab_size}"):
            target.prefill(torch.tensor([ids]), target.new_cache(4))
        with pytest.raises(UsageError, match=f"token {ids[-1]}"):
            list(write(target, [[1], ids], StopRule(frozenset(), 3)))


def test_a_tokenizer_of_another_model_is_told_before_any_check(tmp_path: Path, tiny_folder: Path) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["the"])
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(UsageError, match=r"token 257 and .* has 257"):
        load_pair(str(tmp_path / "model"), None, PLACEMENT)


@pytest.mark.parametrize("content", [b"", b"G", b"GGML" + bytes(40), b"<html>"])
def test_a_file_that_only_ends_in_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ArtefactError, match="is not a GGUF file"):
        load_target(str(tmp_path / "m.gguf"), PLACEMENT)


@pytest.mark.parametrize("content", [b"GGUF", b"GGUF" + bytes(40), b"GGUF\x03\0\0\0" + b"\xff" * 60])
def test_a_damaged_gguf_file_is_refused_and_nothing_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setenv("ENTMTP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ArtefactError, match="cannot be read") as refusal:
        load_target(str(tmp_path / "m.gguf"), PLACEMENT)
    assert refusal.value.hint
    assert not list(tmp_path.glob("cache/**/config.json"))


def test_a_gguf_file_that_memory_does_not_hold_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gguf = pytest.importorskip("gguf")
    monkeypatch.setenv("ENTMTP_CACHE", str(tmp_path / "cache"))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", torch.zeros(1024, 2048).half().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.setattr("entmtp_calib.engine.gguf_files._free_memory", lambda: 5 << 20)
    with caplog.at_level("INFO"), pytest.raises(ArtefactError, match="takes 8 MB of memory and 5 MB are free"):
        load_target(str(tmp_path / "m.gguf"), PLACEMENT)
    assert "takes 8 MB of memory" in caplog.text


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("I/O error"), KeyboardInterrupt()])
def test_a_gguf_file_that_cannot_be_stored_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    class Part:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "config.json").write_text("{}")
            raise error

    monkeypatch.setenv("ENTMTP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("entmtp_calib.engine.gguf_files._check_memory", lambda _path: 3 << 20)
    monkeypatch.setattr("entmtp_calib.engine.gguf_files._read", lambda _path: (Part(), Part()))
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ArtefactError) as refusal:
        load_target(str(tmp_path / "m.gguf"), PLACEMENT)
    if isinstance(refusal.value, ArtefactError):
        assert str(error) in refusal.value.message
        assert "Free 3 MB" in refusal.value.hint
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_quantised_model_is_refused_or_read_whole(tmp_path: Path, tiny_folder: Path) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    for method in ("gptq", "awq"):
        quantised = config | {"quantization_config": {"quant_method": method, "bits": 4, "group_size": 32}}
        (tmp_path / "model" / "config.json").write_text(json.dumps(quantised))
        with pytest.raises(ArtefactError, match=r"cannot be loaded|lack"):
            load_target(str(tmp_path / "model"), PLACEMENT)
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "unheard"}}))
    assert load_target(str(tmp_path / "model"), PLACEMENT)[0].identity == load_target(str(tiny_folder), PLACEMENT)[0].identity


def test_end_tokens_of_all_three_sources_end_texts(tmp_path: Path, tiny_folder: Path) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model")
    for name, ids in (("config.json", 3), ("generation_config.json", [3, 7])):
        path = tmp_path / "model" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": ids}))
    assert load_target(str(tmp_path / "model"), PLACEMENT)[0].end_ids == {0, 3, 7}  # 0 is the tokenizer's


@pytest.mark.parametrize(("flags", "wanted"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_processor_never_runs_in_16_bit_floats_that_it_has_no_instructions_for(
    monkeypatch: pytest.MonkeyPatch, flags: bool, wanted: torch.dtype
) -> None:
    monkeypatch.setattr("entmtp_calib.engine.loading._cpu_has_bf16", lambda: flags)
    placement = choose_placement("cpu", "auto")
    assert placement.dtype is wanted
    assert placement.dtype_name in placement.reason
