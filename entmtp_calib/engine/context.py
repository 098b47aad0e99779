"""The caches of one text and the ids whose rows they hold, so that a text which goes on is not computed from its beginning again.

Knows how long the common beginning of two texts is; runs no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.target import Target

_SCRATCH = 1  # slots behind the text that `Target.forward` may use


class Context:
    """The target's keys and values and the drafter's memory of one text.

    Attributes:
        ids: tokens whose rows are right in both; rows behind them are scratch, so a step that was cut short does no harm.
    """

    def __init__(self, target: Target, drafter: Drafter | None) -> None:
        self.cache = target.new_cache(0)
        self.memory = drafter.new_memory(0) if drafter else None
        self.ids: list[int] = []

    def keep(self, prompt: Sequence[int], capacity: int) -> int:
        """Forget what is not the beginning of a prompt, and have room for `capacity` tokens.

        Returns:
            How many tokens of the prompt are held; at least its last one is not, since the next token is read off it.
        """
        held = 0
        for ours, theirs in zip(self.ids, prompt[:-1], strict=False):
            if ours != theirs:
                break
            held += 1
        del self.ids[held:]
        self.cache.reserve(capacity + _SCRATCH)
        if self.memory is not None:
            self.memory.reserve(capacity)
        return held
