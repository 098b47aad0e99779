"""What a bank recorded beside its trees and policies, checked so that those who show it may rely on its form.

Knows the names that are read somewhere; what else stands there is kept as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from entmtp_calib.errors import ArtefactError

_RATES = ("oracle_fit_tokens_per_s", "oracle_test_tokens_per_s", "oracle_shared_draft_test_tokens_per_s")
_OF_A_POLICY = ("fit_tokens_per_s", "test_tokens_per_s", "random_tokens_per_s", "headroom", "switches_per_100_steps")
_GAINS, _INTERVAL = ("gain", "cross_validated_gain"), ("ratio", "low", "high")


def check_record(evaluation: Mapping[str, Any], splits: Mapping[str, Any], prompts: Mapping[str, Any]) -> None:
    """Refuse recorded figures of another form; all of them may be absent.

    Raises:
        ArtefactError: one has another form; the message names its place.
    """
    _numbers(evaluation, "evaluation", _RATES)
    arms = _mapping(evaluation, "evaluation", "arms_fit_tokens_per_s")
    _numbers(arms, "evaluation.arms_fit_tokens_per_s", list(arms))
    policies = _mapping(evaluation, "evaluation", "policies")
    for name in policies:
        row, where = _mapping(policies, "evaluation.policies", name), f"evaluation.policies.{name}"
        _numbers(row, where, _OF_A_POLICY)
        for gain in _GAINS:
            interval = _mapping(row, where, gain)
            _numbers(interval, f"{where}.{gain}", _INTERVAL if interval else (), needed=True)
    for part in splits:
        ids = _mapping(splits, "splits", part).get("ids", [])
        if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
            raise ArtefactError(f"field splits.{part}.ids is no list of names.")
    used = _mapping(prompts, "prompts", "prompts_used")
    _numbers(used, "prompts.prompts_used", list(used), needed=True)


def _mapping(value: Mapping[str, Any], where: str, name: str) -> Mapping[str, Any]:
    found = value.get(name, {})
    if not isinstance(found, Mapping):
        raise ArtefactError(f"field {where}.{name} is {str(found)[:40]!r}, not an object.")
    return found


def _numbers(value: Mapping[str, Any], where: str, names: Sequence[str], needed: bool = False) -> None:
    """Refuse what is no number; what is null counts as absent."""
    for name in names:
        found = value.get(name)
        if (found is None and needed) or (found is not None and not _is_number(found)):
            raise ArtefactError(f"field {where}.{name} is {str(found)[:40]!r}, not a number.")


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False
