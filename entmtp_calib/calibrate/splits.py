"""The options of a run and its three disjoint sets of prompts: search, fit (recalibration, timing, thresholds) and test.

Needs a tokenizer and the target's limits; runs no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from entmtp_calib.calibrate.prompts import PromptSet, load_prompts
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.storage import digest
from entmtp_calib.template import encode

Encoded = list[tuple[str, list[int]]]
"""Prompts as `(id, token ids)`."""
_ROOM = 100  # slots that a prompt must leave free for a tree


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Options of a run that its results depend on; a depth of None becomes one level per head, at most 4."""

    model: str
    heads: str
    task: str
    data: str | None = None
    prompt_style: str = "auto"
    seed: int = 0
    search_prompts: int = 40
    fit_prompts: int = 24
    test_prompts: int = 16
    max_new_tokens: int = 128
    max_nodes: int = 64
    max_depth: int | None = None
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("search_prompts", "fit_prompts", "test_prompts", "max_new_tokens", "max_nodes", "max_depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value}.", "Ask for at least 1.")


@dataclass(frozen=True, slots=True)
class Splits:
    """Prompts of each part, disjoint by conversation."""

    search: Encoded
    fit: Encoded
    test: Encoded

    def about(self) -> dict[str, Any]:
        """Counts and hashes, for run and bank."""
        parts = {"search": self.search, "fit": self.fit, "test": self.test}
        return {name: {"prompts": len(part), "hash": digest(part)} for name, part in parts.items()}


def load_splits(tokenizer: Any, max_positions: int, config: RunConfig) -> tuple[Splits, PromptSet]:
    """Choose, encode and divide the prompts of a run.

    Prompts that do not leave room for the text and a tree are skipped and counted, and so are further pieces of a conversation
    that is used already. If there are fewer than asked for, the parts shrink alike.

    Raises:
        ArtefactError: fewer than three usable prompts.
    """
    wanted = (config.search_prompts, config.fit_prompts, config.test_prompts)
    found = load_prompts(config.task, config.data, None, config.seed)
    room = max_positions - config.max_new_tokens - _ROOM
    usable: Encoded = []
    threads: set[str] = set()
    for prompt in found.prompts:
        if len(usable) == sum(wanted):
            break
        ids = encode(prompt.messages, tokenizer, config.prompt_style)
        if not ids:
            found.skipped["no tokens"] += 1
        elif len(ids) > room:
            found.skipped["too long for the context"] += 1
        elif prompt.thread in threads:
            found.skipped["another piece of a used conversation"] += 1
        else:
            threads.add(prompt.thread)
            usable.append((prompt.id, ids))
    if len(usable) < 3:
        raise ArtefactError(f"{len(usable)} usable prompts are too few: search, fit and test need one each.", "Give more.")
    if len(usable) < sum(wanted):
        found.notes.append(f"{sum(wanted)} prompts were asked for and {len(usable)} can be used; the parts shrink alike")
        spare = len(usable) - 3  # one for each part, the rest in proportion
        exact = [spare * part / sum(wanted) for part in wanted]
        sizes = [1 + int(share) for share in exact]
        for place in sorted(range(3), key=lambda place: int(exact[place]) - exact[place])[: len(usable) - sum(sizes)]:
            sizes[place] += 1
        wanted = (sizes[0], sizes[1], sizes[2])
    a, b = wanted[0], wanted[0] + wanted[1]
    return Splits(usable[:a], usable[a:b], usable[b : b + wanted[2]]), found
