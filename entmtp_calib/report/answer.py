"""What a run says to use, in a few sentences, from what its bank recorded: the beginning of the page. Computes nothing."""

from __future__ import annotations

from entmtp_calib.bank import TopologyBank
from entmtp_calib.policy import Dynamic, Static
from entmtp_calib.report.figure import NONE, span
from entmtp_calib.report.material import Material


def answer(material: Material) -> tuple[str, str, str]:
    """What the run is of; the policy to use; what is known about it."""
    about, bank = material.run.about["inputs"], material.bank
    first = f"Draft trees for {about['target']['name']} with the heads {about['heads']['name']}, on {material.config.task}."
    if not material.replayable:
        first += " Acceptance is typical and not lossless: the text depends on the tree."
    if bank is None:
        return first, "The run has no bank yet, so it does not say what to use.", ""
    known = [_static(bank), _added(bank), f"The bank holds {', '.join(tree.label for tree in bank.trees)}; ar is plain decoding."]
    return first, f"Use the policy {bank.recommended}: {_does(bank)}.", " ".join(text for text in known if text)


def _static(bank: TopologyBank) -> str:
    """What the best static tree gave when it was timed."""
    policy = bank.policies.get("static")
    if not isinstance(policy, Static):
        return ""
    tree = bank.trees[policy.index]
    if not tree.topology.size:
        return "No single tree is faster than plain decoding here."
    told = tree.figures
    return (
        f"The tree {tree.label} alone writes {told['tokens_per_s']:.1f} tokens/s as timed, {told['speedup']:.2f} times plain "
        f"decoding{span(told['speedup_low'], told['speedup_high'])}."
    )


def _added(bank: TopologyBank) -> str:
    """What the recommended policy adds, as the bank recorded it."""
    gain = bank.evaluation.get("policies", {}).get(bank.recommended, {}).get("gain") or {}
    if bank.policy() == bank.policies.get("static") or "ratio" not in gain:
        return ""
    reach = span(gain.get("low", NONE), gain.get("high", NONE), ".3f")
    how = "By replay" if bank.acceptance["rule"] == "exact" else "In rollouts"
    return f"{how} {bank.recommended} gives {gain['ratio']:.3f} times the best static tree{reach}."


def _does(bank: TopologyBank) -> str:
    """The recommended policy in words."""
    policy = bank.policy()
    if isinstance(policy, Dynamic):
        sizes = " or ".join(str(size) for size in dict.fromkeys(policy.sizes))
        on = f", how many depends on {bank.signal}" if len(policy.sizes) > 1 else ""
        return f"of {policy.drafted.size} drafted nodes it verifies the {sizes} that the heads are surest of{on}"
    labels = [bank.trees[index].label for index in policy.members]
    if len(labels) == 1:
        return f"always {labels[0] if bank.topologies[policy.members[0]].size else 'plain decoding'}"
    return f"at every step {', '.join(labels[:-1])} or {labels[-1]}, by {bank.signal}"
