"""The caches of one text and the ids whose rows they hold, so that a text which goes on is not computed from its beginning again.

Knows how long the common beginning of two texts is; runs no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.target import Target

SCRATCH = 1  # slots behind the text that `Target.forward` may use


class Context:
    """The target's keys and values and the drafter's memory of one text.

    Attributes:
        ids: tokens whose rows are right in both; rows behind them are scratch, so a step that was cut short does no harm.
    """

    def __init__(self, target: Target, drafter: Drafter | None) -> None:
        self.cache = target.new_cache(0)
        self.memory = drafter.new_memory(0) if drafter else None
        self.ids: list[int] = []

    def shared(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt are held; at least its last one is not, since the next token is read off it."""
        pairs = zip(self.ids, prompt[:-1], strict=False)
        return next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(self.ids), len(prompt) - 1))

    def keep(self, prompt: Sequence[int], capacity: int) -> int:
        """Forget what is not the beginning of a prompt, and have room for `capacity` tokens.

        Returns:
            How many tokens of the prompt are held.
        """
        held = self.shared(prompt)
        del self.ids[held:]
        self.cache.reserve(capacity + SCRATCH)
        if self.memory is not None:
            self.memory.reserve(capacity)
        return held
