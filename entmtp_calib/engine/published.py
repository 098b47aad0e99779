"""The published layouts of Hydra and Medusa heads: what their keys, shapes and configurations mean.

Tensors and configuration values go in, a shape and tensors under the names of `DraftHeads` come out. What the file holds decides;
a configuration that contradicts it is an error with both numbers. Reads and writes no files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from entmtp_calib.engine.heads import DraftHeads, HeadShape
from entmtp_calib.engine.prefix import PrefixShape
from entmtp_calib.engine.published_parts import draft_ids, number, rotary
from entmtp_calib.errors import ArtefactError

Tensors = dict[str, Tensor]
SUPPORTED = "Supported: entmtp, Hydra mlp and prefix-mlp, Medusa."
EMBEDDING = "input_embed_fn.weight"  # copies of the base's embedding, which the originals store and nobody reads
PREFIX_EMBEDDING = "prefix_embeding_layer.embed_tokens.weight"
_MOST_LAYERS = 64
_LAYER = "prefix_embeding_layer.layers.0."
_PREFIX_NAMES = {
    "query": f"{_LAYER}self_attn.q_proj.weight",
    "key": f"{_LAYER}self_attn.k_proj.weight",
    "value": f"{_LAYER}self_attn.v_proj.weight",
    "out": f"{_LAYER}self_attn.o_proj.weight",
    "gate": f"{_LAYER}mlp.gate_proj.weight",
    "up": f"{_LAYER}mlp.up_proj.weight",
    "down": f"{_LAYER}mlp.down_proj.weight",
    "attention_norm": f"{_LAYER}input_layernorm.weight",
    "mlp_norm": f"{_LAYER}post_attention_layernorm.weight",
    "final_norm": "prefix_embeding_layer.norm.weight",
}
_STRANGERS = (
    ("cross_attn.", "Hydra cross-attn heads"),
    ("attn.self_attn.", "Hydra eagle-attn heads"),
    ("midlayer.", "an EAGLE-3 drafter"),
    ("fc.", "an EAGLE drafter"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """Heads as a file holds them.

    layout: in words; tensors: under the names of `DraftHeads`, those that no part uses under their own; names: the file's name of
    each tensor of `DraftHeads`, for messages; notes: what was assumed.
    """

    shape: HeadShape
    layout: str
    tensors: Tensors
    names: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def layout_of(config: Mapping[str, Any], keys: Iterable[str], where: str) -> str:
    """Name the layout of a file by its keys: "hydra" or "medusa".

    Args:
        config: the configuration beside the file.
        where: the folder, for messages.

    Raises:
        ArtefactError: another layout; it is named where it is known.
    """
    keys = list(keys)
    if any(key.startswith("hydra_mlp.") for key in keys):
        return "hydra"
    if any(re.fullmatch(r"(medusa_head\.)?\d+\.\d+\.(linear\.)?weight", key) for key in keys):
        return "medusa"
    kind = str(config.get("model_type") or "")
    for start, name in _STRANGERS:
        if any(key.startswith(start) for key in keys):
            raise ArtefactError(f"{where} holds {name}, which is not supported.", SUPPORTED)
    if any(key.startswith("layers.0.") for key in keys) and not any(key.startswith("layers.1.") for key in keys):
        raise ArtefactError(f"{where} holds an EAGLE drafter, which is not supported.", SUPPORTED)
    if kind not in ("", "hydra", "medusa"):
        raise ArtefactError(f"{where} holds a {kind} model, not heads.", "Did you mean --model?")
    arch = config.get("hydra_head_arch")
    if arch not in (None, "mlp", "prefix-mlp"):
        raise ArtefactError(f"{where} holds Hydra {arch} heads, which are not supported.", SUPPORTED)
    raise ArtefactError(f"{where} is in no known head layout (first tensor: {min(keys, default='none')}).", SUPPORTED)


def read_published(config: Mapping[str, Any], tensors: Tensors, where: str) -> Found:
    """Read heads in a published layout.

    Args:
        config: the configuration; whatever it leaves out is read from the keys and shapes.
        tensors: the file's tensors under the file's names.
        where: the folder, for messages.

    Raises:
        ArtefactError: an unknown or unsupported layout, or counts, widths or maps that contradict each other.
    """
    layout = layout_of(config, tensors, where)
    ids, notes = draft_ids(config, tensors)
    rest = tensors if ids is None else {key: value for key, value in tensors.items() if key not in ("d2t", "t2d")}
    read = _hydra if layout == "hydra" else _medusa
    return read(config, rest, ids, notes)


def hydra_name(key: str, shifted: bool) -> str:
    """Name in a Hydra file of a tensor of `DraftHeads`.

    Args:
        shifted: whether dropouts stand between the blocks, as in `prefix-mlp`, and move their indices: 0, 1, 2 become 1, 3, 5.
    """
    part, *path = key.split(".")
    if part == "heads":
        index = 2 * int(path[1]) + 1 if shifted else path[1]
        return f"hydra_mlp.{path[0]}.{index}.{'linear' if path[2] == 'linear' else 'res_connection'}.{path[3]}"
    if part == "lm_heads":
        return f"hydra_lm_head.{path[0]}.{'1.' if shifted else ''}{path[1]}"
    return _PREFIX_NAMES[path[0]] if part == "prefix" else "d2t"


def medusa_name(key: str, layers: int, lead: str = "") -> str:
    """Name in a Medusa file of a tensor of `DraftHeads`; `lead` is what some files put before every name."""
    part, *path = key.split(".")
    if part == "heads":
        return lead + ".".join(path)
    return f"{lead}{path[0]}.{layers}.{path[1]}" if part == "lm_heads" else "d2t"


def _hydra(config: Mapping[str, Any], tensors: Tensors, ids: Tensor | None, notes: list[str]) -> Found:
    arch = _architecture(config, tensors)
    blocks = _blocks(tensors, r"hydra_mlp\.(\d+)\.(\d+)\.linear\.weight")
    shifted = all(block % 2 for found in blocks.values() for block in found)
    if shifted:
        blocks = {head: {block // 2 for block in found} for head, found in blocks.items()}
    name = partial(hydra_name, shifted=shifted)
    width, inputs = _matrix(tensors, name("heads.0.0.linear.weight")).shape
    grounded = _grounded(config, inputs, width, arch)
    _agree(config, "hydra_num_heads", 1 + max(blocks))
    layers = _layers(config, "hydra_num_layers", blocks, 1 if grounded else 0)
    prefix = _prefix_shape(config, tensors) if arch == "prefix-mlp" else None
    kind = "hydra++" if prefix else "hydra" if grounded else "medusa"  # an ungrounded Hydra head is a Medusa head
    rows = _matrix(tensors, EMBEDDING).shape[0] if EMBEDDING in tensors else 0
    shape = HeadShape(kind, 1 + max(blocks), layers, width, rows, prefix=prefix)
    copies = (EMBEDDING, PREFIX_EMBEDDING)
    kept = {key: value for key, value in tensors.items() if key not in copies and not _is_frequencies(key)}
    return _collect(shape, f"Hydra {arch}", name, kept, blocks, ids, notes)


def _medusa(config: Mapping[str, Any], tensors: Tensors, ids: Tensor | None, notes: list[str]) -> Found:
    lead = "medusa_head." if any(key.startswith("medusa_head.") for key in tensors) else ""
    blocks = _blocks(tensors, re.escape(lead) + r"(\d+)\.(\d+)\.linear\.weight")
    counted = 1 + max(map(max, blocks.values()))
    # The LM head follows the last block, so its index counts the layers even where equal blocks are stored once.
    ends = [int(found[1]) for key in tensors if (found := re.fullmatch(re.escape(lead) + r"\d+\.(\d+)\.weight", key))]
    layers = max(ends, default=counted)
    _agree(config, "medusa_num_layers", layers)
    said, heads = config.get("medusa_num_heads", 1 + max(blocks)), 1 + max(blocks)
    if said != heads:  # published configurations are known to be wrong about it
        notes.append(f"the configuration says medusa_num_heads={said} and the file holds {heads}; the file decides")
    name = partial(medusa_name, layers=layers, lead=lead)
    width = _matrix(tensors, name("heads.0.0.linear.weight")).shape[0]
    return _collect(HeadShape("medusa", heads, layers, width, 0), "Medusa", name, tensors, blocks, ids, notes)


def _collect(
    shape: HeadShape,
    layout: str,
    name: Callable[[str], str],
    tensors: Tensors,
    blocks: Mapping[int, set[int]],
    ids: Tensor | None,
    notes: list[str],
) -> Found:
    """Find out about LM heads and vocabulary, rename the tensors, and add those that a file may leave out."""
    held = {part: [name(f"lm_heads.{head}.{part}") in tensors for head in range(shape.heads)] for part in ("weight", "bias")}
    rows = shape.vocabulary if ids is None else len(ids)
    if any(held["weight"]):
        rows = _matrix(tensors, name(f"lm_heads.{held['weight'].index(True)}.weight")).shape[0]
    if ids is not None and rows != len(ids):
        raise ArtefactError(f"the LM heads have {rows} rows and the vocabulary map d2t has {len(ids)}.", "Get a whole file.")
    lm_heads = "own" if any(held["weight"]) else "target"
    shape = replace(shape, vocabulary=rows, lm_heads=lm_heads, lm_bias=any(held["bias"]), reduced=ids is not None)
    with torch.device("meta"):  # a vocabulary of 0 is the target's, filled in when they meet
        wanted = DraftHeads(shape).state_dict()
    names = {key: name(key) for key in wanted}
    mine = {key: tensors[names[key]] for key in wanted if names[key] in tensors}
    rest = {key: value for key, value in tensors.items() if key not in names.values()}
    mine |= _untied(shape, mine, blocks, notes)
    if not any(key.startswith("heads.") and key.endswith(".bias") for key in mine):
        notes.append("the blocks of the heads have no bias")
        mine |= {key: torch.zeros(wanted[key].shape) for key in wanted if key.startswith("heads.") and key.endswith(".bias")}
    mine |= {} if ids is None else {"draft_ids": ids}
    return Found(shape, layout, mine | rest, names, tuple(notes))


def _untied(shape: HeadShape, tensors: Tensors, blocks: Mapping[int, set[int]], notes: list[str]) -> Tensors:
    """Copies of blocks that the originals repeat (one object in a list, several times) and the file stores once."""
    first = 0 if shape.architecture == "medusa" else 1
    added: Tensors = {}
    for head, found in blocks.items():
        later = {block for block in found if block >= first}
        for block in range(first, shape.layers if len(later) == 1 else first):
            for part in ("weight", "bias"):
                stored = f"heads.{head}.{min(later)}.linear.{part}"
                if block not in later and stored in tensors:
                    added[f"heads.{head}.{block}.linear.{part}"] = tensors[stored].clone()
    if added:
        notes.append(f"blocks {first + 1} to {shape.layers} of every head are one, stored once")
    return added


def _architecture(config: Mapping[str, Any], tensors: Tensors) -> str:
    held = "prefix-mlp" if any(key.startswith("prefix_embeding_layer.") for key in tensors) else "mlp"
    said = config.get("hydra_head_arch", held)
    if said not in ("mlp", "prefix-mlp"):
        raise ArtefactError(f"the heads are Hydra {said} heads, which are not supported.", SUPPORTED)
    if said != held:
        raise ArtefactError(f"the configuration says hydra_head_arch={said} and the file holds {held}.", "Correct one of them.")
    offset = config.get("hidden_state_offset", 0)
    if offset != 0:
        raise ArtefactError(
            f"the heads were made for states {offset} layers before the last (hidden_state_offset={offset}).",
            "This tool feeds the states after the final norm, hidden_state_offset=0.",
        )
    return held


def _grounded(config: Mapping[str, Any], inputs: int, width: int, arch: str) -> bool:
    grounded = bool(config.get("grounded_heads", inputs != width))
    if grounded != (inputs != width):
        raise ArtefactError(f"the configuration says grounded_heads={grounded} and the first head is {inputs} wide for {width}.")
    if arch == "prefix-mlp" and not grounded:
        raise ArtefactError("the heads stand behind a prefix layer and see no tokens, which is not supported.", SUPPORTED)
    return grounded


def _blocks(tensors: Tensors, pattern: str) -> dict[int, set[int]]:
    """Indices of the blocks that the file holds, by head."""
    blocks: dict[int, set[int]] = {}
    for found in filter(None, map(re.compile(pattern).fullmatch, tensors)):
        blocks.setdefault(int(found[1]), set()).add(int(found[2]))
    missing = next((head for head in range(len(blocks)) if head not in blocks), None)
    if not blocks or missing is not None:
        raise ArtefactError(f"the head file holds no block of head {missing or 0}.", "Download it again.")
    return blocks


def _layers(config: Mapping[str, Any], key: str, blocks: Mapping[int, set[int]], first: int) -> int:
    """Blocks per head; the configuration may count more than are stored where all from `first` on are one, stored once."""
    counted = 1 + max(map(max, blocks.values()))
    once = all(len([block for block in found if block >= first]) == 1 for found in blocks.values())
    said = number(config, key)
    if once and counted < said <= _MOST_LAYERS:
        return int(said)
    _agree(config, key, counted)
    return counted


def _agree(config: Mapping[str, Any], key: str, counted: int) -> None:
    if key in config and config[key] != counted:
        raise ArtefactError(f"the configuration says {key}={config[key]} and the weights hold {counted}.", "Correct one of them.")


def _matrix(tensors: Tensors, key: str) -> Tensor:
    if key not in tensors:
        raise ArtefactError(f"the head file lacks the tensor {key}.", "Download it again.")
    if tensors[key].ndim != 2:
        raise ArtefactError(f"tensor {key} is {list(tensors[key].shape)} and must have two dimensions.", "Download it again.")
    return tensors[key]


def _is_frequencies(key: str) -> bool:
    return key.startswith("prefix_embeding_layer.") and key.endswith("rotary_emb.inv_freq")


def _prefix_shape(config: Mapping[str, Any], tensors: Tensors) -> PrefixShape:
    query, key, inner = (_matrix(tensors, _PREFIX_NAMES[part]).shape[0] for part in ("query", "key", "gate"))
    frequencies = next((value for name, value in tensors.items() if _is_frequencies(name)), None)
    head_dim, theta = rotary(config, frequencies, query)
    eps, positions = float(number(config, "rms_norm_eps")), int(number(config, "max_position_embeddings"))
    return PrefixShape(query, key, inner, head_dim, theta, eps, positions)
