"""Where a file came from: versions, machine and command. Standard library only; imports nothing that it reports on."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("entmtp", "torch", "transformers", "numpy", "datasets", "typer", "rich", "safetensors", "gguf")


def versions() -> dict[str, str]:
    """Installed versions of what a result may depend on; a package that is missing is left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What timings depend on: system, processor, cores and load."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else -1.0
    return {"system": f"{platform.system()} {platform.machine()}", "cpu": _cpu_name(), "cores": os.cpu_count() or 0,
            "load": round(load, 2)}  # fmt: skip


def provenance() -> dict[str, Any]:
    """Versions, source revision and command line, for files that must tell how they were made."""
    return {"versions": versions(), "revision": _revision(), "command": [Path(sys.argv[0]).name, *sys.argv[1:]]}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _revision() -> str:
    """Git revision of the source, with `+` if it was changed; empty when not run from a checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return ""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True, timeout=5)
        dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
