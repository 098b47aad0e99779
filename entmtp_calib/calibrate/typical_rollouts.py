"""Rollouts over a bank where the text depends on the tree, kept one file a prompt: recorded steps, and policies by themselves.

Runs the decoder and stores what it did. Knows nothing of costs or of how policies are fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.engine.acceptance import Rule
from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.recording import Recorder
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.errors import ArtefactError
from entmtp_calib.evidence import Recorded
from entmtp_calib.policy import Policy, Static
from entmtp_calib.signals import Signal
from entmtp_calib.storage import arrays_bytes, digest, load_arrays, write_atomically
from entmtp_calib.topology import Topology

Prompts = Sequence[tuple[str, Sequence[int]]]
Walks = tuple[list[NDArray[np.int32]], list[NDArray[np.int32]]]
"""Of every text: the tree of each step, and the tokens that it committed."""


class Evidence(Protocol):
    """Where a fit gets rollouts from."""

    def record(self, part: str, policy: Policy, signal: Signal | None) -> list[Recorded]:
        """Steps of a policy on a part of the prompts, seen by every tree."""

    def decode(self, part: str, policy: Policy, signal: Signal | None) -> Walks:
        """Steps of a policy by itself."""


class Rollouts:
    """Rollouts of one bank; what is in the folder is not made again.

    Args:
        parts: prompts by the name of their part; folder: absent or complete files; tick: told of what how much is done.
    """

    def __init__(
        self, pair: Pair, trees: Sequence[Topology], parts: Mapping[str, Prompts], stop: StopRule, rule: Rule, folder: Path,
        tick: Callable[[str, int, int], None] = lambda _what, _done, _of: None,
    ) -> None:  # fmt: skip
        self.pair, self.trees, self.parts = pair, list(trees), parts
        self.stop, self.rule, self.folder, self.tick = stop, rule, folder, tick

    def record(self, part: str, policy: Policy, signal: Signal | None) -> list[Recorded]:
        recorder = Recorder(self.pair.target, self.pair.heads, self.trees, policy, signal, self.rule)

        def made(name: str, ids: Sequence[int]) -> dict[str, NDArray[Any]]:
            found = recorder.record(name, ids, self.stop)
            return {field: getattr(found, field) for field in Recorded.__slots__ if field != "prompt_id"}

        return [Recorded(prompt_id=name, **arrays) for name, arrays in self._kept("recorded", part, policy, signal, made)]

    def decode(self, part: str, policy: Policy, signal: Signal | None) -> Walks:
        decoder = Decoder(self.pair.target, self.pair.heads, self.trees, policy, signal, self.rule)

        def made(_name: str, ids: Sequence[int]) -> dict[str, NDArray[Any]]:
            steps = list(decoder.steps(ids, self.stop))
            return {
                "index": np.array([step.index for step in steps], np.int32),
                "tokens": np.array([len(step.tokens) for step in steps], np.int32),
            }

        found = [arrays for _name, arrays in self._kept("own", part, policy, signal, made)]
        return [arrays["index"] for arrays in found], [arrays["tokens"] for arrays in found]

    def _kept(
        self, kind: str, part: str, policy: Policy, signal: Signal | None,
        made: Callable[[str, Sequence[int]], dict[str, NDArray[Any]]],
    ) -> list[tuple[str, dict[str, NDArray[Any]]]]:  # fmt: skip
        """What is made of every prompt of a part, from its file where there is one."""
        key = digest([[tree.to_lists() for tree in self.trees], _policy_key(policy, signal)]).removeprefix("sha256:")[:16]
        found = []
        for place, (name, ids) in enumerate(self.parts[part]):
            path = self.folder / f"{kind}-{part}-{key}-{place:05d}.npz"
            if not path.exists():
                write_atomically(path, arrays_bytes(made(name, ids) | {"prompt_id": np.frombuffer(name.encode(), np.uint8)}))
            arrays = load_arrays(path, "rollout")
            if arrays.pop("prompt_id").tobytes() != name.encode():
                raise ArtefactError(f"{path} is a rollout of another prompt than {name!r}.", "Use --fresh.")
            found.append((name, arrays))
            self.tick(f"rollouts of {policy.kind} ({part})", place + 1, len(self.parts[part]))
        return found


def _policy_key(policy: Policy, signal: Signal | None) -> Any:
    """What a policy's steps follow from: policies that never switch are one for each tree, whatever they are called."""
    if len(policy.members) == 1:
        policy, signal = Static(policy.members[0]), None
    return [policy.kind, policy.to_json(), signal.to_json() if signal else None]
