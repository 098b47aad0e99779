"""A tiny model with random heads and banks for it, all in memory: no training, no files, no calibration."""

from __future__ import annotations

from typing import Any

import torch
from conftest import byte_tokenizer, random_heads, tiny_model

from entmtp_calib import BankTree, Dynamic, Hysteresis, Ladder, Policy, Static, Topology, TopologyBank
from entmtp_calib.engine.head_files import LoadedHeads
from entmtp_calib.engine.loading import choose_placement
from entmtp_calib.engine.pair import Pair
from entmtp_calib.engine.target import Target
from entmtp_calib.provenance import machine
from entmtp_calib.signals import Signal
from entmtp_calib.template import template_about
from entmtp_calib.topology import chain

WIDE = Topology(((0,), (1,), (2,), (3,), (0, 0), (1, 0), (0, 0, 0)))
FIGURES = {"mean_accept": 0.0, "tokens_per_step": 1.0, "tokens_per_s": 100.0, "seconds_per_step": 0.01, "draft_seconds": 0.0,
           "speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0}  # fmt: skip
CHAT = "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"


def tiny_pair(architecture: str = "hydra", template: str | None = None, positions: int = 512) -> Pair:
    """A random model of bytes and random heads, in float32."""
    target = Target(tiny_model(vocab=257, positions=positions, initializer_range=0.25), frozenset([0]), "tiny", "sha256:tiny")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    heads: Any = random_heads(target, architecture, heads=3)
    loaded = LoadedHeads(heads, "tiny-heads", "entmtp hydra", "sha256:heads", "")
    return Pair(target, tokenizer, choose_placement("cpu", "float32"), loaded, None)


def bank_for(pair: Pair, temperature: float = 0.0) -> TopologyBank:
    """A bank with plain decoding, a chain and a wide tree, and policies whose bins are all met."""
    low, high = _thirds(pair)
    policies: dict[str, Policy] = {"static": Static(2), "ladder": Ladder((low, high), (0, 1, 2)),
                                   "hysteresis": Hysteresis(high, low, 1, 2),
                                   "dynamic": Dynamic((low, high), (5, 2, 4), WIDE)}  # fmt: skip
    return TopologyBank(
        task="humaneval",
        target={"name": "tiny", "identity": pair.target.identity},
        heads={"name": "tiny-heads", "identity": "sha256:heads", "heads": 3},
        acceptance={"rule": "exact", "temperature": temperature},
        template=template_about(pair.tokenizer, "auto"),
        signal=Signal("path_value_2"),
        trees=(BankTree("ar", Topology(), FIGURES), BankTree("chain", chain(2), FIGURES), BankTree("wide", WIDE, FIGURES)),
        policies=policies,
        recommended="ladder",
        measured=machine() | {"device": "cpu", "dtype": "float32"},
        evaluation={},
        splits={},
        limits={},
    )


def _thirds(pair: Pair) -> tuple[float, float]:
    """Values of the signal between which a third of the steps lies."""
    from entmtp_calib.engine.decoder import Decoder
    from entmtp_calib.engine.stopping import StopRule

    decoder = Decoder(pair.target, pair.heads, [Topology(), chain(1)], Ladder((0.5,), (0, 1)), "path_value_2")
    with torch.inference_mode():
        seen = sorted(step.signal for step in decoder.steps(list(range(60, 70)), StopRule(frozenset(), 40)))
    return seen[len(seen) // 3], seen[2 * len(seen) // 3]
