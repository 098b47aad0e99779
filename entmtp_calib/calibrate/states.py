"""The target's final states over distilled text, kept on disk shard by shard, so that training never runs the target again.

Texts are read one at a time from mapped files: memory does not grow with the amount of text. Knows texts and states; nothing of
heads or losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from entmtp_calib.calibrate.distill import Text, read_shard
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError
from entmtp_calib.storage import digest_file, write_atomically

_ROWS = 4096  # padded tokens of one forward


@dataclass(frozen=True, slots=True)
class TextStates:
    """A prompt and the text after it, as the target saw them.

    hidden: `[rows, hidden]`, the state after every token but the last, in the target's dtype; tokens: int64 `[rows]`, the token
    that follows; norm: float32 `[written rows]`, log of the sum of exponentials of the target's logits, from which probabilities
    over a part of the vocabulary follow; first: the first row whose token the target wrote.
    """

    hidden: Tensor
    tokens: Tensor
    norm: Tensor
    first: int

    @property
    def written(self) -> Tensor:
        """Token ids that the target wrote, int64."""
        return self.tokens[self.first :]


class StateFiles:
    """Texts of many state files, in order; each is read when it is asked for.

    Attributes:
        sizes: written tokens of every text; lengths: rows of every text.

    Raises:
        ArtefactError: a file that is missing or damaged.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files: list[Any] = []
        self._places: list[tuple[int, int, int, int, int]] = []
        for number, path in enumerate(paths):
            self._files.append(_open(path))
            self._index(number)
        self.lengths = [end - start for _file, start, end, _first, _norm in self._places]
        self.sizes = [end - start - first for _file, start, end, first, _norm in self._places]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, text: int) -> TextStates:
        number, start, end, first, norm = self._places[text]
        file = self._files[number]
        hidden, tokens = (file.get_slice(name)[start:end] for name in ("hidden", "tokens"))
        return TextStates(hidden, tokens.long(), file.get_slice("norm")[norm : norm + end - start - first], first)

    def _index(self, number: int) -> None:
        file = self._files[number]
        start = norm = 0
        for rows, first in zip(file.get_tensor("rows").tolist(), file.get_tensor("first").tolist(), strict=True):
            self._places.append((number, start, start + rows, first, norm))
            start, norm = start + rows, norm + rows - first


def extract(target: Target, shards: Sequence[Path], folder: Path, on_shard: Callable[[int], None] | None = None) -> list[Path]:
    """Compute the states of all shards that have none of this target yet; returns the state files in order."""
    from safetensors.torch import save

    paths = []
    for number, shard in enumerate(shards, 1):
        path = folder / f"{shard.stem}.safetensors"
        origin = {"text": digest_file(shard), "target": target.identity, "dtype": str(target.dtype)}
        if not path.exists() or _open(path).metadata() != origin:
            write_atomically(path, save(_tensors(target, read_shard(shard)), origin))
        paths.append(path)
        if on_shard:
            on_shard(number)
    return paths


@torch.inference_mode()
def states_of(target: Target, texts: Sequence[Text]) -> list[TextStates]:
    """States of some texts, in their order."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].prompt) + len(texts[i].written))
    found: dict[int, TextStates] = {}
    group: list[int] = []
    for index in order:
        length = len(texts[index].prompt) + len(texts[index].written)
        if group and length * (len(group) + 1) > _ROWS:
            found.update(_forward(target, texts, group))
            group = []
        group.append(index)
    found.update(_forward(target, texts, group))
    return [found[i] for i in range(len(texts))]


def _tensors(target: Target, texts: Sequence[Text]) -> dict[str, Tensor]:
    states = states_of(target, texts)
    return {
        "hidden": torch.cat([state.hidden.cpu() for state in states]),
        "tokens": torch.cat([state.tokens.cpu() for state in states]).int(),
        "norm": torch.cat([state.norm.cpu() for state in states]),
        "rows": torch.tensor([len(state.tokens) for state in states]),
        "first": torch.tensor([state.first for state in states]),
    }


def _open(path: Path) -> Any:
    from safetensors import safe_open

    try:
        return safe_open(path, "pt")
    except Exception:
        raise ArtefactError(f"the states {path} are damaged.", "Delete the file and run the command again.") from None


def _forward(target: Target, texts: Sequence[Text], group: list[int]) -> dict[int, TextStates]:
    """States of a group of texts, in one forward padded on the right."""
    rows = [torch.cat((torch.from_numpy(texts[i].prompt), torch.from_numpy(texts[i].written))).to(target.device) for i in group]
    ids = torch.nn.utils.rnn.pad_sequence([row[:-1] for row in rows], batch_first=True)
    columns = torch.arange(ids.shape[1], device=target.device)
    none = torch.zeros(1, dtype=torch.long, device=target.device)
    hidden = target.forward(ids, None, columns[None], keep=none).hidden
    found = {}
    for states, row, index in zip(hidden, rows, group, strict=True):
        first = len(texts[index].prompt) - 1
        own = states[: len(row) - 1]
        norm = torch.cat([target.lm_head(part).float().logsumexp(-1) for part in own[first:].split(_ROWS // 4)])
        found[index] = TextStates(own, row[1:], norm, first)
    return found
