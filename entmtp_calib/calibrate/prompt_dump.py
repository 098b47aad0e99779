"""The prompts of a run as they go into the model, for the user's eyes. Needs a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from entmtp_calib.calibrate.splits import Splits
from entmtp_calib.errors import UsageError
from entmtp_calib.storage import write_atomically
from entmtp_calib.template import resolve_style


def check_dump(path: Path | None) -> None:
    """Refuse a place where no file can be written, before anything is loaded.

    Raises:
        UsageError: a folder, or a path through a file.
    """
    if path is not None and (path.is_dir() or any(place.is_file() for place in path.parents)):
        raise UsageError(f"--dump-prompts {path} cannot be a file there.", "Give the path of a file.")


def dump_prompts(path: Path, splits: Splits, tokenizer: Any, style: str) -> None:
    """Write one JSON line for every prompt: id, split, style, text, ids.

    Args:
        style: as the prompts were encoded.
    """
    style = resolve_style(tokenizer, style)
    rows = [
        {"id": name, "split": part, "style": style, "text": _text(tokenizer, ids), "ids": ids}
        for part, prompts in splits.parts.items()
        for name, ids in prompts
    ]
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def _text(tokenizer: Any, ids: list[int]) -> str:
    """What the ids say, special tokens and white space included."""
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
