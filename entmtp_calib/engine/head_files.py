"""Head files: finding them, reading them strictly, and writing our own layout.

Every tensor of a file must be used and every tensor of the module must come from the file. Nothing is unpickled but tensors. What
the layouts mean is known to `own_layout` and `published`.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.own_layout import FORMAT, VERSION, described, pack, read_own
from entmtp_calib.engine.published import Found, layout_of, read_published
from entmtp_calib.errors import ArtefactError, did_you_mean
from entmtp_calib.storage import read_json, to_json, write_atomically

Tensors = dict[str, Tensor]
_KINDS = (".safetensors.index.json", ".safetensors", ".pt", ".bin.index.json", ".bin")  # the first that is there is read
_NAMES = ("heads", "hydra_lm_head", "medusa_lm_head", "model", "pytorch_model")  # other weight files are strays beside these


@dataclass(frozen=True, slots=True)
class LoadedHeads:
    """Heads and what is known of their origin.

    layout: in words, for messages; identity: hash of the weights; base: hash of the target that they were trained for, or "";
    stored: number format of the weights in the file; notes: what was assumed on the way; about: how they were made, as the
    configuration of our own layout says it.
    """

    heads: DraftHeads
    name: str
    layout: str
    identity: str
    base: str
    stored: str = ""
    notes: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)


def shipped_heads() -> dict[str, Path]:
    """Heads that are installed with the package, by name."""
    root = Path(str(importlib.resources.files("entmtp_calib.data"))) / "heads"
    return {path.parent.name: path.parent for path in sorted(root.glob("*/config.json"))}


def load_heads(name: str) -> LoadedHeads:
    """Load heads by the name of shipped ones, a folder or a hub name.

    Raises:
        ArtefactError: nothing there, an unknown layout, a tensor that is missing or unused, counts that disagree.
    """
    folder = _find(name)
    config = read_json(folder / "config.json", "head configuration", "Give a folder with config.json and the weights.")
    if not isinstance(config, dict):
        raise ArtefactError(f"{folder / 'config.json'} is not an object.")
    own = config.get("format") == FORMAT
    path, notes = _weight_file(folder)
    if path.name.endswith(".index.json") and not own:
        layout_of(config, _shard_map(path), str(folder))  # a model given for heads is refused before its shards are read
    tensors = _read_shards(path) if path.name.endswith(".index.json") else _read_file(path)
    found = read_own(config, tensors) if own else read_published(config, tensors, str(folder))
    heads = _build(found, folder)
    layout = found.layout if own else f"{found.layout} ({path.name})"
    about = config.get("about") if own else None
    return LoadedHeads(heads, name, layout, _identity(heads), str(config.get("base", "")), _dtypes(tensors),
                       notes + found.notes, about if isinstance(about, dict) else {})  # fmt: skip


def save_heads(heads: DraftHeads, folder: Path, base: str, about: dict[str, Any], compact: bool = True) -> None:
    """Write heads in our own layout: `config.json` and `heads.safetensors`.

    Args:
        base: identity of the target that they were trained for.
        about: further plain values for the configuration, such as how they were made.
        compact: weight matrices in 8 bits with a scale per row, half the size; everything in 16 bits otherwise.

    Raises:
        ArtefactError: weights that are not finite.
    """
    from safetensors.torch import save

    tensors = pack(heads, compact)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "heads.safetensors", save(tensors))
    storage = "int8" if compact else "float16"
    config = {"format": FORMAT, "version": VERSION, "storage": storage, "base": base, "shape": described(heads.shape),
              "about": about}  # fmt: skip
    write_atomically(folder / "config.json", to_json(config))


def save_published(folder: Path, file: str, tensors: Tensors, config: dict[str, Any]) -> int:
    """Write heads as their original decoders read them: `config.json` and a pickled dictionary of tensors.

    Args:
        file: name of the weight file; tensors that are one object are stored once.

    Returns:
        Bytes of the weight file.
    """
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    write_atomically(folder / file, buffer.getvalue())
    write_atomically(folder / "config.json", to_json(config))
    return len(buffer.getvalue())


def _find(name: str) -> Path:
    shipped = shipped_heads()
    if name in shipped:
        return shipped[name]
    path = Path(name)
    if path.is_dir():
        return path
    if path.suffix == ".gguf":
        raise ArtefactError(f"{name} is a GGUF file, which holds a model and no heads.", "Did you mean --model?")
    if path.is_file():
        raise ArtefactError(f"{name} is a file.", f"Give its folder, {path.parent}, which must hold config.json too.")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _download(name)
    raise ArtefactError(f"there are no heads {name!r}.", did_you_mean(name, list(shipped)) + " Or give a folder.")


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["config.json", "*.safetensors", "*.pt", "*.bin", "*.json"]))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ArtefactError(f"the heads {name!r} are neither a folder nor reachable on the hub ({reason}).") from error


def _weight_file(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The weight file, or the index of its parts, and what to say of others beside it."""
    files = [path for path in sorted(folder.iterdir()) if path.name.endswith(_KINDS)]
    named = [path for path in files if path.name.split(".")[0] in _NAMES] or files
    by_kind = ([path for path in named if path.name.endswith(kind)] for kind in _KINDS)
    chosen = next((found for found in by_kind if found), [])
    if not chosen:
        raise ArtefactError(f"{folder} holds no weights.", "Heads are in *.safetensors, hydra_lm_head.pt or medusa_lm_head.pt.")
    if len(chosen) > 1:
        raise ArtefactError(
            f"{folder} holds several weight files and no index of them: {', '.join(path.name for path in chosen)}.",
            "Keep those of the heads alone.",
        )
    others = [path.name for path in named if path != chosen[0]]
    note = f"{chosen[0].name} is read; {', '.join(others)} beside it is not"
    return chosen[0], (note,) if others else ()


