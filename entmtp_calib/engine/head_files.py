"""Head files: our own layout and the published ones of Hydra and Medusa, read strictly.

Every tensor of a file must be used and every tensor of the module must come from the file; counts are read from the keys and
compared with the configuration. Nothing is unpickled but tensors.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from entmtp_calib.engine.heads import ARCHITECTURES, DraftHeads, HeadShape
from entmtp_calib.engine.prefix import PrefixShape
from entmtp_calib.errors import ArtefactError, did_you_mean
from entmtp_calib.storage import read_json, to_json, write_atomically

FORMAT, VERSION = "entmtp-heads", 1
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class LoadedHeads:
    """Heads and what is known of their origin.

    layout: in words, for messages; identity: hash of the weights; base: hash of the target that they were trained for, or "".
    """

    heads: DraftHeads
    name: str
    layout: str
    identity: str
    base: str


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
    tensors, taken = _read_tensors(folder)
    if config.get("format") == FORMAT:
        shape, tensors = _own(config, tensors)
        layout = f"entmtp {shape.architecture}"
    elif any(key.startswith("hydra_mlp.") for key in tensors):
        shape, tensors = _hydra(config, tensors)
        layout = f"Hydra ({taken})"
    elif any(re.fullmatch(r"(medusa_head\.)?\d+\.\d+\.(linear\.)?weight", key) for key in tensors):
        shape, tensors = _medusa(config, tensors)
        layout = f"Medusa ({taken})"
    else:
        raise ArtefactError(_name_stranger(config, tensors, folder), "Known layouts: entmtp, Hydra mlp, Medusa.")
    heads = _build(shape, tensors, folder)
    return LoadedHeads(heads, name, layout, _identity(heads), str(config.get("base", "")))


def save_heads(heads: DraftHeads, folder: Path, base: str, about: dict[str, Any]) -> None:
    """Write heads in our own layout: `config.json` and fp16 `heads.safetensors`.

    Args:
        base: identity of the target that they were trained for.
        about: further plain values for the configuration, such as how they were made.
    """
    from safetensors.torch import save

    tensors = {
        key: value.detach().cpu().contiguous() if key == "draft_ids" else value.detach().cpu().to(torch.float16).contiguous()
        for key, value in heads.state_dict().items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "heads.safetensors", save(tensors))
    config = {"format": FORMAT, "version": VERSION, "base": base, "shape": asdict(heads.shape), "about": about}
    write_atomically(folder / "config.json", to_json(config))


def _find(name: str) -> Path:
    shipped = shipped_heads()
    if name in shipped:
        return shipped[name]
    folder = Path(name)
    if folder.is_dir():
        return folder
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


def _read_tensors(folder: Path) -> tuple[Tensors, str]:
    """Tensors of the weight file, and its name; safetensors wins where both forms exist."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*_lm_head.pt")) or sorted(folder.glob("*.bin"))
    if not files:
        raise ArtefactError(f"{folder} holds no weights.", "Heads are in *.safetensors, hydra_lm_head.pt or medusa_lm_head.pt.")
    if (folder / "config.json").is_file() and "model_type" in read_json(folder / "config.json", "configuration"):
        kind = read_json(folder / "config.json", "configuration")["model_type"]
        if kind not in ("", "hydra", "medusa") and files[0].name.startswith(("model", "pytorch_model")):
            raise ArtefactError(f"{folder} holds a {kind} model, not heads.", "Did you mean --model?")
    tensors: Tensors = {}
    for file in files:
        tensors.update(_read_file(file))
    return tensors, files[0].name if len(files) == 1 else f"{len(files)} files"


def _read_file(path: Path) -> Tensors:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        foreign = re.search(r"(?:GLOBAL|Unsupported global:?) (\S+)", str(error))
        if foreign:
            raise ArtefactError(f"{path} holds a pickled {foreign[1]}, which is not loaded.", "Save its tensors alone.") from None
        raise ArtefactError(f"{path} cannot be read; it is damaged or not a weight file.", "Download it again.") from None
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ArtefactError(f"{path} is not a state dict of tensors.", "Save module.state_dict() alone.")
    return loaded


def _own(config: dict[str, Any], tensors: Tensors) -> tuple[HeadShape, Tensors]:
    if config.get("version") != VERSION:
        raise ArtefactError(f"the heads have version {config.get('version')} and this tool reads {VERSION}.", "Update entmtp.")
    try:
        prefix = config["shape"].get("prefix")
        shape = HeadShape(**config["shape"] | {"prefix": PrefixShape(**prefix) if prefix else None})
    except (KeyError, TypeError, AttributeError):
        raise ArtefactError("the head configuration lacks a field of its shape.", "Train or export the heads again.") from None
    numbers = (shape.heads, shape.layers, shape.hidden_size, shape.vocabulary)
    if not all(type(number) is int and 0 < number < 2**31 for number in numbers):
        raise ArtefactError(f"the head configuration has impossible counts: {asdict(shape)}.")
    if shape.architecture not in ARCHITECTURES or shape.lm_heads not in ("target", "shared", "own"):
        raise ArtefactError(f"unknown head architecture {shape.architecture!r} with lm_heads {shape.lm_heads!r}.")
    return shape, tensors


