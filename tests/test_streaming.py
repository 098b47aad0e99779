"""Text that streams out of the decoder, joined, is the text of all its ids, whatever falls inside an accepted path."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from conftest import Memoryless, TableModel, byte_tokenizer
from torch import Tensor

from entmtp_calib.engine.decoder import Decoder
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.policy import Static
from entmtp_calib.text_stream import TextStream
from entmtp_calib.topology import Topology, chain

TOKENIZER = byte_tokenizer()
SIZE = len(TOKENIZER)
END = TOKENIZER.eos_token_id
PIECES = ["a", " b", "é", "雪", "👩‍👩‍👧", "\n", "e\u0301", "\ufffd", "STOP", "ST", "OP", "\u2028", "<end>"]


class Reciter(TableModel):
    """Writes one text, by position, whatever it reads; its state is the position."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__(range(SIZE), 10**6)
        self.text = torch.tensor([*text, END, END])

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, use_cache: bool,
                output_hidden_states: bool, logits_to_keep: int | Tensor, cache: KVCache | None) -> SimpleNamespace:  # fmt: skip
        hidden = position_ids.expand(input_ids.shape)[..., None].float().expand(*input_ids.shape, 8)
        if cache is not None:
            cache.update(hidden[:, None], hidden[:, None], 0)
        following = self.text[position_ids.expand(input_ids.shape).clamp(max=len(self.text) - 1)]
        logits = torch.nn.functional.one_hot(following, SIZE).float()
        return SimpleNamespace(
            logits=logits[:, logits_to_keep] if isinstance(logits_to_keep, Tensor) else logits, hidden_states=[hidden]
        )


class Prompter(Memoryless):
    """Guesses the recited text rightly, now and then not."""

    sequential, depth, vocabulary = True, 4, SIZE

    def __init__(self, text: Sequence[int], rng: random.Random) -> None:
        self.text, self.rng = [*text, END, END], rng

    def start(self, hidden: Tensor, root: Tensor) -> Tensor:
        return hidden[:, :1] + 1

    def extend(self, context: Tensor, tokens: Tensor) -> Tensor:
        return context + 1

    def to_target_ids(self, guesses: Tensor) -> Tensor:
        return guesses

    def logits(self, level: int, context: Tensor) -> Tensor:
        out = torch.zeros(len(context), SIZE)
        for row, place in enumerate(context[:, 0].long().tolist()):
            true = self.text[min(place, len(self.text) - 1)]
            out[row, true if self.rng.random() < 0.85 else (true + 1) % SIZE] = 1.0
        return out


def decoded(ids: Sequence[int]) -> str:
    text: str = TOKENIZER.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


@pytest.mark.parametrize("seed", range(40))
def test_pieces_join_to_the_text_and_end_where_plain_decoding_ends(seed: int) -> None:
    rng = random.Random(seed)
    ids: list[int] = []
    for _ in range(rng.randrange(1, 14)):
        piece = rng.choice(PIECES)
        ids += [END] if piece == "<end>" and rng.random() < 0.3 else TOKENIZER(piece)["input_ids"]
        if rng.random() < 0.1:
            ids.pop()  # a character that is never finished
    ids = ids or [3]
    strings = rng.choice([(), ("STOP",), ("雪", "e\u0301"), ("\n",)])
    stop = StopRule(frozenset([END]), rng.choice([1, 3, 5, 200]), strings, decoded)
    tree = rng.choice([chain(4), Topology(((0,), (1,), (0, 0), (0, 0, 0))), Topology()])
    decoder = Decoder(Target(Reciter(ids), frozenset([END]), "reciter", "r"), Prompter(ids, rng), [tree], Static(0))
    stream, pieces, written = TextStream(TOKENIZER), list[str](), list[int]()
    for step in decoder.steps([7], stop):
        written += step.tokens
        pieces.append(stream.push(step.tokens))
        assert decoded(written).startswith("".join(pieces))
    pieces.append(stream.finish())
    assert "".join(pieces).encode() == decoded(written).encode()
    wanted: list[int] = []
    reason = ""
    for token in [*ids, END]:
        kept, reason = stop.cut(wanted, [token])
        wanted += kept
        if reason:
            break
    assert written == wanted
    assert step.reason == reason
