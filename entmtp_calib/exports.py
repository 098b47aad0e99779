"""Trees in the words of serving engines: the exact text that an engine reads, and what it can and cannot do with it.

Knows topologies and the engines' formats; knows no files, and nothing of Sequoia's tensors (`calibrate.grow_map`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from entmtp_calib.errors import ArtefactError, UsageError, did_you_mean
from entmtp_calib.topology import Node, Topology, chain

MEDUSA_GUESSES = 10  # Medusa takes a top-10 of every head, whatever the tree, and ungrounded Hydra heads count on it
TRTLLM_GUESSES, TRTLLM_LEVELS, TRTLLM_DEPTH = 16, 8, 16  # ranks packed in 4 bits each, in words of 32 bits, then of 64


@dataclass(frozen=True, slots=True)
class Export:
    """What an engine reads, ending in a newline, and what to know about it, a sentence each."""

    text: str
    notes: tuple[str, ...]


def export_tree(topology: Topology, engine: str, heads: str = "", legacy: bool = False) -> Export:
    """One tree in the format of an engine.

    Args:
        engine: one of `ENGINES`.
        heads: layout of the heads that the tree was measured with, "" if not known; some engines run only some kinds.
        legacy: for vLLM, the tree as its versions up to 0.20.2 read it.

    Raises:
        UsageError: an unknown engine, or a tree without nodes. ArtefactError: a tree that the engine would run wrongly.
    """
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}.", did_you_mean(engine, list(ENGINES)))
    if not topology.size:
        raise UsageError("plain decoding has no tree to export.", "Run the engine without speculation, or choose a --tree.")
    if legacy and engine != "vllm":
        raise UsageError("--legacy is about vLLM.", "Leave it out.")
    topology = topology.sorted()
    return _vllm_legacy(topology, heads) if legacy else ENGINES[engine](topology, heads)


def export_ladder(topologies: Sequence[Topology]) -> Export:
    """SGLang's adaptive configuration for the trees of a switching policy: the depths of its chains.

    The depths stand under "1", the smallest batch they are for, as versions from 0.5.13 read them, and again beside it without
    plain decoding, as 0.5.11 and 0.5.12 do. Each ignores the other's.

    Raises:
        UsageError: no two trees differ in depth.
    """
    steps = sorted({topology.depth for topology in topologies})
    if steps[-1] == 0:
        raise UsageError("the policy chooses plain decoding only; there is no tree to export.", "Choose a --tree.")
    if len(steps) == 1:
        raise UsageError(f"all trees of the policy are {steps[0]} deep, and SGLang switches between depths only.",
                         "Choose --policy static, or a --tree.")  # fmt: skip
    rule = {"1": {"candidate_steps": steps}, "candidate_steps": [depth for depth in steps if depth], "ema_alpha": 0.2,
            "warmup_batches": 10, "update_interval": 5, "down_hysteresis": -0.25, "up_hysteresis": 0.0}  # fmt: skip
    notes = [
        "give the file with --speculative-algorithm EAGLE3 --speculative-adaptive --speculative-adaptive-config FILE "
        "--speculative-eagle-topk 1",
        "SGLang switches between chains only: the depths of the bank's trees are kept, their branches are not",
        "it switches by its own average of accepted drafts; the bank's signal and thresholds are not used, and all values but "
        "candidate_steps are SGLang's own",
        _EAGLE_ONLY,
    ]
    if steps[0] == 0:
        notes.append("0 steps are plain decoding; SGLang can switch to it from version 0.5.14 on, and 0.5.13 refuses it")
    return Export(json.dumps(rule) + "\n", tuple(notes))


_ONE_TREE = "the engine runs this one tree; it cannot switch between trees"
_EAGLE_ONLY = "SGLang drafts with EAGLE models, not with Medusa or Hydra heads: take the shape as a starting point and measure it"


def _list(topology: Topology) -> str:
    return json.dumps(topology.to_lists())


def _medusa(topology: Topology, heads: str) -> Export:
    _few_guesses(topology, "Medusa")
    notes = (f"give the list as medusa_choices: {topology.size} nodes, the root is not counted; the model needs at least "
             f"{topology.depth} heads", "for the code of Medusa's repository; the older package medusa-llm 0.1 takes numbers of "
             "guesses instead", _ONE_TREE)  # fmt: skip
    return Export(_list(topology) + "\n", (*notes, *_other_heads("Medusa", "medusa", heads)))


def _hydra(topology: Topology, heads: str) -> Export:
    odd = _expanded_behind_unexpanded(topology)
    if odd is not None:
        raise ArtefactError(
            f"Hydra's decoder expands the first children of a node, and here {list(odd)} has children and the guess before it "
            "has none: it would glue them to the wrong guess.",
            "Choose another --tree.",
        )
    notes = [f"give the list as hydra_choices: {topology.size} nodes, the root is not counted; the model needs at least "
             f"{topology.depth} heads", _ONE_TREE]  # fmt: skip
    if not heads.startswith("entmtp hydra") and not _fills_levels(topology):  # our own Hydra heads are grounded
        notes.append("for grounded heads only: with others Hydra's decoder mixes the guesses up, unless every level but the last "
                     f"goes exactly to guess {MEDUSA_GUESSES - 1}, counted from 0")  # fmt: skip
    return Export(_list(topology) + "\n", (*notes, *_other_heads("Hydra", "hydra", heads)))


def _trtllm(topology: Topology, heads: str) -> Export:
    _told_apart(topology)
    printed = ", which --to medusa prints" if topology.max_rank < MEDUSA_GUESSES else ""
    text = "".join(f"- {json.dumps(node)}\n" for node in topology.to_lists())
    notes = (
        "give the file to trtllm-bench … latency --medusa_choices FILE; examples/run.py and the LLM API take the same nodes as "
        f"one list{printed}",
        f"MedusaDecodingConfig: max_draft_len is the number of nodes, {topology.size}; num_medusa_heads is at least "
        f"{topology.depth}; the TensorRT backend only",
        f"EagleDecodingConfig: max_draft_len is the depth, {topology.depth}; max_total_draft_tokens is the number of nodes, "
        f"{topology.size}; TensorRT-LLM calls such a tree deprecated and says that release 1.4 removes it",
        "a tree belongs to the engine's configuration: " + _ONE_TREE,
    )
    return Export(text, (*notes, *_other_heads("TensorRT-LLM", "medusa", heads)))


def _sglang(topology: Topology, heads: str) -> Export:
    depth, width = topology.depth, max(_children(topology).values())
    wanted, most = topology.size + 1, 1 + width + (depth - 1) * width**2  # a beam of `width` nodes has `width` guesses each
    notes = [
        "a hint of the shape: SGLang has no fixed trees and grows one of its own at every step; the draft tokens count the root",
        _EAGLE_ONLY,
    ]
    if wanted > most:
        notes.append(f"the tree has {wanted} tokens with its root; {depth} steps with {width} guesses allow {most}")
    flags = (f"--speculative-algorithm EAGLE3 --speculative-num-steps {depth} --speculative-eagle-topk {width} "
             f"--speculative-num-draft-tokens {min(wanted, most)}")  # fmt: skip
    return Export(flags + "\n", tuple(notes))


def _vllm(topology: Topology, heads: str) -> Export:
    config: dict[str, object] = {"method": "medusa"} if "medusa" in heads.lower() else {}
    config["num_speculative_tokens"] = topology.depth
    notes = ["give it as --speculative-config, with the model that drafts: num_speculative_tokens counts the tokens of a chain"]
    if topology != chain(topology.depth):
        left_out = topology.size - topology.depth
        notes.append(f"vLLM verifies chains only: the first guesses are kept, {left_out} of {topology.size} nodes are not")
    if "method" in config:
        notes.append("vLLM up to 0.32 only: from 0.33.0 on it has no method medusa")
    return Export(json.dumps(config) + "\n", (*notes, *_other_heads("vLLM", "medusa", heads)))


def _vllm_legacy(topology: Topology, heads: str) -> Export:
    for depth, counts in _counts_by_level(topology).items():
        if len(set(counts)) > 1:
            raise ArtefactError(
                f"vLLM's tree gives every node of a level the same number of children, and at depth {depth} the numbers are "
                f"{sorted(set(counts))}.",
                "Leave out --legacy for a chain, or choose another --tree.",
            )
    tree = "[" + ", ".join(str(node) for node in topology.nodes) + "]"
    config = {"num_speculative_tokens": topology.size, "speculative_token_tree": tree}
    notes = [
        "for vLLM up to 0.20.2, with the attention backend TREE_ATTN; from 0.21.0 on it refuses speculative_token_tree",
        "give it as --speculative-config, with method and model; num_speculative_tokens counts nodes here, not depth",
        "EAGLE and small draft models draft such a tree; vLLM's Medusa heads draft one chain whatever the tree",
    ]
    if topology != chain(topology.depth):
        notes.append("vLLM 0.20.2 drafts the branches and then checks all nodes one after the other, as if they were a chain: it "
                     "rejects right guesses and can write what the target did not choose; run this with a tree sampler of your "
                     "own only")  # fmt: skip
    return Export(json.dumps(config) + "\n", (*notes, *_other_heads("vLLM's tree", "eagle", heads)))


def _sequoia(topology: Topology, heads: str) -> Export:
    notes = (
        f"the grow map of tests/testbed.py and testbed_greedy.py, its size counts the root: {topology.size + 1}",
        f"give an --M that holds the text and {topology.size} nodes beside it",
        "Sequoia drafts with a small model, not with heads: the tree says how many tokens are drawn under each node, and the "
        "measured acceptance does not carry over",
        _ONE_TREE,
    )
    return Export("", notes)


ENGINES: dict[str, Callable[[Topology, str], Export]] = {
    "medusa": _medusa, "hydra": _hydra, "trtllm": _trtllm, "sglang": _sglang, "vllm": _vllm, "sequoia": _sequoia,
}  # fmt: skip
"""What writes for each engine; for Sequoia the text is empty and `calibrate.grow_map` writes the file."""


def _other_heads(engine: str, runs: str, heads: str) -> list[str]:
    if not heads or runs in heads.lower():
        return []
    return [f"the tree was measured with heads of the layout {heads}, which {engine} does not run: measure it anew there"]


def _few_guesses(topology: Topology, engine: str) -> None:
    if topology.max_rank >= MEDUSA_GUESSES:
        raise ArtefactError(
            f"{engine} takes {MEDUSA_GUESSES} guesses of every head, and this tree asks for guess {topology.max_rank}, counted "
            "from 0: it would read another head's.",
            "Choose another --tree.",
        )


def _fills_levels(topology: Topology) -> bool:
    """Whether every level but the last goes to the tenth guess and no further."""
    return all(max(node[-1] for node in topology.nodes if len(node) == depth) == MEDUSA_GUESSES - 1
               for depth in range(1, topology.depth))  # fmt: skip


def _told_apart(topology: Topology) -> None:
    """Refuse nodes whose ranks TensorRT-LLM's runtime cannot pack: it takes some for others without a word."""
    for node in topology.nodes:
        if max(node) >= TRTLLM_GUESSES or len(node) > TRTLLM_DEPTH or any(node[:-TRTLLM_LEVELS]):
            raise ArtefactError(
                f"TensorRT-LLM packs the ranks of a node in 4 bits each, and {TRTLLM_LEVELS} levels in a word: it would refuse "
                f"{list(node)} or take it for another node.",
                "Choose another --tree.",
            )


def _children(topology: Topology) -> Counter[Node]:
    return Counter(node[:-1] for node in topology.nodes)


def _counts_by_level(topology: Topology) -> dict[int, list[int]]:
    """Numbers of children of the nodes at every depth that has any child, the root at depth 0."""
    children = _children(topology)
    nodes: list[Node] = [(), *topology.nodes]
    return {depth: [children[node] for node in nodes if len(node) == depth] for depth in range(topology.depth)}


def _expanded_behind_unexpanded(topology: Topology) -> Node | None:
    """A node with children whose left sibling has none, or None."""
    children = _children(topology)
    for node in children:
        if node and node[-1] and not children[(*node[:-1], node[-1] - 1)]:
            return node
    return None
