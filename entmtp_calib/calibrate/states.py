"""The target's final states over distilled text, kept on disk shard by shard, so that training never runs the target again.

Knows texts and states; nothing of heads or losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from entmtp_calib.calibrate.distill import Text, read_shard
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError
from entmtp_calib.storage import write_atomically

_ROWS = 4096  # padded tokens of one forward


@dataclass(frozen=True, slots=True)
class States:
    """Written tokens of many texts, one after the other.

    hidden: `[tokens, hidden]`, the state that chose each token, in the target's dtype; tokens: int64 `[tokens]`;
    left: int64 `[tokens]`, how many tokens of the same text follow; norm: float32 `[tokens]`, log of the sum of exponentials of
    the target's logits there, so that probabilities over a part of the vocabulary need no other logits.
    """

    hidden: Tensor
    tokens: Tensor
    left: Tensor
    norm: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, rows: Tensor) -> States:
        """The chosen tokens, in the given order."""
        return States(self.hidden[rows], self.tokens[rows], self.left[rows], self.norm[rows])


def extract(target: Target, shards: Sequence[Path], folder: Path, on_shard: Callable[[int], None] | None = None) -> list[Path]:
    """Compute the states of all shards that have none yet; returns the state files in order."""
    from safetensors.torch import save

    paths = []
    for number, shard in enumerate(shards, 1):
        path = folder / f"{shard.stem}.safetensors"
        if not path.exists():
            states = states_of(target, read_shard(shard))
            write_atomically(path, save({name: getattr(states, name).cpu().contiguous() for name in States.__slots__}))
        paths.append(path)
        if on_shard:
            on_shard(number)
    return paths


def load_states(path: Path) -> States:
    """Read one state file; tensors are mapped, not copied.

    Raises:
        ArtefactError: missing or damaged.
    """
    from safetensors.torch import load_file

    try:
        return States(**load_file(path))
    except Exception:
        raise ArtefactError(f"the states {path} are damaged.", "Delete the file and run the command again.") from None


@torch.inference_mode()
def states_of(target: Target, texts: Sequence[Text]) -> States:
    """States of the written tokens of some texts, in the order of the texts."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].prompt) + len(texts[i].written))
    found: dict[int, Tensor] = {}
    group: list[int] = []
    for index in order:
        length = len(texts[index].prompt) + len(texts[index].written)
        if group and length * (len(group) + 1) > _ROWS:
            found.update(_forward(target, texts, group))
            group = []
        group.append(index)
    found.update(_forward(target, texts, group))
    written = [torch.from_numpy(text.written) for text in texts]
    left = [torch.arange(len(text) - 1, -1, -1) for text in written]
    hidden = torch.cat([found[i] for i in range(len(texts))])
    norm = torch.cat([target.lm_head(rows).float().logsumexp(-1) for rows in hidden.split(_ROWS // 4)])
    return States(hidden, torch.cat(written), torch.cat(left), norm)


def _forward(target: Target, texts: Sequence[Text], group: list[int]) -> dict[int, Tensor]:
    """States of the written tokens of a group, in one forward padded on the right."""
    rows = [torch.cat((torch.from_numpy(texts[i].prompt), torch.from_numpy(texts[i].written[:-1]))) for i in group]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(target.device)
    columns = torch.arange(ids.shape[1], device=target.device)
    mask = columns[None, :] <= columns[:, None]
    none = torch.zeros(1, dtype=torch.long, device=target.device)
    hidden = target.forward(ids, mask[None, None], columns[None], keep=none).hidden
    return {
        index: hidden[row, len(texts[index].prompt) - 1 : len(texts[index].prompt) - 1 + len(texts[index].written)]
        for row, index in enumerate(group)
    }
