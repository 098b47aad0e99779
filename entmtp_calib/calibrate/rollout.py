"""Self-rollouts: the target writes, the heads look on, and a trace is kept for every prompt.

Turns token ids into `Trace` values and stores them, one file per prompt. Knows nothing of trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from entmtp_calib.calibrate.farm import Farm, Work
from entmtp_calib.engine.acceptance import GREEDY, Exact
from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.engine.writer import write
from entmtp_calib.errors import ArtefactError
from entmtp_calib.evidence import Trace
from entmtp_calib.storage import arrays_bytes, load_arrays, write_atomically

BATCH = 16
_POSITIONS = BATCH * 1024


def self_rollout(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[tuple[str, Sequence[int]]],
    stop: StopRule,
    folder: Path,
    on_prompt: Callable[[int], None] | None = None,
    rule: Exact = GREEDY,
    farm: Farm | None = None,
) -> list[Trace]:
    """Traces of the target's own texts after all prompts, taken from the folder where they exist.

    Args:
        prompts: `(id, token ids)`.
        folder: one `.npz` a prompt, absent or complete.
        on_prompt: called with the number of traces that are done.
        rule: how tokens are chosen.
        farm: processes that share the work; it knows it by the folder's name.
    """
    paths = [folder / f"{index:05d}.npz" for index in range(len(prompts))]
    batches = [batch for batch in _batches(prompts) if not all(paths[index].exists() for index in batch)]
    done = len(prompts) - sum(map(len, batches))

    def keep(members: list[int], result: bytes) -> None:
        nonlocal done
        for index, data in zip(members, split_files(result), strict=True):
            write_atomically(paths[index], data)
        done += len(members)
        if on_prompt:
            on_prompt(done)

    (farm or Farm()).run(folder.name, batches, trace_work(target, drafter, prompts, stop, rule), keep)
    traces = [load_trace(path) for path in paths]
    for trace, (name, _ids) in zip(traces, prompts, strict=True):
        if trace.prompt_id != name:
            raise ArtefactError(f"a rollout in {folder} is of prompt {trace.prompt_id!r}, not {name!r}.", "Use --fresh.")
    return traces


def _batches(prompts: Sequence[tuple[str, Sequence[int]]]) -> list[list[int]]:
    """Indices of prompts that run together: of like length, and the same whatever is done already, since in 16 bits a text can
    depend on its neighbours."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index][1]))
    return [order[start : start + BATCH] for start in range(0, len(order), BATCH)]


def trace_work(
    target: Target, drafter: Drafter, prompts: Sequence[tuple[str, Sequence[int]]], stop: StopRule, rule: Exact = GREEDY
) -> Work:
    """What a process does with a batch of prompts, given by their indices: the files of their traces, one after the other."""

    def work(members: list[int]) -> bytes:
        texts = dict(write(target, [prompts[index][1] for index in members], stop, BATCH, rule, positions=_POSITIONS))
        files = []
        for place, index in enumerate(members):
            name, ids = prompts[index]
            files.append(trace_bytes(trace_text(target, drafter, name, ids, texts[place], rule.ranking)))
        return b"".join(len(data).to_bytes(8) + data for data in files)

    return work


def split_files(joined: bytes) -> list[bytes]:
    """Take files apart that were put one after the other, each behind its length in 8 bytes."""
    files, at = [], 0
    while at < len(joined):
        end = at + 8 + int.from_bytes(joined[at : at + 8])
        files.append(joined[at + 8 : end])
        at = end
    return files


def trace_bytes(trace: Trace) -> bytes:
    """A trace as the bytes of its file."""
    arrays = {name: getattr(trace, name) for name in Trace.__slots__ if name != "prompt_id"}
    return arrays_bytes(arrays | {"prompt_id": np.frombuffer(trace.prompt_id.encode(), np.uint8)})


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
