"""What a text and a tree must keep to: the model's positions, the heads' number and vocabulary. Refuses, and moves nothing."""

from __future__ import annotations

from dataclasses import replace

from entmtp_calib.engine.drafter import Drafter
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.topology import Topology


def fit(stop: StopRule, prompt_length: int, target: Target) -> StopRule:
    """Lower the cap so that the text stays within the model's positions.

    Raises:
        UsageError: a prompt that is empty or leaves no room, or a cap below 1.
    """
    if prompt_length < 1:
        raise UsageError("the prompt is empty.", "Give at least one token.")
    if stop.max_new_tokens < 1:
        raise UsageError(f"the cap on new tokens is {stop.max_new_tokens}.", "Ask for at least 1.")
    room = target.max_positions - prompt_length
    if room < 1:
        raise UsageError(
            f"the prompt has {prompt_length} tokens and {target.name} takes {target.max_positions}.", "Shorten the prompt."
        )
    return replace(stop, max_new_tokens=min(stop.max_new_tokens, room))


def check_depth(topology: Topology, drafter: Drafter | None) -> None:
    """Refuse a tree that the heads cannot fill.

    Raises:
        ArtefactError: deeper than the number of heads, or no heads at all.
    """
    if topology.depth and drafter is None:
        raise ArtefactError("the tree has nodes and no heads were given.", "Give --heads.")
    if drafter is not None and topology.depth > drafter.depth:
        raise ArtefactError(
            f"the tree is {topology.depth} deep and there are {drafter.depth} heads.", "Use a shallower tree or other heads."
        )
    vocabulary = drafter.vocabulary if drafter is not None else 0
    if topology.max_rank >= vocabulary > 0:
        raise ArtefactError(
            f"the tree asks for guess {topology.max_rank} of a head that has {vocabulary} tokens to guess.",
            "Use a narrower tree.",
        )
