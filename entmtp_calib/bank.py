"""The bank: the product of a calibration, one JSON file that `decode` runs without any other.

Reads and checks every field; masks are derived from the trees, never stored. Needs no torch.

History of the format: 1, the first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from entmtp_calib.bank_record import check_record
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.policy import Dynamic, Policy, policy_from_json
from entmtp_calib.signals import Signal, signal_from_json
from entmtp_calib.storage import read_json, savable, to_json, write_atomically
from entmtp_calib.template import RESOLVED
from entmtp_calib.topology import Topology, from_lists

FORMAT, VERSION = "entmtp-bank", 1
_HINT = "Make it again with: entmtp run"
_PLAIN: dict[str, type] = {"task": str, "recommended": str, "measured": dict, "evaluation": dict, "splits": dict,
                           "limits": dict, "provenance": dict}  # fmt: skip
_SECTIONS = {"target": ("name", "identity"), "heads": ("name", "identity"), "acceptance": ("rule",),
             "template": ("style", "hash")}  # fmt: skip
"""Objects of the file and the texts that each must have."""
_OPTIONAL: dict[str, Any] = {"prompts": {}, "too_small_to_trust": False}  # fields that an older bank lacks
_TREE_NUMBERS = ("mean_accept", "tokens_per_step", "tokens_per_s", "seconds_per_step", "draft_seconds", "speedup",
                 "speedup_low", "speedup_high")  # fmt: skip


@dataclass(frozen=True, slots=True)
class BankTree:
    """A tree with its measured figures; see `calibrate.timing.Timed` for their meaning."""

    label: str
    topology: Topology
    figures: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"label": self.label, "size": self.topology.size, "depth": self.topology.depth,
                "nodes": self.topology.to_lists(), **self.figures}  # fmt: skip


_RULES: dict[str, dict[str, Callable[[Any], bool]]] = {
    "exact": {
        "temperature": lambda value: _is_number(value) and value >= 0,
        "top_k": lambda value: type(value) is int and value >= 0,
        "top_p": lambda value: _is_number(value) and 0 < value <= 1,
        "coupled": lambda value: type(value) is bool,
    },
    "typical": {name: lambda value: _is_number(value) and value > 0 for name in ("temperature", "epsilon", "alpha")},
}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)


def _is_rule(acceptance: Mapping[str, Any]) -> bool:
    """Whether a decoder can run this rule."""
    fields = _RULES.get(str(acceptance["rule"]), {})
    given = {name: value for name, value in acceptance.items() if name != "rule"}
    return "temperature" in given and all(name in fields and fields[name](value) for name, value in given.items())


@dataclass(frozen=True, slots=True)
class TopologyBank:
    """Trees, policies over them, and everything that says where they are valid.

    task: what it was calibrated on; target, heads: name, identity and what else they need; acceptance: rule and temperature;
    template: prompt style and hash of the chat template; signal: what the policies read; recommended: name of a policy;
    measured: machine and placement of the timings; evaluation: what the policies gave on held-out prompts; splits: prompts of
    each part, by hash; limits: cap and end ids of the calibration; provenance: versions and command; prompts: how many were used
    and skipped, and how long they are; too_small_to_trust: a figure rests on fewer than `trust.SMALL` prompts.
    """

    task: str
    target: Mapping[str, Any]
    heads: Mapping[str, Any]
    acceptance: Mapping[str, Any]
    template: Mapping[str, Any]
    signal: Signal
    trees: tuple[BankTree, ...]
    policies: Mapping[str, Policy]
    recommended: str
    measured: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    splits: Mapping[str, Any]
    limits: Mapping[str, Any]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    prompts: Mapping[str, Any] = field(default_factory=dict)
    too_small_to_trust: bool = False

    @property
    def topologies(self) -> list[Topology]:
        """The trees, in the order that policies index."""
        return [tree.topology for tree in self.trees]

    def choices(self, policy: Policy) -> list[tuple[str, int]]:
        """What the indices of a policy mean, label and number of nodes: trees of the bank, or so many best nodes of a draft."""
        if isinstance(policy, Dynamic):
            return [(f"best {size}", size) for size in policy.sizes]
        return [(tree.label, tree.topology.size) for tree in self.trees]

    def policy(self, name: str = "auto") -> Policy:
        """A policy by name; "auto" is the recommended one.

        Raises:
            UsageError: the bank has no such policy.
        """
        name = self.recommended if name == "auto" else name
        if name not in self.policies:
            raise UsageError(f"the bank has no policy {name!r}.", f"It has: {', '.join(self.policies)}.")
        return self.policies[name]

    def check_fits(self, target: str, heads: str, template: str) -> None:
        """Refuse another model, other heads or another template.

        Args:
            target, heads, template: identities of what was loaded.

        Raises:
            ArtefactError: one of them is not what the bank was made for.
        """
        for what, wanted, found in (("model", self.target, target), ("heads", self.heads, heads)):
            if wanted["identity"] != found:
                raise ArtefactError(f"the bank was made for other {what} (it names {wanted['name']}).", _HINT)
        if self.template["hash"] != template:
            raise ArtefactError("the bank was made with another chat template or prompt style.", _HINT)

    def save(self, path: Path) -> None:
        """Write the bank atomically."""
        write_atomically(path, to_json(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Plain values for the file."""
        value: dict[str, Any] = {name: getattr(self, name) for name in (*_PLAIN, *_SECTIONS)}
        value |= {name: getattr(self, name) for name in _OPTIONAL if getattr(self, name)}
        policies = {name: policy.to_json() for name, policy in self.policies.items()}
        value["signal"] = self.signal.to_json()
        return value | {"format": FORMAT, "version": VERSION, "trees": [t.to_json() for t in self.trees], "policies": policies}


