"""From prompts to heads on disk: distil, keep the states, train, judge on held-out text, write the card.

Ties together `distill`, `states`, `training` and `head_judging`. Each part resumes; the same recipe gives the same heads.
"""

from __future__ import annotations

import copy
import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from entmtp_calib.calibrate.distill import Text, distill, read_shard
from entmtp_calib.calibrate.head_card import write_card
from entmtp_calib.calibrate.head_judging import HeadFigures, calibration_error, judge, traces_of
from entmtp_calib.calibrate.pipeline import Tick
from entmtp_calib.calibrate.prompts import load_prompts
from entmtp_calib.calibrate.recorded import conversations, keep
from entmtp_calib.calibrate.states import StateFiles, extract
from entmtp_calib.calibrate.training import TrainingConfig, frequent_ids, initialise, train
from entmtp_calib.engine.head_files import load_heads, save_heads
from entmtp_calib.engine.heads import DraftHeads, HeadShape
from entmtp_calib.engine.own_layout import as_stored
from entmtp_calib.engine.prefix import PrefixShape
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.storage import digest, to_json, write_atomically
from entmtp_calib.template import encode

_HELD_OUT_SHARE = 30  # one shard in thirty, at least one, is kept from training
_JUDGED_TEXTS = 256
_WATCHED_TEXTS = 40  # of the held-out ones, judged while training goes on


@dataclass(frozen=True, slots=True)
class Source:
    """Prompts to distil from: a task, a local file of it or "", and at most how many."""

    task: str
    data: str = ""
    count: int | None = None


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """Everything that trained heads depend on, apart from the target.

    vocabulary: tokens that heads guess among, 0 for all; tokens: how many the target writes; temperature: at which it writes;
    init: heads to start from, by name or folder, "" for the target's own opinion; init_identity: which these were;
    recorded: conversations whose recorded answers are read besides.
    """

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
    temperature: float = 0.0
    init: str = ""
    init_identity: str = ""
    recorded: tuple[Source, ...] = ()


def parse_source(text: str) -> Source:
    """Read `TASK`, `TASK:COUNT` or `TASK=FILE:COUNT`; a task may be `hf:NAME[:CONFIG[:SPLIT]]`.

    Raises:
        UsageError: a count that is no number above 0.
    """
    found = re.fullmatch(r"(hf:[^=]+?|[^=:]+)(?:=([^:]*))?(?::(\d+))?", text)
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
) -> HeadFigures:
    """Make heads by a recipe; parts that are in `work` already are used.

    Args:
        out: where `config.json`, `heads.safetensors` and the card go.
        work: where written text, states and the checkpoint are; it may be shared between recipes of the same prompts.
        tick, say: told about progress.

    Raises:
        ArtefactError: fewer than two shards of text, or a checkpoint of another recipe.
    """
    recipe = replace(recipe, init_identity=load_heads(recipe.init).identity if recipe.init else "")
    shards, held = _texts(target, tokenizer, recipe, work, tick, say)
    files = extract(target, shards, work / "states", lambda done: tick("states", done, len(shards)))
    others = recorded_texts(recipe, tokenizer, work / "recorded")
    read = extract(target, others, work / "states-recorded", lambda done: tick("states, recorded", done, len(others)))
    states, unseen = StateFiles([*files[:-held], *read]), StateFiles(files[-held:])
    say(f"training on {sum(states.sizes)} tokens, {sum(unseen.sizes)} held out")
    heads = _new_heads(target, recipe, shards[:-held], states)
    folder = _folder(work, target, recipe, fresh)
    reporter = _Reporter(recipe.training.steps, heads, target, unseen, folder, tick, say)
    seconds = train(heads, target, states, recipe.training, folder / "checkpoint.pt", reporter)
    as_stored(heads)  # what is judged is what is shipped
    heads.bind(target)
    figures = judge(traces_of(unseen, heads, _JUDGED_TEXTS))
    named = replace(recipe, init=Path(recipe.init).name, sources=_named(recipe.sources), recorded=_named(recipe.recorded))
    about = {"recipe": asdict(named), "trained_tokens": sum(states.sizes), "hit_rates": figures.hit_rates,
             "acceptance": figures.acceptance, "reliability": figures.reliability, "held_out_tokens": figures.positions,
             "base_name": target.name, "training_seconds": round(seconds)}  # fmt: skip
    save_heads(heads, out, target.identity, about)
    write_card(out, about, heads.shape, sum(value.numel() for value in heads.parameters()))
    return figures


