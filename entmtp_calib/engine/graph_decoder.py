"""A decoder whose verification and drafting are captured once and replayed, and the contexts that it needs.

Adds no arithmetic: it captures `Decoder.draft` and, for every tree of the bank, `Decoder.advance` with the length of the text on
the device. Whatever cannot be captured runs as in any other decoder.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from entmtp_calib.engine.acceptance import Accepted
from entmtp_calib.engine.context import SCRATCH, Context
from entmtp_calib.engine.decoder import HELD, Decoder, Root
from entmtp_calib.engine.drafter import Draft
from entmtp_calib.engine.graphs import Arena, Captured, Graphs
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.layout import Rows
from entmtp_calib.engine.rehearsal import Rehearsal
from entmtp_calib.policy import Dynamic

_TRIAL = 5  # tokens of the text with which a capture is checked


class GraphDecoder(Decoder):
    """A decoder that replays its steps.

    Args:
        graphs: of the same target; decoders that take turns may share it.
    """

    def __init__(self, *args: Any, graphs: Graphs, **options: Any) -> None:
        super().__init__(*args, **options)
        self.graphs = graphs
        self._drafting: Captured | None = None

    def new_context(self) -> Context:
        if isinstance(self.policy, Dynamic):  # its rows are others at every step
            return super().new_context()
        return ArenaContext(self)

    @torch.inference_mode()
    def prepare(self, tokens: int) -> None:
        """Capture, where that was not done, all that a text of so many tokens needs, prompt included."""
        self.new_context().keep([0], min(tokens, self.target.max_positions) + self.drafted.rows)

    def draft(self, root: Root, held: bool = False) -> Draft:
        if self._drafting is None or self.graphs.reason is not None or held:
            return super().draft(root, held)
        tokens, chain_logp = self._drafting(root.token, root.hidden, root.position)
        return Draft(tokens.clone(), chain_logp.clone())  # another text may be drafted for before this one is verified

    def verify(self, index: int, draft: Draft, length: int, cache: KVCache, memory: KVCache | None) -> tuple[Accepted, Root]:
        step = self.graphs.steps(cache, self).get(index)
        if step is None or length + len(self.rows[index]) > cache.capacity:
            return super().verify(index, draft, length, cache, memory)
        found = step(draft.tokens[self.rows[index]], length)
        return Accepted(*found[:3]), Root(*found[3:])

    def lease(self, capacity: int) -> Arena | None:
        """An arena on which every tree is captured; what it holds is lost. None where capture failed, now or before."""
        if self._drafting is None and self.reader is not None:
            self._drafting = self._capture_draft()
        arena = self.graphs.take(capacity)
        steps = arena.steps.setdefault(self, {})
        for index, layout in self._captured().items():
            made = steps.get(index) or self._capture_step(layout, arena)
            if made is None:
                return None
            steps[index] = made
        return arena if self.graphs.reason is None else None

    def _captured(self) -> dict[int, Rows]:
        """The trees of the bank, and none where a guard may hold them back."""
        return self.layouts | ({HELD: self.bare} if self.guard is not None else {})

    def _capture_draft(self) -> Captured | None:
        plain: Callable[[Root], Draft] = super().draft

        def work(token: Tensor, hidden: Tensor, position: Tensor) -> Sequence[Tensor]:
            found = plain(Root(token, certainty, hidden, position))
            return found.tokens, found.chain_logp

        token, certainty, hidden, position = self.dummy_root()
        other = torch.linspace(-1, 1, hidden.shape[1], device=hidden.device).to(hidden.dtype)
        # The dummy's position is a part of a layout, and buffers are written to.
        return self.graphs.capture(work, (token.clone(), hidden.clone(), position.clone()), (1, other[None], _TRIAL))

    def _capture_step(self, layout: Rows, arena: Arena) -> Captured | None:
        memory = arena.memory(self.reader)

        def work(tokens: Tensor, length: Tensor) -> Sequence[Tensor]:
            accepted, root = self.advance(layout, tokens, length, arena.cache, memory)
            return (*accepted, *root)

        tokens, length = torch.zeros_like(layout.depths), torch.zeros_like(layout.depths[:1])
        others = (torch.arange(layout.rows, device=tokens.device) + 1) % self.target.vocab_size
        behind = min(_TRIAL, arena.capacity - layout.rows)
        caches = [cache for cache in (arena.cache, memory) if cache is not None]

        def kept() -> list[Tensor]:
            return [cache.rows(behind, layout.depth + 1) for cache in caches]

        return self.graphs.capture(work, (tokens, length), (others, behind), kept)


class GraphRehearsal(GraphDecoder, Rehearsal):
    """A rehearsal whose verification is replayed; its guesses are dictated by the host."""

    draft = Rehearsal.draft

    def _capture_draft(self) -> None:
        return None


def decoder_with(graphs: Graphs | None, *args: Any, **options: Any) -> Decoder:
    """A decoder that replays its steps, or a plain one where there are no graphs."""
    return Decoder(*args, **options) if graphs is None else GraphDecoder(*args, graphs=graphs, **options)


def rehearsal_with(graphs: Graphs | None, *args: Any) -> Rehearsal:
    """A rehearsal that replays its verification, or a plain one where there are no graphs."""
    return Rehearsal(*args) if graphs is None else GraphRehearsal(*args, graphs=graphs)


def prepare(decoder: Decoder, tokens: int = 1) -> None:
    """Capture, where a decoder does that and has not yet, all that a text of so many tokens needs, prompt included.

    To be called before a clock runs.
    """
    if isinstance(decoder, GraphDecoder):
        decoder.prepare(tokens)


class ArenaContext(Context):
    """A context whose caches are those of an arena, which goes back to the others when the context is not used any more.

    A text that outgrows its arena moves to a larger one.
    """

    def __init__(self, decoder: GraphDecoder) -> None:
        super().__init__(decoder.target, decoder.reader)
        self._decoder = decoder
        self._give_back: Callable[[], object] | None = None

    def keep(self, prompt: Sequence[int], capacity: int) -> int:
        if self.cache.capacity < capacity + SCRATCH or self._give_back is None:
            self._move(capacity + SCRATCH, self.shared(prompt))
        return super().keep(prompt, capacity)

    def _move(self, capacity: int, held: int) -> None:
        arena = self._decoder.lease(capacity)
        if arena is None:
            return
        memory = arena.memory(self._decoder.reader)
        arena.cache.take(self.cache, held)
        if memory is not None and self.memory is not None:
            memory.take(self.memory, held)
        if self._give_back:
            self._give_back()
        self.cache, self.memory = arena.cache, memory
        back = weakref.finalize(self, self._decoder.graphs.free.append, arena)
        back.atexit = False
        self._give_back = back