def _hydra(config: dict[str, Any], tensors: Tensors) -> tuple[HeadShape, Tensors]:
    """Hydra `mlp`: `hydra_mlp.{head}.{block}.…` and `hydra_lm_head.{head}.…` (formats of zankner/Hydra)."""
    arch = config.get("hydra_head_arch", "mlp")
    if arch != "mlp" or any(key.startswith("prefix_embeding_layer.") for key in tensors):
        raise ArtefactError(f"the heads are Hydra {arch}, which is not supported yet.", "Supported: Hydra mlp, Medusa.")
    tensors = {key: value for key, value in tensors.items() if key != "input_embed_fn.weight"}  # a copy of the target's
    heads, layers = _counts(tensors, r"hydra_mlp\.(\d+)\.(\d+)\.linear\.weight")
    _agree(config, "hydra_num_heads", heads)
    _agree(config, "hydra_num_layers", layers)
    width, inputs = _need(tensors, "hydra_mlp.0.0.linear.weight").shape
    grounded = bool(config.get("grounded_heads", inputs != width))
    if grounded != (inputs != width):
        raise ArtefactError(f"the configuration says grounded_heads={grounded} and the first head is {inputs} wide for {width}.")
    rules = [
        (r"hydra_mlp\.(\d+)\.(\d+)\.linear\.(weight|bias)", r"heads.\1.\2.linear.\3"),
        (r"hydra_mlp\.(\d+)\.(\d+)\.res_connection\.(weight|bias)", r"heads.\1.\2.residual.\3"),
        (r"hydra_lm_head\.(\d+)\.(weight|bias)", r"lm_heads.\1.\2"),
    ]
    kind = "hydra" if grounded else "medusa"  # an ungrounded Hydra head is a Medusa head
    return _shape(kind, heads, layers, width, renamed := _rename(tensors, rules)), renamed


def _medusa(config: dict[str, Any], tensors: Tensors) -> tuple[HeadShape, Tensors]:
    """Medusa: `{head}.{block}.linear.…` and `{head}.{layers}.weight` (formats of FasterDecoding/Medusa)."""
    tensors = {key.removeprefix("medusa_head."): value for key, value in tensors.items()}
    heads, layers = _counts(tensors, r"(\d+)\.(\d+)\.linear\.weight")
    # Published configurations are known to be wrong about the heads (2 where the file has 5): the keys decide.
    _agree(config, "medusa_num_layers", layers)
    width = _need(tensors, "0.0.linear.weight").shape[0]
    rules = [
        (r"(\d+)\.(\d+)\.linear\.(weight|bias)", r"heads.\1.\2.linear.\3"),
        (rf"(\d+)\.{layers}\.(weight|bias)", r"lm_heads.\1.\2"),
    ]
    return _shape("medusa", heads, layers, width, renamed := _rename(tensors, rules)), renamed


def _need(tensors: Tensors, key: str) -> Tensor:
    if key not in tensors or tensors[key].ndim != 2:
        raise ArtefactError(f"the head file lacks the tensor {key}.", "Download it again.")
    return tensors[key]


def _counts(tensors: Tensors, pattern: str) -> tuple[int, int]:
    found = [match for match in map(re.compile(pattern).fullmatch, tensors) if match]
    if not found:
        raise ArtefactError("the head file holds no head.", "Download it again.")
    return 1 + max(int(match[1]) for match in found), 1 + max(int(match[2]) for match in found)


def _agree(config: dict[str, Any], key: str, counted: int) -> None:
    if key in config and config[key] != counted:
        raise ArtefactError(f"the configuration says {key}={config[key]} and the weights hold {counted}.", "Correct one of them.")


def _rename(tensors: Tensors, rules: list[tuple[str, str]]) -> Tensors:
    """Tensors under the names of `DraftHeads`; a key that no rule fits keeps its name and is refused later."""

    def new_name(key: str) -> str:
        return next((re.sub(pattern, result, key) for pattern, result in rules if re.fullmatch(pattern, key)), key)

    return {new_name(key): value for key, value in tensors.items()}


def _shape(kind: str, heads: int, layers: int, width: int, tensors: Tensors) -> HeadShape:
    own = sorted(key for key in tensors if key.startswith("lm_heads.") and key.endswith(".weight"))
    vocabulary = tensors[own[0]].shape[0] if own else 0
    bias = "lm_heads.0.bias" in tensors
    return HeadShape(kind, heads, layers, width, vocabulary, "own" if own else "target", bias)


def _build(shape: HeadShape, tensors: Tensors, folder: Path) -> DraftHeads:
    with torch.device("meta"):
        heads = DraftHeads(shape)
    wanted = heads.state_dict()
    for key in wanted:
        if key not in tensors:
            raise ArtefactError(
                f"{folder} lacks the tensor {key}.", "The heads would start with random values; get a whole file."
            )
        if tensors[key].shape != wanted[key].shape:
            raise ArtefactError(f"tensor {key} is {list(tensors[key].shape)} and must be {list(wanted[key].shape)}.")
    unused = sorted(set(tensors) - set(wanted))
    if unused:
        raise ArtefactError(f"{folder} holds a tensor that no part of the heads uses: {unused[0]}.", "It is another layout.")
    heads.load_state_dict(tensors, assign=True)
    return heads.eval().requires_grad_(False)


def _identity(heads: DraftHeads) -> str:
    digest = hashlib.sha256(json.dumps(asdict(heads.shape), sort_keys=True).encode())
    for key, tensor in sorted(heads.state_dict().items()):
        digest.update(key.encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return "sha256:" + digest.hexdigest()


def _name_stranger(config: dict[str, Any], tensors: Tensors, folder: Path) -> str:
    if any(key.startswith(("fc.", "midlayer.", "layers.0.self_attn")) for key in tensors):
        return f"{folder} holds an EAGLE drafter, which is a model of its own and not supported"
    first = next(iter(sorted(tensors)), "nothing")
    return (
        f"{folder} is in no known head layout (its first tensor is {first}; {did_you_mean(str(config.get('format')), [FORMAT])})"
    )
