"""Two parts of published head files that allow more than one reading: vocabulary maps and rotary frequencies.

Takes tensors and configuration values; refuses what contradicts itself. Knows nothing of heads or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from entmtp_calib.errors import ArtefactError

_FINE = 1e-3  # frequencies below it have lost their precision in float16
_FORMS = ("offset", "absolute")


def number(config: Mapping[str, Any], key: str) -> int | float:
    """A number of a configuration that is not negative; 0 where it is not said.

    Raises:
        ArtefactError: something else stands there.
    """
    value = config.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**31:
        raise ArtefactError(f"the configuration says {key}={value!r}, which is no count or size.", "Correct or remove it.")
    return value


def draft_ids(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[Tensor | None, list[str]]:
    """The target's ids of a reduced draft vocabulary, from the published map.

    `d2t` int64 `[draft vocabulary]` holds either the ids or their distance from the index. Where `t2d`, bool `[vocabulary]`, is
    there, it tells which; else the reading that is possible; else `d2t_form` in the configuration; else distances.

    Returns:
        int64 `[draft vocabulary]`, None without a map; and what to tell the user.

    Raises:
        ArtefactError: a map with no valid reading, or one that contradicts `t2d` or the configuration.
    """
    if "d2t" not in tensors:
        return None, []
    stored = tensors["d2t"]
    if stored.ndim != 1 or not len(stored) or stored.is_floating_point() or stored.dtype == torch.bool:
        raise ArtefactError("the vocabulary map d2t is no list of integers.", "Get a whole file.")
    values = stored.long()
    offset = values + torch.arange(len(values))
    readings = {}
    if bool((offset.diff() > 0).all()) and int(offset[0]) >= 0:
        readings["offset"] = offset
    if len(values.unique()) == len(values) and int(values.min()) >= 0:
        readings["absolute"] = values
    if not readings:
        raise ArtefactError("the vocabulary map d2t is valid neither as offsets nor as token ids.", "Get a whole file.")
    if "t2d" in tensors:
        readings = _marked(readings, tensors["t2d"])
    return _chosen(readings, config.get("d2t_form"))


def _marked(readings: dict[str, Tensor], t2d: Tensor) -> dict[str, Tensor]:
    """Readings whose ids are those that the other map marks."""
    marked = t2d.flatten().bool().nonzero()[:, 0]
    kept = {form: ids for form, ids in readings.items() if torch.equal(ids.sort().values, marked)}
    if not kept:
        size = len(next(iter(readings.values())))
        raise ArtefactError(
            f"the vocabulary maps disagree: t2d marks {len(marked)} tokens, which are not the {size} of d2t.", "Get a whole file."
        )
    return kept


def _chosen(readings: dict[str, Tensor], said: Any) -> tuple[Tensor, list[str]]:
    if said is not None:
        if said not in _FORMS:
            raise ArtefactError(f"the configuration says d2t_form={said!r}.", f"Known: {', '.join(_FORMS)}.")
        if said not in readings:
            raise ArtefactError(
                f"the configuration says d2t_form={said} and the map is not of that form.", "Correct one of them."
            )
        return readings[said], []
    form = next(form for form in _FORMS if form in readings)
    doubt = "the vocabulary map can be read as offsets and as token ids; it is read as offsets, d2t_form in config.json decides"
    return readings[form], [doubt] if len(readings) == 2 else []


def rotary(config: Mapping[str, Any], frequencies: Tensor | None, query_width: int) -> tuple[int, float]:
    """Columns of an attention head and base of its rotary embedding, 0 where neither configuration nor file says it.

    Args:
        frequencies: the stored `inv_freq`, `[head columns / 2]`, or None.
        query_width: columns of the queries, all heads together.

    Raises:
        ArtefactError: configuration and file disagree, or the frequencies are not powers of one base.
    """
    rope = config.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}
    if config.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        raise ArtefactError("the prefix layer scales its rotary embedding, which is not supported.", "Use other heads.")
    theta = float(number(config, "rope_theta") or number(rope, "rope_theta"))
    columns, heads = int(number(config, "head_dim")), int(number(config, "num_attention_heads"))
    if heads and not columns:
        if query_width % heads:
            raise ArtefactError(
                f"the prefix layer has {query_width} query columns, no whole {heads} heads.", "Correct config.json."
            )
        columns = query_width // heads
    if frequencies is None:
        return columns, theta
    seen_columns, seen = 2 * len(frequencies), _base_of(frequencies)
    if columns and columns != seen_columns:
        raise ArtefactError(f"the configuration says heads of {columns} columns and the file holds {seen_columns}.")
    if theta and seen and abs(theta / seen - 1) > 0.02:
        raise ArtefactError(f"the configuration says rope_theta={theta:g} and the file holds {seen:g}.")
    return seen_columns, theta or seen


def _base_of(frequencies: Tensor) -> float:
    """The base whose powers the frequencies are: `base ** (-i / n)` for i below n."""
    if frequencies.ndim != 1 or not frequencies.is_floating_point() or not len(frequencies):
        raise ArtefactError("the rotary frequencies inv_freq are no list of numbers.", "Get a whole file.")
    values, count = frequencies.double(), len(frequencies)
    fine = int((values >= _FINE).sum()) - 1  # the last frequency that every dtype holds well has the longest lever
    if fine < 1:
        return 0.0
    base = float(values[fine]) ** (-count / fine)
    near = float(f"{base:.1e}")  # 16-bit files blur a base like 10000
    if abs(near / base - 1) < 2 * torch.finfo(frequencies.dtype).eps * count / fine:
        base = near
    if not torch.allclose(values, base ** (-torch.arange(count).double() / count), rtol=0.02, atol=1e-6):
        raise ArtefactError("the prefix layer scales its rotary embedding, which is not supported.", "Use other heads.")
    return base
