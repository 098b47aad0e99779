"""entmtp: measured banks of draft trees for models with multi-token-prediction heads, and a decoder that runs them.

The names below need neither torch nor transformers; `entmtp_calib.engine` does.
"""

from entmtp_calib.bank import BankTree, TopologyBank, load_bank
from entmtp_calib.errors import ArtefactError, CheckFailed, EntmtpError, UsageError
from entmtp_calib.policy import Hysteresis, Ladder, Policy, Static
from entmtp_calib.topology import Node, Topology

__version__ = "0.1.0"
__all__ = [
    "ArtefactError",
    "BankTree",
    "CheckFailed",
    "EntmtpError",
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
]
