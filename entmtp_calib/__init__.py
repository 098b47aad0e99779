"""entmtp: measured banks of draft trees for models with multi-token-prediction heads, and a decoder that runs them.

Every name below is loaded when it is first asked for, so that a command line answers at once; only `open_bank` and `BankDecoder`
need torch and transformers. See `entmtp_calib.calibrate.bank_decoder` for decoding in five lines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entmtp_calib.bank import BankTree, TopologyBank, load_bank
    from entmtp_calib.calibrate.bank_decoder import BankDecoder, open_bank
    from entmtp_calib.errors import ArtefactError, CheckFailed, EntmtpError, UsageError
    from entmtp_calib.guard import Guard
    from entmtp_calib.policy import Dynamic, Hysteresis, Ladder, Policy, Static
    from entmtp_calib.topology import Node, Topology

__version__ = "0.1.0"
__all__ = [
    "ArtefactError",
    "BankDecoder",
    "BankTree",
    "CheckFailed",
    "Dynamic",
    "EntmtpError",
    "Guard",
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
_HOMES = {
    "bank": ("BankTree", "TopologyBank", "load_bank"),
    "calibrate.bank_decoder": ("BankDecoder", "open_bank"),
    "errors": ("ArtefactError", "CheckFailed", "EntmtpError", "UsageError"),
    "guard": ("Guard",),
    "policy": ("Dynamic", "Hysteresis", "Ladder", "Policy", "Static"),
    "topology": ("Node", "Topology"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A name of the list above, from where it lives."""
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