def training_prompts(recipe: HeadRecipe, tokenizer: Any) -> list[list[int]]:
    """Prompts of all sources as token ids, in an order that depends on their names and the seed alone."""
    found: list[tuple[str, list[int]]] = []
    for source in recipe.sources:
        for prompt in load_prompts(source.task, source.data or None, source.count, recipe.seed, "train").prompts:
            ids = encode(prompt.messages, tokenizer)
            if 0 < len(ids) <= recipe.max_prompt:
                found.append((hashlib.sha256(f"{recipe.seed}:{prompt.id}".encode()).hexdigest(), ids))
    return [ids for _key, ids in sorted(found)]


def recorded_texts(recipe: HeadRecipe, tokenizer: Any, folder: Path) -> list[Path]:
    """Shards of the recorded conversations of a recipe; none if it has no such sources.

    Raises:
        ArtefactError: a source in which no conversation goes on after an answer.
    """
    texts: list[Text] = []
    for source in recipe.recorded:
        found = load_prompts(source.task, source.data or None, None, recipe.seed, "train", "all").prompts
        read = list(conversations(found, tokenizer, recipe.max_prompt, 2 * recipe.max_new_tokens))
        if not read:
            raise ArtefactError(f"{source.task} holds no conversation that goes on after an answer.", "Leave out --recorded.")
        texts += read[: source.count]
    return keep(texts, folder)


def _named(sources: tuple[Source, ...]) -> tuple[Source, ...]:
    """Sources without the part of a path that means nothing elsewhere."""
    return tuple(replace(source, data=Path(source.data).name) for source in sources)


