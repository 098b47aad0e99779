"""What the shell completes: options that take one of a few values, and the trees of the bank that the line names.

Nothing here loads a model or a heavy module. Where nothing is offered, the shell completes names of files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import typer


def one_of(*values: str) -> Callable[[], list[str]]:
    """A completion by fixed values."""
    return lambda: list(values)


devices = one_of("auto", "cpu", "cuda", "mps")
dtypes = one_of("auto", "float32", "bfloat16", "float16")
tasks = one_of("humaneval", "gsm8k", "sharegpt", "python-stdlib")
policies_of_trees = one_of("auto", "static", "ladder", "hysteresis")
policies = one_of(*policies_of_trees(), "dynamic")
policies_and_ar = one_of(*policies(), "ar")
turns = one_of("first", "all")
long_prompts = one_of("skip", "cut")
styles = one_of("auto", "chat", "raw", "vicuna")
bank_rules = one_of("hull", "conditional")
acceptances = one_of("exact", "typical")
graph_modes = one_of("auto", "on", "off")
schedules = one_of("trace", "joint", "paper")
presets = one_of("paper")
architectures = one_of("hydra", "hydra++", "medusa")
layouts = one_of("hydra", "medusa")
labels = one_of("soft", "hard")
models = one_of("smollm2")
signals = one_of(
    "auto", *(f"{kind}_{depth}" for kind in ("path_value", "expected_chain") for depth in range(1, 10)),
    "base_top1", "entropy", "entropy_ema_4", "entropy_ema_16", "accepted_ema_8", "combined",
)  # fmt: skip


def heads() -> list[str]:
    """Heads that ship with the package."""
    folder = files("entmtp_calib.data") / "heads"
    return sorted(item.name for item in folder.iterdir() if item.is_dir()) if folder.is_dir() else []


def trees(ctx: typer.Context) -> list[str]:
    """Labels of the trees in the bank, run folder or tree file that stands on the line already; none where none can be read."""
    return _labels(_document(ctx))


def drawable(ctx: typer.Context) -> list[str]:
    """The same, and the policies of a bank that draft a tree of their own."""
    document = _document(ctx)
    try:
        drafting = [str(name) for name, policy in document["policies"].items() if "drafted" in policy]
    except (LookupError, TypeError, AttributeError):
        drafting = []
    return _labels(document) + drafting


def _labels(document: dict[str, Any]) -> list[str]:
    try:
        return [str(tree["label"]) for tree in document["trees"]]
    except (LookupError, TypeError):
        return []


def _document(ctx: typer.Context) -> dict[str, Any]:
    """The file that the line names, or nothing."""
    named = [ctx.params.get("bank") or ctx.params.get("path"), *ctx.args]  # behind an open option, arguments are not told apart
    path = Path(str(next(filter(None, named), "")))
    try:
        found = json.loads((path / "bank.json" if path.is_dir() else path).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
