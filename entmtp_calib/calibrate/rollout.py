"""Self-rollouts: the target writes, the heads look on, and a trace is kept for every prompt.

Turns token ids into `Trace` values and stores them, one file per prompt. Knows nothing of trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.engine.writer import write
from entmtp_calib.errors import ArtefactError
from entmtp_calib.evidence import Trace
from entmtp_calib.storage import load_arrays, save_arrays

BATCH = 16


def self_rollout(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[tuple[str, Sequence[int]]],
    stop: StopRule,
    folder: Path,
    on_prompt: Callable[[int], None] | None = None,
) -> list[Trace]:
    """Traces of the greedy texts of all prompts, taken from the folder where they exist.

    Args:
        prompts: `(id, token ids)`.
        folder: one `.npz` a prompt, absent or complete.
        on_prompt: called with the number of traces that are done.
    """
    paths = [folder / f"{index:05d}.npz" for index in range(len(prompts))]
    missing = [index for index, path in enumerate(paths) if not path.exists()]
    for start in range(0, len(missing), BATCH):
        members = missing[start : start + BATCH]
        for place, text in write(target, [prompts[index][1] for index in members], stop, BATCH):
            index = members[place]
            trace = trace_text(target, drafter, prompts[index][0], prompts[index][1], text)
            save_trace(paths[index], trace)
        if on_prompt:
            on_prompt(len(prompts) - len(missing) + min(start + BATCH, len(missing)))
    traces = [load_trace(path) for path in paths]
    for trace, (name, _ids) in zip(traces, prompts, strict=True):
        if trace.prompt_id != name:
            raise ArtefactError(f"a rollout in {folder} is of prompt {trace.prompt_id!r}, not {name!r}.", "Use --fresh.")
    return traces


def save_trace(path: Path, trace: Trace) -> None:
    """Write a trace atomically."""
    arrays = {name: getattr(trace, name) for name in Trace.__slots__ if name != "prompt_id"}
    save_arrays(path, arrays | {"prompt_id": np.frombuffer(trace.prompt_id.encode(), np.uint8)})


def load_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        ArtefactError: missing, damaged or foreign.
    """
    arrays = load_arrays(path, "rollout")
    try:
        name = arrays.pop("prompt_id").tobytes().decode()
        return Trace(prompt_id=name, **arrays)
    except (KeyError, TypeError, UnicodeDecodeError):
        raise ArtefactError(f"{path} is not a rollout.", "Delete it and run the command again.") from None