def _texts(
    target: Target, tokenizer: Any, recipe: HeadRecipe, work: Path, tick: Tick, say: Callable[[str], None]
) -> tuple[list[Path], int]:
    """Shards of written text, and how many of the last ones are held out."""
    prompts = training_prompts(recipe, tokenizer)
    say(f"writing up to {recipe.tokens} tokens after {len(prompts)} prompts")
    stop = StopRule(target.end_ids, recipe.max_new_tokens)
    shards = distill(target, prompts, stop, work / "text", tokens=recipe.tokens, temperature=recipe.temperature, seed=recipe.seed,
                     on_shard=lambda _done, written: tick("write", min(written, recipe.tokens), recipe.tokens))  # fmt: skip
    held = max(1, len(shards) // _HELD_OUT_SHARE)
    if len(shards) <= held:
        raise ArtefactError(f"{len(shards)} shard of text is too little: one is held out.", "Give more prompts or tokens.")
    return shards, held


def _new_heads(target: Target, recipe: HeadRecipe, shards: list[Path], states: StateFiles) -> DraftHeads:
    vocabulary = min(recipe.vocabulary or target.vocab_size, target.vocab_size)
    reduced = vocabulary < target.vocab_size
    shape = HeadShape(recipe.architecture, recipe.heads, recipe.layers, target.hidden_size, vocabulary, reduced=reduced,
                      prefix=_prefix_shape(target) if recipe.architecture == "hydra++" else None)  # fmt: skip
    heads = DraftHeads(shape)
    if reduced:
        assert heads.draft_ids is not None
        written = (torch.from_numpy(text.written) for shard in shards for text in read_shard(shard))
        heads.draft_ids.copy_(frequent_ids(written, vocabulary, target.vocab_size))
    heads.bind(target)
    initialise(heads.float(), torch.cat([states[text].hidden for text in range(min(16, len(states)))]), recipe.seed)
    if recipe.init:
        _take_over(heads, recipe.init)
    return heads


def _take_over(heads: DraftHeads, name: str) -> None:
    """Start from the weights of other heads; a prefix layer that they lack keeps its own start.

    Raises:
        ArtefactError: heads of other counts or widths.
    """
    given = {
        key: value.float() for key, value in load_heads(name).heads.state_dict().items() if key.startswith(("heads.", "prefix."))
    }
    own = heads.state_dict()
    lacking = [key for key in own if key.startswith("heads.") and (key not in given or given[key].shape != own[key].shape)]
    if lacking or not given.keys() <= own.keys():
        raise ArtefactError(f"heads {name} cannot start these: counts or widths differ.", "Use the same --heads and --layers.")
    heads.load_state_dict(own | given)


def _prefix_shape(target: Target) -> PrefixShape:
    """A prefix layer as wide as the target's own layers."""
    columns, theta, eps = target.layer_shape
    keys, inner = target.layer_widths
    queries = target.hidden_size // columns * columns
    return PrefixShape(queries, keys if queries % keys == 0 else queries, inner, columns, theta or 10_000.0, eps)


def _folder(work: Path, target: Target, recipe: HeadRecipe, fresh: bool) -> Path:
    """Where progress of this recipe is kept; another recipe in the same folder has another."""
    key = digest({"recipe": asdict(recipe), "target": target.identity, "dtype": str(target.dtype)}).removeprefix("sha256:")
    folder = work / f"training-{key[:12]}"
    if fresh and (folder / "checkpoint.pt").exists():
        (folder / "checkpoint.pt").unlink()
    if not (folder / "recipe.json").exists():
        write_atomically(folder / "recipe.json", to_json(asdict(recipe)))
    return folder


class _Reporter:
    """Follows a training: losses every hundred steps, held-out figures every four hundred and at the end."""

    def __init__(self, steps: int, heads: DraftHeads, target: Target, unseen: StateFiles, folder: Path,
                 tick: Tick, say: Callable[[str], None]) -> None:  # fmt: skip
        self.steps, self.heads, self.target, self.unseen = steps, heads, target, unseen
        self.curve, self.tick, self.say = folder / "curve.jsonl", tick, say
        self.recent: list[list[float]] = []
        self.started = time.perf_counter()

    def __call__(self, step: int, losses: list[float]) -> None:
        self.recent.append(losses)
        self.tick("train", step, self.steps)
        if step % 100 == 0 or step == self.steps:
            means = np.mean(self.recent, 0).tolist()
            self.recent.clear()
            self.say(f"step {step}: loss per head in nats {', '.join(f'{loss:.3f}' for loss in means)}")
        if step % 400 == 0 or step == self.steps:
            self.look(step)

    def look(self, step: int) -> None:
        """Judge a copy, in the dtype that decoding will use."""
        found = judge(traces_of(self.unseen, copy.deepcopy(self.heads).requires_grad_(False).bind(self.target), _WATCHED_TEXTS))
        first = " ".join(f"{row['top1']:.3f}" for row in found.hit_rates)
        error = " ".join(f"{calibration_error(found.reliability, int(row['head'])):.3f}" for row in found.hit_rates)
        accepts = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in found.acceptance.items())
        self.say(f"step {step}, held out: top 1 {first}; accepted {accepts}; calibration error {error}")
        with self.curve.open("ab") as file:
            seconds = round(time.perf_counter() - self.started, 1)
            file.write(to_json({"step": step, "seconds": seconds, "positions": found.positions, "hit_rates": found.hit_rates,
                                "acceptance": found.acceptance}).replace(b"\n", b"") + b"\n")  # fmt: skip
