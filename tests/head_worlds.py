"""Head files in the published layouts, made by hand: the keys that the savers of Hydra and Medusa write, with random values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from conftest import VOCAB
from safetensors.torch import save_file
from torch import Tensor

H = 32
Tensors = dict[str, Tensor]
HYDRA_CONFIG = {"hydra_num_heads": 3, "hydra_num_layers": 2, "hydra_head_arch": "mlp", "grounded_heads": True}
PREFIX_CONFIG = HYDRA_CONFIG | {"hydra_head_arch": "prefix-mlp", "hidden_state_offset": 0}


def hydra_tensors(
    heads: int = 3,
    layers: int = 2,
    lm_heads: int = VOCAB,
    lm_bias: bool = True,
    bias: bool = True,
    tied: bool = True,
    grounded: bool = True,
    shifted: bool = False,
) -> Tensors:
    """A state dict of Hydra `mlp` heads.

    Args:
        lm_heads: rows of the LM heads, 0 for none.
        tied: whether the later blocks of a head are one object.
        shifted: whether dropouts stand between the modules and move their indices.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, size: float = 0.1) -> Tensor:
        return size * torch.randn(*shape, generator=generator)

    made: Tensors = {"input_embed_fn.weight": random(VOCAB, H, size=1)}

    def linear(name: str, outputs: int, inputs: int) -> None:
        made[f"{name}.weight"] = random(outputs, inputs)
        made[f"{name}.bias"] = random(outputs)

    for i in range(heads):
        block = [f"hydra_mlp.{i}.{2 * j + 1 if shifted else j}" for j in range(layers)]
        for j in range(layers):
            if j == 0 and grounded:
                linear(f"{block[0]}.linear", H, (i + 2) * H)
                linear(f"{block[0]}.res_connection", H, (i + 2) * H)
            elif tied and j > (1 if grounded else 0):
                for part in ("weight", "bias"):
                    made[f"{block[j]}.linear.{part}"] = made[f"{block[j - 1]}.linear.{part}"]
            else:
                linear(f"{block[j]}.linear", H, H)
        if lm_heads:
            name = f"hydra_lm_head.{i}.1" if shifted else f"hydra_lm_head.{i}"
            made[f"{name}.weight"] = random(lm_heads, H, size=1)
            if lm_bias:
                made[f"{name}.bias"] = random(lm_heads, size=1)
    return made if bias else {key: value for key, value in made.items() if "mlp" not in key or not key.endswith(".bias")}


def prefix_tensors(query: int = H, kv: int = H // 2, inner: int = 48, head_dim: int = 8, theta: float = 10_000.0) -> Tensors:
    """The prefix layer of Hydra++: one Llama layer with its final norm, an embedding that nobody reads, and a buffer."""
    generator = torch.Generator().manual_seed(1)
    widths = {"self_attn.q_proj": (query, H), "self_attn.k_proj": (kv, H), "self_attn.v_proj": (kv, H),
              "self_attn.o_proj": (H, query), "mlp.gate_proj": (inner, H), "mlp.up_proj": (inner, H),
              "mlp.down_proj": (H, inner)}  # fmt: skip
    lead = "prefix_embeding_layer.layers.0."
    made = {f"{lead}{name}.weight": 0.3 * torch.randn(*shape, generator=generator) for name, shape in widths.items()}
    for name in (f"{lead}input_layernorm", f"{lead}post_attention_layernorm", "prefix_embeding_layer.norm"):
        made[f"{name}.weight"] = 1 + 0.2 * torch.randn(H, generator=generator)
    made["prefix_embeding_layer.embed_tokens.weight"] = torch.randn(VOCAB, H, generator=generator)
    made[f"{lead}self_attn.rotary_emb.inv_freq"] = theta ** -(torch.arange(head_dim // 2).float() * 2 / head_dim)
    return made


def medusa_tensors(heads: int = 4, layers: int = 1, lead: str = "", lm_heads: int = VOCAB, tied: bool = False) -> Tensors:
    """A state dict of Medusa heads; `lead` is what some savers put before every name."""
    generator = torch.Generator().manual_seed(0)
    made: Tensors = {}
    for i in range(heads):
        for j in range(layers):
            weight, bias = 0.1 * torch.randn(H, H, generator=generator), 0.1 * torch.randn(H, generator=generator)
            made[f"{lead}{i}.{j}.linear.weight"] = made[f"{lead}{i}.0.linear.weight"] if tied and j else weight
            made[f"{lead}{i}.{j}.linear.bias"] = made[f"{lead}{i}.0.linear.bias"] if tied and j else bias
        if lm_heads:
            made[f"{lead}{i}.{layers}.weight"] = torch.randn(lm_heads, H, generator=generator)
    return made


def stored_once(tensors: Tensors) -> Tensors:
    """What a saver keeps that stores every object under its first name only."""
    seen: set[int] = set()
    kept = {}
    for key in sorted(tensors):
        if tensors[key].data_ptr() not in seen:
            seen.add(tensors[key].data_ptr())
            kept[key] = tensors[key]
    return kept


def write(folder: Path, config: Mapping[str, object] | None, tensors: Tensors, name: str) -> Path:
    """Write a folder of heads; `name` says the kind of the weight file."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file({key: value.clone() for key, value in tensors.items()}, folder / name)
    else:
        torch.save(tensors, folder / name)
    return folder


def write_shards(folder: Path, config: Mapping[str, object], tensors: Tensors, stem: str, kind: str, count: int = 3) -> Path:
    """Write a folder of heads in several files with an index of them."""
    placed = {}
    for number in range(count):
        name = f"{stem}-{number + 1:05}-of-{count:05}.{kind}"
        part = dict(sorted(tensors.items())[number::count])
        write(folder, config, part, name)
        placed |= dict.fromkeys(part, name)
    (folder / f"{stem}.{kind}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder
