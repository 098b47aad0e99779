"""entmtp: measured banks of draft trees for models with multi-token-prediction heads, and a decoder that runs them.

The names below need neither torch nor transformers, but for `open_bank` and `BankDecoder`, which are loaded when they are first
asked for. See `entmtp_calib.calibrate.bank_decoder` for decoding in five lines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from entmtp_calib.bank import BankTree, TopologyBank, load_bank
from entmtp_calib.errors import ArtefactError, CheckFailed, EntmtpError, UsageError
from entmtp_calib.guard import Guard
from entmtp_calib.policy import Dynamic, Hysteresis, Ladder, Policy, Static
from entmtp_calib.topology import Node, Topology

if TYPE_CHECKING:
    from entmtp_calib.calibrate.bank_decoder import BankDecoder, open_bank

__version__ = "0.1.0"
__all__ = [
    "ArtefactError",
    "BankDecoder",
    "BankTree",
    "CheckFailed",
    "EntmtpError",
    "Guard",
    "Dynamic",
    "Hysteresis",
    "Ladder",
    "Node",
    "Policy",
    "Static",
    "Topology",
    "TopologyBank",
    "UsageError",
    "__version__",
    "load_bank",
    "open_bank",
]


def __getattr__(name: str) -> Any:
    """Names that need torch, when they are asked for."""
    if name in ("BankDecoder", "open_bank"):
        return getattr(import_module("entmtp_calib.calibrate.bank_decoder"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
