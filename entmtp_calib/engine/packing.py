"""Linear layers with their weights in the order that the CPU's matrix kernels read, packed once at load.

Without it, oneDNN reorders a weight at every call. Results are the same bits in bfloat16, and the same up to rounding in float32.
The operators are torch's own, those that its compiler uses for frozen weights; where they are missing or disagree with the plain
layer, nothing is packed. Knows modules only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ROWS = 16  # for how many rows the order is best; others work, a little slower
_BOUND = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this machine packs weights of this kind."""
    if device.type != "cpu" or dtype not in _BOUND:
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        weight = torch.linspace(-1, 1, 48 * 32, dtype=torch.float32).view(48, 32).to(dtype)
        rows = torch.linspace(-1, 1, 3 * 32, dtype=torch.float32).view(1, 3, 32).to(dtype)
        got, wanted = packed_linear(rows, pack(weight), None).float(), F.linear(rows, weight).float()
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return bool((got - wanted).norm() <= _BOUND[dtype] * wanted.norm())


def pack(weight: Tensor) -> Any:
    """A weight `[out, in]` in the kernels' order; only `packed_linear` can read it."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)


def packed_linear(x: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
    """What `F.linear` gives, `[..., out]`, with a packed weight."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return result


class PackedLinear(nn.Linear):
    """A frozen linear layer that computes with a packed copy of its weight.

    Args:
        keep: whether the plain weight stays too, for others that read it.
    """

    def __init__(self, layer: nn.Linear, keep: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight = layer.weight if keep else nn.Parameter(layer.weight.new_empty(0), requires_grad=False)
        self.bias = layer.bias
        self.packed = pack(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        return packed_linear(x, self.packed, self.bias)


def pack_linears(module: nn.Module, keep: set[int] | None = None) -> int:
    """Replace the linear layers of a frozen module, in place.

    Args:
        keep: ids of weights that others read, as from `id(layer.weight)`; None keeps all.

    Returns:
        How many layers were packed.
    """
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child, keep is None or id(child.weight) in keep))
                count += 1
    return count