def _shard_map(index: Path) -> dict[str, str]:
    content = read_json(index, "index of the weights", "Download it again.")
    placed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(placed, dict) or not all(isinstance(name, str) and Path(name).name == name for name in placed.values()):
        raise ArtefactError(f"{index} does not say which file holds which tensor (weight_map).", "Download it again.")
    return placed


def _read_shards(index: Path) -> Tensors:
    """Tensors of the files that an index lists, and of no others."""
    placed = _shard_map(index)
    tensors: Tensors = {}
    for name in sorted(set(placed.values())):
        if not (index.parent / name).is_file():
            raise ArtefactError(f"{index.parent} lacks the shard {name} that {index.name} lists.", "Download it again.")
        content = _read_file(index.parent / name)
        stray = next((key for key in sorted(content) if placed.get(key) != name), None)
        if stray is not None:
            raise ArtefactError(f"{index.name} does not list the tensor {stray} of {name}.", "Download both again.")
        tensors |= content
    if missing := sorted(set(placed) - set(tensors)):
        raise ArtefactError(f"{placed[missing[0]]} lacks the tensor {missing[0]} that {index.name} lists.", "Download it again.")
    return tensors


def _read_file(path: Path) -> Tensors:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        foreign = re.search(r"(?:GLOBAL|class) (\w+(?:\.\w+)+)", str(error))
        if foreign:
            raise ArtefactError(f"{path} holds a pickled {foreign[1]}, which is not loaded.", "Save its tensors alone.") from None
        raise ArtefactError(f"{path} cannot be read; it is damaged or not a weight file.", "Download it again.") from None
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ArtefactError(f"{path} is not a state dict of tensors.", "Save module.state_dict() alone.")
    return {str(key): value for key, value in loaded.items()}


def _build(found: Found, folder: Path) -> DraftHeads:
    with torch.device("meta"):
        heads = DraftHeads(found.shape)
    wanted, tensors = heads.state_dict(), found.tensors
    for key in wanted:
        name = found.names.get(key, key)
        if key not in tensors:
            raise ArtefactError(
                f"{folder} lacks the tensor {name}.", "The heads would start with random values; get a whole file."
            )
        if tensors[key].shape != wanted[key].shape:
            raise ArtefactError(f"tensor {name} is {list(tensors[key].shape)} and must be {list(wanted[key].shape)}.")
        _check_values(name, tensors[key], whole=key == "draft_ids")
    unused = sorted(set(tensors) - set(wanted))
    if unused:
        raise ArtefactError(f"{folder} holds a tensor that no part of the heads uses: {unused[0]}.", "It is another layout.")
    heads.load_state_dict(tensors, assign=True)
    return heads.eval().requires_grad_(False)


def _check_values(name: str, tensor: Tensor, whole: bool) -> None:
    if whole:
        if tensor.dtype != torch.int64 or int(tensor.min()) < 0 or len(tensor.unique()) != len(tensor):
            raise ArtefactError(f"tensor {name} is no list of different token ids.", "Get a whole file.")
    elif not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ArtefactError(f"tensor {name} is {kind}; quantised heads of other tools are not supported.", "Save it in 16 bits.")
    elif not torch.isfinite(tensor).all():
        raise ArtefactError(f"tensor {name} holds values that are not finite.", "Its file is damaged.")


def _dtypes(tensors: Tensors) -> str:
    """Number formats of the weights in a file, in words."""
    kinds = {str(value.dtype).removeprefix("torch.") for key, value in tensors.items() if key.endswith(".weight")}
    return " and ".join(sorted(kinds))


def _identity(heads: DraftHeads) -> str:
    digest = hashlib.sha256(json.dumps(described(heads.shape), sort_keys=True).encode())
    for key, tensor in sorted(heads.state_dict().items()):
        digest.update(key.encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return "sha256:" + digest.hexdigest()
