"""GGUF files, unpacked once into a folder of the cache, since reading one takes many times as long as reading that folder.

Knows the file and nothing of what the model is used for.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import tempfile
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch

from entmtp_calib.errors import ArtefactError
from entmtp_calib.storage import digest_file

_log = logging.getLogger(__name__)


def cache_root() -> Path:
    """Where unpacked models are kept: `ENTMTP_CACHE`, else `~/.cache/entmtp`.

    Raises:
        ArtefactError: neither the variable nor a home folder is there.
    """
    try:
        return Path(os.environ.get("ENTMTP_CACHE") or Path.home() / ".cache" / "entmtp")
    except RuntimeError:
        raise ArtefactError("this user has no home folder to keep models in.", "Set ENTMTP_CACHE to a folder.") from None


def unpack_gguf(path: Path, unpack: bool = True) -> str:
    """Write the model in a GGUF file as a Transformers folder, once, and return the folder.

    Args:
        unpack: whether that may be done now, or must have been done before.

    Raises:
        ArtefactError: no GGUF file, a damaged one, or no room for it in memory or on the disk.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ArtefactError(f"{path} is not a GGUF file.", "Download it again.")
    digest = digest_file(path).removeprefix("sha256:")
    folder = cache_root() / "models" / f"{path.stem}-{digest[:16]}"
    if (folder / "config.json").is_file():
        return str(folder)
    if not unpack:
        raise ArtefactError(f"{path.name} is not unpacked.")
    needed = _check_memory(path)
    parts = _read(path)
    try:
        _store(parts, folder)
    except Exception as error:  # a full disk is of another kind for every writer
        raise ArtefactError(
            f"cannot unpack {path.name} into {folder.parent}: {first_line(error)}.",
            f"Free {needed >> 20} MB there, or set ENTMTP_CACHE.",
        ) from error
    return str(folder)


def _read(path: Path) -> tuple[Any, Any]:
    """Model, in 32 bits, and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"gguf_file": path.name, "dtype": torch.float32}
    try:
        from transformers import GgufConfig  # newer releases keep the blocks packed unless told otherwise

        options["quantization_config"] = GgufConfig(dequantize=True)
    except ImportError:
        pass
    with quiet(), redirect_stderr(io.StringIO()):  # one bar of transformers knows no switch
        try:
            model = AutoModelForCausalLM.from_pretrained(str(path.parent), **options)
            tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        except Exception as error:
            raise ArtefactError(f"{path} cannot be read: {first_line(error)}.", "Download it again.") from error
    model.config.__dict__.pop("quantization_config", None)
    return model, tokenizer


def _store(parts: tuple[Any, Any], folder: Path) -> None:
    """Write a folder that is absent or complete; one that another process was faster with stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unpack-"))
    try:
        with quiet():
            for part in parts:
                part.save_pretrained(temporary)
        temporary.rename(folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not isinstance(error, OSError) or not (folder / "config.json").is_file():
            raise


def _check_memory(path: Path) -> int:
    """Bytes that the weights take in 32 bits, which go to the log; a file for which memory has no room is refused.

    Raises:
        ArtefactError: there is not enough, or the file is damaged.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ArtefactError(f"reading {path.name} needs the package gguf.", "Run: pip install gguf accelerate") from None
    try:
        needed = 4 * sum(int(tensor.n_elements) for tensor in GGUFReader(str(path)).tensors)
    except Exception as error:
        raise ArtefactError(f"{path} cannot be read: {first_line(error)}.", "Download it again.") from error
    free = _free_memory()
    _log.info("unpacking %s takes %d MB of memory", path, needed >> 20)
    if needed > free:
        raise ArtefactError(
            f"unpacking {path.name} takes {needed >> 20} MB of memory and {free >> 20} MB are free.",
            "Unpack it on a larger machine, or give a Transformers folder.",
        )
    return needed


def _free_memory() -> int:
    """Bytes that can be had without swapping; a number beyond all needs where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 1 << 62


def first_line(error: Exception) -> str:
    """What an error says first."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


class quiet:
    """Silence transformers' bars and advice while it loads; errors still come as exceptions."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._level = logging.get_verbosity()
        self._bars = logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self._level)
        if self._bars:
            logging.enable_progress_bar()
