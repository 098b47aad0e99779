"""The options of a run and its three disjoint sets of prompts: search, fit (recalibration, timing, thresholds) and test.

Needs a tokenizer and the target's limits; runs no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from entmtp_calib.calibrate.conversations import TURNS
from entmtp_calib.calibrate.joint_search import SCHEDULES
from entmtp_calib.calibrate.prompts import Prompt, PromptSet
from entmtp_calib.engine.acceptance import Exact, Rule, Typical
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.storage import digest
from entmtp_calib.template import TemplateRefusal, check_style, encode, resolve_style
from entmtp_calib.topology import published_default

Encoded = list[tuple[str, list[int]]]
"""Prompts as `(id, token ids)`."""
LONG_PROMPTS = ("skip", "cut")
ACCEPTANCES = ("exact", "typical")
TOO_LONG = "too long for the context"
_QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "q90": 0.9, "max": 1.0}


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Options of a run that its results depend on; a depth of None becomes one level per head, at most 4."""

    model: str
    heads: str
    task: str
    data: str | None = None
    prompt_style: str = "auto"
    seed: int = 0
    search_prompts: int = 40
    fit_prompts: int = 24
    test_prompts: int = 16
    max_new_tokens: int = 128
    max_nodes: int = 64
    max_depth: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    turns: str = "first"
    long_prompts: str = "skip"
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    coupled: bool = True
    stop: tuple[str, ...] = ()
    acceptance: str = "exact"
    epsilon: float = 0.09
    alpha: float = 0.3
    schedule: str = "trace"

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))  # a list where it comes from a file
        if not all(self.stop):
            raise UsageError("--stop is empty.", "Give a text after which answers end.")
        for name in ("search_prompts", "fit_prompts", "test_prompts", "max_new_tokens", "max_nodes", "max_depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value}.", "Ask for at least 1.")
        check_style(self.prompt_style)
        named = (("turns", TURNS), ("long_prompts", LONG_PROMPTS), ("acceptance", ACCEPTANCES), ("schedule", SCHEDULES))
        for name, known in named:
            if getattr(self, name) not in known:
                raise UsageError(f"unknown --{name.replace('_', '-')} {getattr(self, name)!r}.", f"Known: {', '.join(known)}.")
        if self.acceptance == "typical" and self.schedule == "trace":
            raise UsageError("a trace tells nothing about typical acceptance.", "Use --schedule joint, or paper.")
        _ = self.rule  # refuses values out of range
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed is {self.seed}.", "Give a whole number from 0 to 2^63 - 1.")

    @property
    def rule(self) -> Rule:
        """How tokens are chosen and drafts accepted; the run's seed is that of the noise."""
        if self.acceptance == "typical":
            return Typical(self.temperature, self.epsilon, self.alpha)
        return Exact(self.temperature, self.top_k, self.top_p, self.seed, self.coupled)

    @property
    def wanted(self) -> tuple[int, int, int]:
        """Prompts of search, fit and test."""
        return self.search_prompts, self.fit_prompts, self.test_prompts


@dataclass(frozen=True, slots=True)
class Splits:
    """Prompts of each part, disjoint by conversation."""

    search: Encoded
    fit: Encoded
    test: Encoded

    @property
    def parts(self) -> dict[str, Encoded]:
        """The parts by name."""
        return {"search": self.search, "fit": self.fit, "test": self.test}

    @property
    def counts(self) -> dict[str, int]:
        """Prompts of each part."""
        return {name: len(part) for name, part in self.parts.items()}

    def about(self) -> dict[str, Any]:
        """Counts and hashes, for run and bank, and which prompts are left for tests."""
        about: dict[str, Any] = {name: {"prompts": len(part), "hash": digest(part)} for name, part in self.parts.items()}
        about["test"]["ids"] = [name for name, _ids in self.test]
        return about


@dataclass(frozen=True, slots=True)
class Report:
    """What became of the prompts of a set.

    used: prompts of each part; cut: those of them that were shortened; not_needed: prompts beyond what was asked for;
    skipped, examples, notes: as in `Tally`; long_share: part of the prompts tried that were too long; lengths: quantiles of the
    used prompts' lengths in tokens.
    """

    used: Mapping[str, int]
    cut: int
    not_needed: int
    skipped: Mapping[str, int]
    examples: Mapping[str, Sequence[int]]
    notes: Sequence[str]
    long_share: float
    lengths: Mapping[str, int]

    def about(self) -> dict[str, Any]:
        """What run and bank tell of the choice of prompts."""
        return {"prompts_used": dict(self.used), "prompts_skipped_too_long": self.skipped.get(TOO_LONG, 0),
                "prompts_cut": self.cut, "length_quantiles": dict(self.lengths), "skipped": dict(self.skipped)}  # fmt: skip


class Bounds(Protocol):
    """What prompts must keep to: the target's positions and token ids."""

    max_positions: int
    vocab_size: int


def load_splits(found: PromptSet, tokenizer: Any, target: Bounds, heads: int, config: RunConfig) -> tuple[Splits, Report]:
    """Encode the prompts of a set and divide them.

    Prompts that do not leave room for the text and the largest tree are skipped or cut from the left, and so counted; so are
    prompts that were there before, since the parts would share them. With first turns, further pieces of a conversation that is
    used already are skipped; with all turns, a conversation's prompts stay in one part. If there are fewer than asked for, the
    parts shrink alike.

    Args:
        found: the set, in the order of its choice; what is skipped here is counted there too.
        target: whose limits count. heads: how many there are.

    Raises:
        UsageError: no room for any prompt. ArtefactError: fewer than three usable prompts, or conversations with all turns.
    """
    encoder = _Encoder(tokenizer, target.vocab_size, _room(target.max_positions, heads, config), config, found)
    splits, not_needed = (_first_turns if config.turns == "first" else _all_turns)(found, encoder, config.wanted)
    asked, used = sum(config.wanted), sum(splits.counts.values())
    if used < asked:
        found.notes.append(f"{asked} prompts were asked for and {used} can be used; the parts shrink alike")
    return splits, _report(splits, not_needed, encoder, found)


