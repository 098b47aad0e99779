"""From prompts to heads on disk: distil, keep the states, train, judge on held-out text, write the card.

Ties together `distill`, `states` and `training`. Each part resumes; the same recipe gives the same heads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from entmtp_calib.calibrate.distill import distill
from entmtp_calib.calibrate.head_card import write_card
from entmtp_calib.calibrate.pipeline import Tick
from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.calibrate.search import grow
from entmtp_calib.calibrate.states import States, extract, load_states
from entmtp_calib.calibrate.training import TrainingConfig, frequent_ids, initialise, train
from entmtp_calib.engine.head_files import save_heads
from entmtp_calib.engine.heads import DraftHeads, HeadShape
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import look
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.evidence import Trace, mean_accept
from entmtp_calib.storage import digest, to_json, write_atomically
from entmtp_calib.template import encode
from entmtp_calib.topology import chain, published_default

_HELD_OUT_SHARE = 30  # one shard in thirty, at least one, is kept from training
_JUDGED_TEXTS = 160
HIT_RANKS = (1, 2, 4, 10)


@dataclass(frozen=True, slots=True)
class Source:
    """Prompts to distil from: a task, a local file of it or "", and at most how many."""

    task: str
    data: str = ""
    count: int | None = None


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """Everything that trained heads depend on, apart from the target."""

    architecture: str
    heads: int
    layers: int
    vocabulary: int
    sources: tuple[Source, ...]
    tokens: int
    max_prompt: int
    max_new_tokens: int
    seed: int
    training: TrainingConfig


@dataclass(frozen=True, slots=True)
class MadeHeads:
    """What held-out text says of trained heads.

    hit_rates: per head, share of positions with the true token among the first k guesses; acceptance: mean accepted drafts per
    step of a greedy chain, a 16-node tree and the published default; positions: held-out tokens judged.
    """

    hit_rates: list[dict[str, float]]
    acceptance: dict[str, float]
    positions: int


def parse_source(text: str) -> Source:
    """Read `TASK`, `TASK:COUNT` or `TASK=FILE:COUNT`.

    Raises:
        UsageError: a count that is no number above 0.
    """
    found = re.fullmatch(r"([^=:]+)(?:=([^:]*))?(?::(\d+))?", text)
    if not found or found[3] == "0":
        raise UsageError(f"--prompts {text!r} is not TASK, TASK:COUNT or TASK=FILE:COUNT.", "For example: sharegpt:4000.")
    return Source(found[1], found[2] or "", int(found[3]) if found[3] else None)


def make_heads(
    target: Target,
    tokenizer: Any,
    recipe: HeadRecipe,
    out: Path,
    work: Path,
    tick: Tick,
    say: Callable[[str], None],
    fresh: bool = False,
) -> MadeHeads:
    """Make heads by a recipe; parts that are in `work` already are used.

    Args:
        out: where `config.json`, `heads.safetensors` and the card go.
        work: where written text, states and the checkpoint are; it may be shared between recipes of the same prompts.
        tick, say: told about progress.

    Raises:
        ArtefactError: fewer than two shards of text, or a checkpoint of another recipe.
    """
    prompts = training_prompts(recipe, tokenizer)
    say(f"writing up to {recipe.tokens} tokens after {len(prompts)} prompts")
    stop = StopRule(target.end_ids, recipe.max_new_tokens)
    shards = distill(target, prompts, stop, work / "text", tokens=recipe.tokens,
                     on_shard=lambda _done, written: tick("write", min(written, recipe.tokens), recipe.tokens))  # fmt: skip
    files = extract(target, shards, work / "states", lambda done: tick("states", done, len(shards)))
    held = max(1, len(files) // _HELD_OUT_SHARE)
    if len(files) <= held:
        raise ArtefactError(f"{len(files)} shard of text is too little: one is held out.", "Give more prompts or tokens.")
    states = _join([load_states(path) for path in files[:-held]])
    say(f"training on {len(states)} tokens")
    heads = _new_heads(target, recipe, states)
    checkpoint = _checkpoint(work, target, recipe, fresh)
    train(heads, target, states, recipe.training, checkpoint, _reporter(recipe.training.steps, tick, say))
    heads.bind(target)
    made = judge([load_states(path) for path in files[-held:]], heads)
    named = replace(recipe, sources=tuple(replace(source, data=Path(source.data).name) for source in recipe.sources))
    about = {"recipe": asdict(named), "trained_tokens": len(states), "hit_rates": made.hit_rates, "acceptance": made.acceptance,
             "held_out_tokens": made.positions, "base_name": target.name}  # fmt: skip
    save_heads(heads, out, target.identity, about)
    write_card(out, about, heads)
    return made


def training_prompts(recipe: HeadRecipe, tokenizer: Any) -> list[list[int]]:
    """Prompts of all sources as token ids, in an order that depends on their names and the seed alone."""
    found: list[tuple[str, list[int]]] = []
    for source in recipe.sources:
        for prompt in load_prompts(source.task, source.data or None, source.count, recipe.seed, "train").prompts:
            ids = encode(prompt.messages, tokenizer)
            if 0 < len(ids) <= recipe.max_prompt:
                found.append((hashlib.sha256(f"{recipe.seed}:{prompt.id}".encode()).hexdigest(), ids))
    return [ids for _key, ids in sorted(found)]


def judge(held_out: list[States], heads: DraftHeads) -> MadeHeads:
    """Hit rates and acceptance on texts that training did not see; the 16-node tree is grown on one half, judged on the other."""
    traces = [trace for states in held_out for trace in _traces(states, heads)]
    ranks = np.concatenate([trace.ranks for trace in traces])
    rows = []
    for head in range(heads.depth):
        known = ranks[ranks[:, head] >= 0, head]
        rows.append({"head": head + 1} | {f"top{k}": float((known < k).mean()) for k in HIT_RANKS})
    half = len(traces) // 2
    tree = grow(traces[:half], 16, heads.depth).order
    acceptance = {"chain": mean_accept(chain(heads.depth), traces), "tree_16": mean_accept(tree, traces[half:])}
    if published_default().depth <= heads.depth:
        acceptance["default_63"] = mean_accept(published_default(), traces)
    return MadeHeads(rows, acceptance, len(ranks))


@torch.inference_mode()
def _traces(states: States, heads: DraftHeads) -> list[Trace]:
    ends = (states.left == 0).nonzero()[:_JUDGED_TEXTS, 0].tolist()
    traces, start = [], 0
    device = heads.lm_weight().device
    for end in ends:
        rows = slice(start, end + 1)
        tokens = states.tokens[rows].to(device)
        ranks, margins, chain_logp, firsts = look(heads, states.hidden[rows].to(device), tokens)
        blank = np.zeros(len(tokens), np.float32)
        traces.append(
            Trace(
                prompt_id="",
                tokens=_numpy(tokens),
                ranks=_numpy(ranks),
                margins=margins.cpu().numpy(),
                root_logp=blank,
                entropy=blank,
                chain_logp=chain_logp.cpu().numpy(),
                first_guesses=_numpy(firsts),
            )
        )
        start = end + 1
    return traces


def _numpy(values: torch.Tensor) -> np.ndarray:
    return values.cpu().numpy().astype(np.int32)


def _new_heads(target: Target, recipe: HeadRecipe, states: States) -> DraftHeads:
    vocabulary = recipe.vocabulary or target.vocab_size
    reduced = vocabulary < target.vocab_size
    heads = DraftHeads(HeadShape(recipe.architecture, recipe.heads, recipe.layers, target.hidden_size,
                                 min(vocabulary, target.vocab_size), "target", False, reduced))  # fmt: skip
    if reduced:
        assert heads.draft_ids is not None
        heads.draft_ids.copy_(frequent_ids([states], vocabulary, target.vocab_size))
    initialise(heads)
    return heads.bind(target)


def _checkpoint(work: Path, target: Target, recipe: HeadRecipe, fresh: bool) -> Path:
    """The checkpoint of this recipe; another recipe in the same folder has another."""
    key = digest({"recipe": asdict(recipe), "target": target.identity, "dtype": str(target.dtype)}).removeprefix("sha256:")
    folder = work / f"training-{key[:12]}"
    if fresh and (folder / "checkpoint.pt").exists():
        (folder / "checkpoint.pt").unlink()
    if not (folder / "recipe.json").exists():
        write_atomically(folder / "recipe.json", to_json(asdict(recipe)))
    return folder / "checkpoint.pt"


def _reporter(steps: int, tick: Tick, say: Callable[[str], None]) -> Callable[[int, list[float]], None]:
    recent: list[list[float]] = []

    def report(step: int, losses: list[float]) -> None:
        recent.append(losses)
        tick("train", step, steps)
        if step % 100 == 0 or step == steps:
            means = np.mean(recent, 0)
            say(f"step {step}: loss per head in nats {', '.join(f'{loss:.3f}' for loss in means)}")
            recent.clear()

    return report


def _join(parts: list[States]) -> States:
    return States(*(torch.cat([getattr(part, name) for part in parts]) for name in States.__slots__))