def load_bank(path: Path | str) -> TopologyBank:
    """Read and check a bank.

    Raises:
        ArtefactError: missing, not a bank, another version, or a field that cannot be right; the message names the field.
    """
    path = Path(path)
    value = read_json(path, "bank", "Make one with: entmtp run")
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ArtefactError(f"{path} is not a bank.", "Give a bank.json that entmtp wrote.")
    if type(value.get("version")) is not int or value["version"] != VERSION:
        raise ArtefactError(f"{path} has version {value.get('version')!r}; this tool reads {VERSION}.", _HINT)
    try:
        bank = _parse(value)
    except ArtefactError as error:
        raise ArtefactError(f"{path}: {error.message}", error.hint or _HINT) from None
    if not savable(value):
        raise ArtefactError(f"{path} holds a number that is not finite or a text that is not Unicode.", _HINT)
    return bank


def _parse(value: dict[str, Any]) -> TopologyBank:
    plain: dict[str, Any] = {name: _get(value, name, kind) for name, kind in _PLAIN.items()}
    sections: dict[str, Any] = {name: _section(value, name, texts) for name, texts in _SECTIONS.items()}
    more: dict[str, Any] = {name: _get(_OPTIONAL | value, name, type(absent)) for name, absent in _OPTIONAL.items()}
    trees = _trees(value)
    policies = {name: policy_from_json(name, row, len(trees)) for name, row in _get(value, "policies", dict).items()}
    if "signal" not in value:
        raise ArtefactError("field 'signal' is missing.")
    bank = TopologyBank(
        **plain,
        **more,
        **sections,
        signal=signal_from_json(value["signal"]),
        trees=trees,
        policies=policies,
    )
    _check_together(bank)
    check_record(bank.evaluation, bank.splits, bank.prompts)
    return bank


def _check_together(bank: TopologyBank) -> None:
    """Refuse parts that cannot be used, or not with each other."""
    if bank.recommended not in bank.policies:
        raise ArtefactError(f"field 'recommended' names {bank.recommended!r}, which is no policy of the bank.")
    drafted = [policy.drafted for policy in bank.policies.values() if isinstance(policy, Dynamic)]
    needed = max(bank.signal.depth, *(tree.depth for tree in [*bank.topologies, *drafted]))
    heads = bank.heads.get("heads")
    if type(heads) is not int or heads < needed:
        raise ArtefactError(f"the bank needs {needed} heads and names heads with {heads!r}.")
    if not _is_rule(bank.acceptance):
        raise ArtefactError(f"acceptance {dict(bank.acceptance)} is not known.", f"Known rules: {', '.join(_RULES)}.")
    if bank.template["style"] not in RESOLVED:
        raise ArtefactError(f"field 'template.style' is {bank.template['style']!r}, not {', '.join(RESOLVED)}.")


def _trees(value: dict[str, Any]) -> tuple[BankTree, ...]:
    rows = _get(value, "trees", list)
    if not rows:
        raise ArtefactError("the bank holds no tree.")
    trees = tuple(_tree(row, f"trees[{number}]") for number, row in enumerate(rows))
    labels = [tree.label for tree in trees]
    if len(set(labels)) != len(labels):
        raise ArtefactError(f"two trees of the bank have the same label: {labels}.")
    return trees


def _tree(row: Any, where: str) -> BankTree:
    if not isinstance(row, dict):
        raise ArtefactError(f"{where} is not an object.")
    topology = from_lists(row.get("nodes"), f"{where}.nodes")
    for name, wanted in (("size", topology.size), ("depth", topology.depth)):
        if type(row.get(name)) is not int or row[name] != wanted:
            raise ArtefactError(f"{where}.{name} is {row.get(name)!r} and its nodes say {wanted}.")
    figures = {name: _number(row.get(name), f"{where}.{name}") for name in _TREE_NUMBERS}
    return BankTree(_get(row, "label", str, where), topology, figures)


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        raise ArtefactError(f"field {where} is {value!r}, which is not a measured figure.")
    return float(value)


def _section(value: dict[str, Any], name: str, texts: Sequence[str]) -> dict[str, Any]:
    section: dict[str, Any] = _get(value, name, dict)
    for text in texts:
        if not _get(section, text, str, name):
            raise ArtefactError(f"field '{name}.{text}' is empty.")
    return section


def _get(value: dict[str, Any], name: str, kind: type, where: str = "") -> Any:
    label = f"{where}.{name}" if where else name
    if name not in value:
        raise ArtefactError(f"field {label!r} is missing.")
    if type(value[name]) is not kind:
        raise ArtefactError(f"field {label!r} is {str(value[name])[:40]!r}, not {kind.__name__}.")
    return value[name]