def _first_turns(found: PromptSet, encoder: _Encoder, wanted: tuple[int, int, int]) -> tuple[Splits, int]:
    """The first usable prompts of as many conversations, one part after another, and how many were not needed."""
    usable: Encoded = []
    threads: set[str] = set()
    not_needed = 0
    for prompt in found.prompts:
        if prompt.thread in threads:
            found.skip("another piece of a used conversation", row=prompt.row)
        elif len(usable) == sum(wanted):
            not_needed += 1
        elif ids := encoder.ids(prompt):
            threads.add(prompt.thread)
            usable.append((prompt.id, ids))
    _enough(len(usable), "prompts", found)
    a, b, c = accumulate(_shrunk(len(usable), wanted))
    return Splits(usable[:a], usable[a:b], usable[b:c]), not_needed


def _all_turns(found: PromptSet, encoder: _Encoder, wanted: tuple[int, int, int]) -> tuple[Splits, int]:
    """Prompts as they come, all of a conversation to the part that was emptiest at its first, and how many were not needed."""
    parts: tuple[Encoded, Encoded, Encoded] = ([], [], [])
    homes: dict[str, int] = {}
    not_needed = 0
    for prompt in found.prompts:
        home = homes.get(prompt.thread)
        place = min(range(3), key=lambda part: len(parts[part]) / wanted[part]) if home is None else home
        if len(parts[place]) == wanted[place]:
            not_needed += 1
        elif ids := encoder.ids(prompt):
            homes[prompt.thread] = place
            parts[place].append((prompt.id, ids))
    _enough(len(homes), "conversations", found)
    return Splits(*parts), not_needed


def _enough(count: int, what: str, found: PromptSet) -> None:
    if count < 3:
        why = f" ({reasons})" if (reasons := found.reasons()) else ""
        raise ArtefactError(f"{count} usable {what} are too few: search, fit and test need one each{why}.", "Give more.")


class _Encoder:
    """Encodes prompts and counts those that cannot be used.

    Attributes:
        cut: how many prompts were shortened.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, room: int, config: RunConfig, found: PromptSet) -> None:
        self.tokenizer, self.vocabulary, self.room, self.config, self.found = tokenizer, vocabulary, room, config, found
        self.style = resolve_style(tokenizer, config.prompt_style)  # a style that cannot be is no fault of a prompt
        self.cut = 0
        self._seen: set[str] = set()

    def ids(self, prompt: Prompt) -> list[int]:
        """Token ids, or an empty list for a prompt that was counted and is left out."""
        try:
            ids = encode(prompt.said(self.style), self.tokenizer, self.style)
        except TemplateRefusal as refusal:
            self.found.skip("refused by the chat template", refusal.reason[:80], prompt.row)
            return []
        long = len(ids) > self.room
        if long and self.config.long_prompts == "cut":
            start = ids[:1] if ids[0] == getattr(self.tokenizer, "bos_token_id", None) and self.room > 1 else []
            ids = start + ids[len(ids) - self.room + len(start) :]
        if reason := self._reason(ids):
            self.found.skip(reason, row=prompt.row)
            return []
        self.cut += long
        return ids

    def _reason(self, ids: list[int]) -> str:
        """Why token ids cannot be a prompt; an empty text if they can."""
        if not ids:
            return "no tokens"
        if len(ids) > self.room:
            return TOO_LONG
        if max(ids) >= self.vocabulary:
            return "tokens that the model does not have"
        key = digest(ids)
        if key in self._seen:
            return "the same as another prompt"
        self._seen.add(key)
        return ""


def _room(max_positions: int, heads: int, config: RunConfig) -> int:
    """Longest prompt that leaves room for the text and one forward of the largest tree and its root."""
    default = published_default()
    nodes = max(config.max_nodes, default.size if default.depth <= heads else 0)
    room = max_positions - config.max_new_tokens - nodes - 1
    if room < 1:
        text = f"--max-new-tokens {config.max_new_tokens} and a tree of {nodes} nodes"
        raise UsageError(f"{text} leave no room for a prompt in {max_positions} positions.", "Ask for fewer.")
    return room


def _shrunk(usable: int, wanted: tuple[int, int, int]) -> tuple[int, int, int]:
    """Sizes of the parts: as wanted, or in proportion where there are fewer, with one for each part at least."""
    if usable >= sum(wanted):
        return wanted
    spare = usable - 3
    exact = [spare * part / sum(wanted) for part in wanted]
    sizes = [1 + int(share) for share in exact]
    for place in sorted(range(3), key=lambda place: int(exact[place]) - exact[place])[: usable - sum(sizes)]:
        sizes[place] += 1
    return sizes[0], sizes[1], sizes[2]


def _report(splits: Splits, not_needed: int, encoder: _Encoder, found: PromptSet) -> Report:
    prompts = [*splits.search, *splits.fit, *splits.test]
    lengths = sorted(len(ids) for _name, ids in prompts)
    quantiles = {name: lengths[round(share * (len(lengths) - 1))] for name, share in _QUANTILES.items()}
    long = found.skipped[TOO_LONG]
    return Report(
        used=splits.counts,
        cut=encoder.cut,
        not_needed=not_needed,
        skipped=dict(found.skipped),
        examples={reason: tuple(numbers) for reason, numbers in found.examples.items()},
        notes=tuple(found.notes),
        long_share=(long + encoder.cut) / (len(prompts) + long),
        lengths=quantiles,
    )
