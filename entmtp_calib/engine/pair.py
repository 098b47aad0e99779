"""A target and its heads, loaded, bound and checked: what every command starts from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from entmtp_calib.engine.graphs import Graphs
from entmtp_calib.engine.head_files import LoadedHeads, load_heads
from entmtp_calib.engine.heads import DraftHeads
from entmtp_calib.engine.loading import Placement, load_target, wants_packing
from entmtp_calib.engine.selftest import HeadSanity, check_heads, check_tree_attention
from entmtp_calib.engine.target import Target
from entmtp_calib.template import encode

_SANITY_TEXTS = (
    "Write a Python function that returns the sum of a list of numbers.",
    "What is the capital of France, and what is it known for?",
    "Tom has 3 boxes with 12 apples each and gives away 7. How many are left?",
    "Explain in two sentences why the sky is blue.",
    "List five healthy breakfast ideas.",
    "Translate 'good morning' into Spanish, French and German.",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target with its tokenizer and, unless only plain decoding is wanted, its heads.

    graphs: where steps are captured and replayed; None where they are not.
    """

    target: Target
    tokenizer: Any
    placement: Placement
    loaded: LoadedHeads | None
    sanity: HeadSanity | None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    graphs: Graphs | None = None

    @property
    def heads(self) -> Any:
        """The drafter, or None."""
        return self.loaded.heads if self.loaded else None


def with_graphs(pair: Pair, wanted: bool) -> Pair:
    """The same pair, whose decoders capture their steps, or do not."""
    return replace(pair, graphs=Graphs(pair.target) if wanted else None)


def load_pair(model: str, heads: str | None, placement: Placement) -> Pair:
    """Load, bind and run the self-tests.

    Args:
        model: name of the target; see `load_target`.
        heads: name of the heads; see `load_heads`; None for none.

    Raises:
        ArtefactError: something cannot be loaded, does not fit, or fails a self-test.
    """
    loaded = load_heads(heads) if heads else None  # first: it is quick, and a typo should be
    target, tokenizer = load_target(model, placement)
    texts = [encode([("user", text)], tokenizer) for text in _SANITY_TEXTS]
    for ids in texts:
        target.check(ids)
    check_tree_attention(target, _enough(texts, target.vocab_size))
    if loaded is None:
        return Pair(target, tokenizer, placement, None, None)
    take(loaded, target)
    sanity = check_heads(target, loaded.heads, texts)
    foreign = (_foreign(loaded, target, sanity),) if loaded.base and loaded.base != target.identity else ()
    return Pair(target, tokenizer, placement, loaded, sanity, tuple(_notes(loaded, target)), foreign)


def take(loaded: LoadedHeads, target: Target) -> DraftHeads:
    """Bind heads to a target, packed where that is wanted.

    Raises:
        ArtefactError: they do not fit it.
    """
    heads = loaded.heads.bind(target)
    return heads.pack() if wants_packing() else heads


def _notes(loaded: LoadedHeads, target: Target) -> list[str]:
    notes = [f"heads {loaded.name}: layout {loaded.layout}, {loaded.heads.depth} heads", *loaded.notes]
    if loaded.heads.shape.lm_heads == "target":
        notes.append("the heads have no LM head of their own and borrow the target's")
    dtype = str(target.dtype).removeprefix("torch.")
    if loaded.stored not in ("", dtype):
        notes.append(f"the heads are stored in {loaded.stored} and run in {dtype} like the target, converted once")
    return notes


def _foreign(loaded: LoadedHeads, target: Target, sanity: HeadSanity) -> str:
    """What heads of another target are worth here, in measured figures."""
    here = ", ".join(f"{rate:.0%}" for rate in sanity.top10)
    then = ", ".join(f"{rate:.0%}" for rate in _rates_when_made(loaded.about))
    return (
        f"the heads were trained for another model than {target.name}: true token among a head's first ten guesses {here} here, "
        f"on {sanity.positions} tokens, against {then or 'unrecorded figures'} when they were made"
    )


def _rates_when_made(about: dict[str, Any]) -> list[float]:
    """Share of held-out positions with the true token among the first ten guesses, per head; empty where it is not recorded."""
    rows = about.get("hit_rates")
    try:
        return [float(row["top10"]) for row in sorted(rows or [], key=lambda row: row["head"])]
    except (TypeError, KeyError, ValueError):
        return []


def _enough(texts: list[list[int]], vocabulary: int) -> list[int]:
    """Some different token ids for the attention test, from the texts and then from the vocabulary."""
    ids = list(dict.fromkeys(token for text in texts for token in text))
    return (ids + [token for token in range(vocabulary) if token not in set(ids)])[:16]
