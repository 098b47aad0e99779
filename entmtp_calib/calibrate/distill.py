"""Self-distillation: the target writes the text that heads are trained on.

Texts are kept in shards that are absent or complete, so a killed job goes on where it stopped. It knows prompts as token ids
and texts as token ids, and nothing of heads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from entmtp_calib.engine.acceptance import Exact
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.writer import write
from entmtp_calib.errors import ArtefactError
from entmtp_calib.storage import load_arrays, save_arrays

SHARD_PROMPTS = 256


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what the target wrote after it, as token ids."""

    prompt: np.ndarray
    written: np.ndarray


def distill(
    target: Target,
    prompts: Sequence[Sequence[int]],
    stop: StopRule,
    folder: Path,
    *,
    batch: int = 64,
    tokens: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    on_shard: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Let the target continue every prompt, shard by shard.

    A prompt whose text is in the folder already, in whatever shard, is not written again: prompts can be added to a recipe.

    Args:
        prompts: token ids; shard k holds prompts `256 k … 256 k + 255`.
        folder: where the shards are; those that are there are not written again.
        tokens: stop after the shard that reaches this many written tokens; None for all prompts.
        temperature, seed: 0 for greedy text, else sampled; a prompt's noise depends on its tokens and the seed.
        on_shard: called with (shards done, tokens written so far).

    Returns:
        The shards in order.

    Raises:
        ArtefactError: the folder holds texts that other end tokens, caps or temperatures made.
    """
    manner = (temperature, seed) if temperature else ()
    known = _known(folder, stop, manner)
    paths: list[Path] = []
    total = 0
    for start in range(0, len(prompts), SHARD_PROMPTS):
        path = folder / f"{start // SHARD_PROMPTS:05d}.npz"
        members = prompts[start : start + SHARD_PROMPTS]
        key = _key(members, stop, manner)
        shard = load_arrays(path, "shard of distilled text") if path.exists() else None
        if shard is None or shard["key"].tobytes() != key:
            shard = _write_shard(target, members, stop, batch, temperature, seed, known)
            marks = {"key": key, "manner": _key([], stop, manner)}
            shard |= {name: np.frombuffer(value, np.uint8) for name, value in marks.items()}
            save_arrays(path, shard)
        paths.append(path)
        total += int(shard["written_lengths"].sum())
        if on_shard:
            on_shard(len(paths), total)
        if tokens is not None and total >= tokens:
            break
    return paths


def read_shard(path: Path) -> list[Text]:
    """The texts of one shard, in the order of the prompts."""
    shard = load_arrays(path, "shard of distilled text")
    prompts = np.split(shard["prompts"].astype(np.int64), np.cumsum(shard["prompt_lengths"])[:-1])
    written = np.split(shard["written"].astype(np.int64), np.cumsum(shard["written_lengths"])[:-1])
    return [Text(prompt, text) for prompt, text in zip(prompts, written, strict=True)]


def shard_arrays(texts: Sequence[Text]) -> dict[str, np.ndarray]:
    """What `read_shard` reads, for a file that may hold more."""
    return {
        "prompts": np.concatenate([text.prompt for text in texts]).astype(np.uint32),
        "prompt_lengths": np.asarray([len(text.prompt) for text in texts], np.uint32),
        "written": np.concatenate([text.written for text in texts]).astype(np.uint32),
        "written_lengths": np.asarray([len(text.written) for text in texts], np.uint32),
    }


def _known(folder: Path, stop: StopRule, manner: tuple[float, ...]) -> dict[bytes, np.ndarray]:
    """Texts that the folder holds, by their prompts."""
    known: dict[bytes, np.ndarray] = {}
    for path in sorted(folder.glob("*.npz")):
        mark = load_arrays(path, "shard of distilled text").get("manner")
        if mark is not None and mark.tobytes() != _key([], stop, manner):
            raise ArtefactError(f"{path} was distilled with other limits or temperatures.", "Use another folder.")
        known.update({text.prompt.tobytes(): text.written for text in read_shard(path)})
    return known


def _write_shard(
    target: Target, prompts: Sequence[Sequence[int]], stop: StopRule, batch: int, temperature: float, seed: int,
    known: dict[bytes, np.ndarray],
) -> dict[str, np.ndarray]:  # fmt: skip
    places = [np.asarray(prompt, np.int64).tobytes() for prompt in prompts]
    missing = [index for index, place in enumerate(places) if place not in known]
    seeds = [int.from_bytes(_key([prompts[index]], stop, (seed,))[:7]) for index in missing]
    for number, text in write(target, [prompts[index] for index in missing], stop, batch, Exact(temperature), seeds):
        known[places[missing[number]]] = np.asarray(text, np.int64)
    return shard_arrays([Text(np.asarray(prompt, np.int64), known[place]) for prompt, place in zip(prompts, places, strict=True)])


def _key(prompts: Sequence[Sequence[int]], stop: StopRule, more: tuple[float, ...]) -> bytes:
    text = repr(([list(map(int, prompt)) for prompt in prompts], sorted(stop.end_ids), stop.max_new_tokens, *stop.strings, *more))
    return hashlib.sha256(text.encode()).digest()
