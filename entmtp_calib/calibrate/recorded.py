"""Recorded conversations as training text: others wrote the answers, the target only reads them.

Reading is several times quicker than writing, and the loss is against the target's own distribution all the same. Kept in shards
like distilled text. Knows prompts and token ids; nothing of heads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from entmtp_calib.calibrate.distill import SHARD_PROMPTS, Text, shard_arrays
from entmtp_calib.calibrate.prompts import Prompt
from entmtp_calib.storage import load_arrays, save_arrays
from entmtp_calib.template import encode


def conversations(prompts: Sequence[Prompt], tokenizer: Any, max_prompt: int, max_tokens: int) -> Iterator[Text]:
    """Texts of the conversations that go on after a first answer, in the order of the prompts.

    Args:
        prompts: every question of every conversation, with all that was said before it.
        max_prompt: longest first question in tokens; max_tokens: what is kept behind it.
    """
    longest: dict[str, Prompt] = {}
    for prompt in prompts:
        name = prompt.id.rpartition("#")[0] or prompt.id
        if name not in longest or len(prompt.messages) > len(longest[name].messages):
            longest[name] = prompt
    for prompt in longest.values():
        asked = next((index for index, (role, _text) in enumerate(prompt.messages) if role == "assistant"), 0)
        if not asked:
            continue
        first, whole = encode(prompt.messages[:asked], tokenizer), encode(prompt.messages, tokenizer)
        if 0 < len(first) <= max_prompt and whole[: len(first)] == first:
            yield Text(np.asarray(first, np.int64), np.asarray(whole[len(first) : len(first) + max_tokens], np.int64))


def keep(texts: Sequence[Text], folder: Path) -> list[Path]:
    """Write texts as shards, those that are there already left alone; returns the shards in order."""
    paths = []
    for start in range(0, len(texts), SHARD_PROMPTS):
        members = texts[start : start + SHARD_PROMPTS]
        path = folder / f"{start // SHARD_PROMPTS:05d}.npz"
        key = hashlib.sha256(b"".join(part.tobytes() + b"|" for text in members for part in (text.prompt, text.written))).digest()
        if not path.exists() or load_arrays(path, "shard of recorded text")["key"].tobytes() != key:
            save_arrays(path, shard_arrays(members) | {"key": np.frombuffer(key, np.uint8)})
        paths.append(path)
    return paths
