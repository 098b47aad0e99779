"""A small bank, and files of it with something changed, for the tests of the bank file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from entmtp_calib.bank import BankTree, TopologyBank, load_bank
from entmtp_calib.errors import ArtefactError
from entmtp_calib.policy import Hysteresis, Ladder, Static
from entmtp_calib.signals import Signal
from entmtp_calib.topology import Topology, published_default

GOLDEN = Path(__file__).parent / "golden" / "bank-v1.json"
FIGURES = ("mean_accept", "tokens_per_step", "tokens_per_s", "seconds_per_step", "draft_seconds", "speedup", "speedup_low",
           "speedup_high")  # fmt: skip


def tree(label: str, topology: Topology, *figures: float) -> BankTree:
    return BankTree(label, topology, dict(zip(FIGURES, map(float, figures), strict=True)))


def small_bank() -> TopologyBank:
    """The bank that the golden file holds."""
    return TopologyBank(
        task="humaneval",
        target={"name": "tiny", "identity": "sha256:target", "vocab_size": 97},
        heads={"name": "heads", "identity": "sha256:heads", "layout": "hydra", "heads": 4},
        acceptance={"rule": "exact", "temperature": 0},
        template={"style": "raw", "hash": "sha256:template"},
        signal=Signal("path_value_2"),
        trees=(
            tree("ar", Topology(), 0, 1, 40, 0.025, 0, 1, 0.9921875, 1.0078125),
            tree("n3-d2", Topology(((0,), (1,), (0, 0))), 0.75, 1.75, 62.5, 0.028, 0.001, 1.5625, 1.5, 1.625),
            tree("default-63", published_default(), 1.125, 2.125, 64, 0.033203125, 0.0045, 1.6, 1.4, 1.8),
        ),
        policies={"static": Static(1), "ladder": Ladder((0.125, 0.5), (0, 1, 2)), "hysteresis": Hysteresis(0.5, 0.25, 1, 2)},
        recommended="ladder",
        measured={"system": "Linux x86_64", "cpu": "a processor", "cores": 2, "load": 0.5, "device": "cpu", "dtype": "float32"},
        evaluation={"method": "replay", "policies": {"ladder": {"shares": [0.25, 0.25, 0.5]}}, "oracle_test_tokens_per_s": 80.5},
        splits={part: {"prompts": 2, "hash": f"sha256:{part}"} for part in ("search", "fit", "test")},
        limits={"max_new_tokens": 128, "end_ids": [0, 5]},
        provenance={"versions": {"python": "3.11.0"}, "revision": "", "command": ["entmtp", "run"]},
    )


PLAIN: dict[str, Any] = json.loads(json.dumps(small_bank().to_json()))
DYNAMIC = {"edges": [0.25], "sizes": [1, 3], "drafted": [[0], [1], [0, 0]]}
WRONG: list[Any] = [None, True, [], {}]


def written(folder: Path, value: Any) -> Path:
    path = folder / "bank.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def refusal(folder: Path, value: Any) -> str:
    """The message without the path, which could hold any word."""
    path = written(folder, value)
    with pytest.raises(ArtefactError) as error:
        load_bank(path)
    assert error.value.hint
    return error.value.message.replace(str(path), "")


def changed(*keys: str | int, to: Any = ...) -> dict[str, Any]:
    """The plain bank with one place replaced, or deleted if `to` is not given."""
    value: Any = copy.deepcopy(PLAIN)
    inner = value
    for key in keys[:-1]:
        inner = inner[key]
    if to is ...:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = to
    return value
