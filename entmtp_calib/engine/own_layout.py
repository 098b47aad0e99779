"""Our own head layout `entmtp-heads`: its configuration, and weights in 16 or 8 bits.

In 8 bits a weight matrix is int8 with one float16 scale for every 64 columns of a row: heads that start as the identity keep
large diagonals, and one scale for a whole row would lose what stands beside them. Turns tensors and values into each other; reads
and writes no files.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from entmtp_calib.engine.heads import ARCHITECTURES, DraftHeads, HeadShape
from entmtp_calib.engine.prefix import PrefixShape
from entmtp_calib.engine.published import Found
from entmtp_calib.errors import ArtefactError, did_you_mean

FORMAT, VERSION = "entmtp-heads", 1
STORAGES = ("float16", "int8")
_LARGEST = 127
_GROUP = 64  # columns that share a scale
Tensors = dict[str, Tensor]


def described(shape: HeadShape) -> dict[str, Any]:
    """A shape as plain values; parts that these heads do not have are left out."""
    return {key: value for key, value in asdict(shape).items() if value is not None}


def read_own(config: dict[str, Any], tensors: Tensors) -> Found:
    """Read heads in our own layout.

    Args:
        config: the configuration.
        tensors: the file's tensors.

    Raises:
        ArtefactError: another version, an impossible shape, an unknown storage, or a scale that is missing or belongs to nothing.
    """
    if config.get("version") != VERSION:
        raise ArtefactError(f"the heads have version {config.get('version')} and this tool reads {VERSION}.", "Update entmtp.")
    storage = config.get("storage", STORAGES[0])
    if storage not in STORAGES:
        raise ArtefactError(f"unknown storage {storage!r} of heads.", did_you_mean(str(storage), list(STORAGES)))
    shape = _shape(config)
    return Found(shape, f"entmtp {shape.architecture}", unpack(tensors, storage))


def pack(heads: DraftHeads, compact: bool) -> Tensors:
    """The heads' tensors as they are stored.

    Args:
        compact: int8 for weight matrices, `[rows, columns]`, with `NAME.scale` float16 `[rows, ceil(columns / 64)]`; the rest
            is float16 always.

    Raises:
        ArtefactError: values that are not finite or do not fit.
    """
    packed: Tensors = {}
    for key, value in heads.state_dict().items():
        value = value.detach().cpu()
        if key == "draft_ids":
            packed[key] = value.to(torch.int32)  # token ids are far below its limit
        elif compact and key.endswith(".weight") and value.ndim == 2:
            packed[key], packed[f"{key}.scale"] = _quantise(key, value)
        else:
            packed[key] = value.to(torch.float16)
    for key, value in packed.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise ArtefactError(f"tensor {key} holds values that 16 bits cannot hold.", "The training has diverged.")
    return {key: value.clone(memory_format=torch.contiguous_format) for key, value in packed.items()}


def unpack(tensors: Tensors, storage: str) -> Tensors:
    """The inverse of `pack`: int8 storage becomes float32, 16-bit storage stays as it is, ids become int64."""
    ids = {key: value.long() for key, value in tensors.items() if key == "draft_ids" and not value.is_floating_point()}
    if storage != "int8":
        return tensors | ids
    scales = {key.removesuffix(".scale"): value for key, value in tensors.items() if key.endswith(".scale")}
    wide: Tensors = {}
    for key, value in tensors.items():
        if value.dtype == torch.int8:
            scale = scales.pop(key, None)
            if scale is None or scale.shape != (value.shape[0], -(-value.shape[1] // _GROUP)):
                raise ArtefactError(f"the heads lack the tensor {key}.scale in its shape.", "Get a whole file.")
            wide[key] = value.float() * _spread(scale, value.shape[1])
        elif not key.endswith(".scale") and key not in ids:
            wide[key] = value.float()
    if scales:
        raise ArtefactError(f"the heads hold {min(scales)}.scale, which belongs to no int8 tensor.", "Get a whole file.")
    return wide | ids


def as_stored(heads: DraftHeads, compact: bool = True) -> None:
    """Give heads the values that they will have when they are loaded from a file; saving them then loses nothing."""
    stored = unpack(pack(heads, compact), "int8" if compact else "float16")
    heads.load_state_dict({key: value if key == "draft_ids" else value.float() for key, value in stored.items()})


def _quantise(key: str, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Groups of columns as int8 steps of their own scale.

    Ends where another round changes nothing, so that what was loaded is saved alike.
    """
    wide, columns = weight.float(), weight.shape[1]
    while True:
        padded = F.pad(wide, (0, -columns % _GROUP)).unflatten(1, (-1, _GROUP))
        scales = (padded.abs().amax(2) / _LARGEST).to(torch.float16)
        if not torch.isfinite(scales).all():
            raise ArtefactError(f"tensor {key} holds values that 16 bits cannot hold.", "The training has diverged.")
        spread = _spread(scales, columns)
        rows = torch.where(spread > 0, wide / spread, 0).round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
        again = rows.float() * spread
        if torch.equal(again, wide):
            return rows, scales
        wide = again


def _spread(scales: Tensor, columns: int) -> Tensor:
    """The scale of every number, float32 `[rows, columns]`."""
    return scales.float().repeat_interleave(_GROUP, 1)[:, :columns]


def _shape(config: dict[str, Any]) -> HeadShape:
    try:
        prefix = config["shape"].get("prefix")
        shape = HeadShape(**config["shape"] | {"prefix": PrefixShape(**prefix) if prefix else None})
    except (KeyError, TypeError, AttributeError):
        raise ArtefactError("the head configuration lacks a field of its shape.", "Train or export the heads again.") from None
    numbers = [shape.heads, shape.layers, shape.hidden_size, shape.vocabulary]
    if shape.prefix:
        numbers += [shape.prefix.query_width, shape.prefix.kv_width, shape.prefix.inner]
    if not all(type(number) is int and 0 < number < 2**31 for number in numbers):
        raise ArtefactError(f"the head configuration has impossible counts: {described(shape)}.")
    if shape.architecture not in ARCHITECTURES or shape.lm_heads not in ("target", "shared", "own"):
        raise ArtefactError(f"unknown head architecture {shape.architecture!r} with lm_heads {shape.lm_heads!r}.")
    if (shape.architecture == "hydra++") != (shape.prefix is not None):
        raise ArtefactError(
            f"{shape.architecture} heads {'lack' if shape.prefix is None else 'have'} the sizes of a prefix layer."
        )
    return shape
