"""How sure the heads are of every node that they draft, at every position of written texts, stored one file a text.

A trace tells where the true text lies among the guesses, not which other guesses looked better. The heads are run once more and a
large tree is filled at every position; what any part of it and any number of best nodes accept follows from that (`dynamic.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from entmtp_calib.engine.drafter import Drafter, draft_tree
from entmtp_calib.engine.layout import TreeLayout
from entmtp_calib.engine.noise import Perturbation
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError
from entmtp_calib.evidence import Trace
from entmtp_calib.storage import digest, load_arrays, save_arrays
from entmtp_calib.topology import Topology

Floats = NDArray[np.float32]


@torch.inference_mode()
def path_values(
    target: Target, drafter: Drafter, drafted: Topology, prompt: Sequence[int], trace: Trace, ranking: Perturbation | None = None
) -> Floats:
    """Log of the path value of every drafted node at every position of the text, float32 `[n, nodes]`, nodes in sorted order."""
    layout = TreeLayout(drafted, target.device)
    ids = torch.tensor([[*prompt, *trace.tokens.tolist()]], device=target.device)
    columns = torch.arange(ids.shape[1], device=target.device)
    out = target.forward(ids, None, columns[None], keep=columns[:1])
    states = drafter.read(out.hidden[0])[len(prompt) - 1 : -1]
    values = []
    for here in range(len(trace)):
        place = len(prompt) + here
        root, position = ids[0, place : place + 1], columns[place : place + 1]
        draft = draft_tree(drafter, layout, states[here : here + 1], root, False, ranking, position, paths=True)
        assert draft.path_logp is not None
        values.append(draft.path_logp[1:])
    return np.asarray(torch.stack(values).cpu().numpy(), np.float32)


def stored_values(
    target: Target, drafter: Drafter, drafted: Topology, prompts: Sequence[tuple[str, Sequence[int]]], traces: Sequence[Trace],
    ranking: Perturbation | None, folder: Path, on_prompt: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Floats]:  # fmt: skip
    """`path_values` of several texts, taken from files where they are there.

    Args:
        folder: has one folder for every drafted tree.
        on_prompt: called with the number of texts that are done, and of how many.

    Raises:
        ArtefactError: a file that is damaged or of another text.
    """
    own, found = values_folder(folder, drafted), []
    for index, ((_name, ids), trace) in enumerate(zip(prompts, traces, strict=True)):
        path = own / f"{index:05d}.npz"
        if not path.exists():
            values = path_values(target, drafter, drafted, ids, trace, ranking)
            save_arrays(path, {"values": values, "tokens": trace.tokens})
        found.append(load_values(path, drafted, trace))
        on_prompt(index + 1, len(traces))
    return found


def values_folder(folder: Path, drafted: Topology) -> Path:
    """Where the files of a drafted tree are: its own folder, `00000.npz` and so on inside."""
    return folder / digest(drafted.sorted().to_lists())[7:19]


def load_values(path: Path, drafted: Topology, trace: Trace) -> Floats:
    """What `path_values` gave for a text, from its file.

    Raises:
        ArtefactError: a file that is absent, damaged or of another text.
    """
    arrays = load_arrays(path, "file of path values")
    shapes = {name: array.shape for name, array in arrays.items()}
    wanted = {"values": (len(trace), drafted.size), "tokens": trace.tokens.shape}
    if shapes != wanted or not np.array_equal(arrays["tokens"], trace.tokens):
        raise ArtefactError(f"{path} is of another text.", "Run again with --fresh.")
    return arrays["values"]
