"""The data of figures about policies: the signal beside what is accepted, its reliability, and gains with ceiling and floor.

Everything is replayed over traces or read from the bank. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entmtp_calib.bank import TopologyBank
from entmtp_calib.evidence import Trace
from entmtp_calib.policy import Dynamic, Hysteresis, Ladder, Policy, Static
from entmtp_calib.replay import Replay, Replayer
from entmtp_calib.report.acceptance import NO_REPLAY
from entmtp_calib.report.figure import NONE, Figure, Missing, ratio_interval, span
from entmtp_calib.report.material import Material
from entmtp_calib.signals import COMBINED, Signal
from entmtp_calib.topology import Topology, chain

SIGNAL, RELIABILITY, GAIN = "signal", "reliability", "gain"
TITLES = {
    SIGNAL: "The signal and what is accepted",
    RELIABILITY: "Does the signal mean what it says?",
    GAIN: "What switching gains, between floor and ceiling",
}
_BINS = 8
SMALL_HEADROOM = 1.05  # of the oracle over static


def signal(material: Material) -> Figure | Missing:
    """Accepted drafts of the bank's largest tree in bins of the signal, with the thresholds of its policies."""
    bank, part = replayed_bank(material, SIGNAL, TITLES[SIGNAL]), material.unseen
    if isinstance(bank, Missing):
        return bank
    tree, read = max(bank.trees, key=lambda item: item.topology.size), str(bank.signal)
    if not tree.topology.size:
        return Missing(SIGNAL, TITLES[SIGNAL], "the bank holds plain decoding alone")
    run = _own_steps(tree.topology, material.traces[part], bank.signal)
    rows = _binned(run, run.accepted.astype(float), "accepted")
    lines = [{"policy": name, "threshold": value} for name, policy in bank.policies.items() for value in thresholds(policy)]
    low, high = rows[0], rows[-1]
    sentence = (
        f"Where {read} is lowest (about {low['signal']:.2g}), {tree.label} accepts {low['accepted']:.2f} drafts a step"
        f"{span(low['low'], low['high'])}; where it is highest (about {high['signal']:.2g}), {high['accepted']:.2f}"
        f"{span(high['low'], high['high'])}."
    )
    sentence += "" if lines else " No fitted policy has a threshold on it."
    columns = ("signal_from", "signal_to", "signal", "accepted", "low", "high", "steps")
    unit, meaning = signal_words(bank.signal)
    facts = {"signal": read, "unit": unit, "tree": tree.label, "lines": lines}
    return Figure(SIGNAL, TITLES[SIGNAL], sentence, columns, rows, (part,), facts, (
        f"{read} is {meaning}. Steps of {tree.label} on the {part} prompts, by replay, in bins of about equal count, drawn at "
        f"their means{'; vertical lines are fitted thresholds' if lines else ''}. Intervals: 95 %, bootstrap over prompts.",
    ))  # fmt: skip


def reliability(material: Material) -> Figure | Missing:
    """What the signal announces beside what then happens on the greedy chain."""
    bank, part = replayed_bank(material, RELIABILITY, TITLES[RELIABILITY]), material.unseen
    if isinstance(bank, Missing):
        return bank
    read, depth = str(bank.signal), bank.signal.depth
    if not read.startswith(("expected_chain_", "path_value_")):
        return Missing(RELIABILITY, TITLES[RELIABILITY], f"{read} is no forecast of what is accepted")
    length = read.startswith("expected_chain_")
    run = _own_steps(chain(depth), material.traces[part], bank.signal)
    observed = (run.accepted if length else run.accepted >= depth).astype(float)
    rows = _binned(run, observed, "observed")
    unit = f"accepted drafts of a chain of {depth}" if length else f"share of chains of {depth} accepted whole"
    sentence = (
        f"On average {read} announces {run.signals.mean():.2f} and {observed.mean():.2f} is observed ({unit}), "
        f"{verdict(run, observed)}. Policies read only its order, so they can do well with a signal that is off."
    )
    columns = ("signal_from", "signal_to", "signal", "observed", "low", "high", "steps")
    return Figure(RELIABILITY, TITLES[RELIABILITY], sentence, columns, rows, (part,), {"signal": read, "unit": unit}, (
        f"Steps of the greedy chain on the {part} prompts, by replay. On the diagonal the signal says what happens. "
        "Intervals: 95 %, bootstrap over prompts.",
    ))  # fmt: skip


def gain(material: Material) -> Figure | Missing:
    """Policies over the best static tree, the oracle above them and random switching below, as the bank recorded them."""
    bank = material.bank
    if bank is None:
        return Missing(GAIN, TITLES[GAIN], "there is no bank", "entmtp fit-thresholds")
    if not bank.evaluation.get("policies"):
        return Missing(GAIN, TITLES[GAIN], "the bank has no evaluation", "")
    rows = gain_rows(bank)
    how = "replay" if material.replayable else "rollouts under typical acceptance, which is not lossless,"
    columns = ("arm", "kind", "times_static", "low", "high", "tokens_per_s", "cross_validated", "share_of_headroom",
               "switches_per_100_steps")  # fmt: skip
    notes = [
        f"Tokens per second over those of the best static tree, on the test prompts, by {how} with measured step costs. "
        "Intervals: 95 %, bootstrap over prompts; they hold for the prompts, not for errors of the step costs.",
        "The oracle drafts only the tree that it takes; the one that drafts all pays at every step for what a switching policy "
        "drafts, every tree that it may take.",
    ]
    if any(isinstance(policy, Dynamic) for policy in bank.policies.values()):
        notes.append("Both choose among the trees of the bank. A dynamic policy makes others, so they do not bound it.")
    facts, sentence = {"recommended": bank.recommended}, _gain_sentence(rows, bank)
    return Figure(GAIN, TITLES[GAIN], sentence, columns, rows, ("test", "time"), facts, tuple(notes))


def _gain_sentence(rows: Sequence[Mapping[str, Any]], bank: TopologyBank) -> str:
    switching = [row for row in rows if row["arm"] in policies_that_switch(bank)]
    if switching:
        best = max(switching, key=lambda row: row["times_static"])
        verdict = "a measurable gain" if best["low"] > 1 else "no measurable gain"
        sentence = (
            f"The best policy that changes its tree, {best['arm']}, gives {best['times_static']:.3f} times the best static tree"
            f"{span(best['low'], best['high'], '.3f')}: {verdict}; {bank.recommended} is recommended."
        )
    else:
        sentence = f"No fitted policy changes its tree: {bank.recommended} is recommended."
    for row in rows:
        if row["arm"] == "oracle":
            sentence += (
                f" The oracle, which knows what each tree of the bank would accept, gives {row['times_static']:.3f} times."
            )
            sentence += " The headroom on this bank is small." if row["times_static"] < SMALL_HEADROOM else ""
    if all(len(policy.members) == 1 for policy in bank.policies.values()):
        sentence += " None switches between trees of the bank, so the floor, switching at random, is static itself."
    return sentence


def gain_rows(bank: TopologyBank) -> list[dict[str, Any]]:
    """Rows of the gain figure: policies, then ceiling and floors; what an older bank lacks is left out."""
    recorded, rows = bank.evaluation, []
    for name, row in recorded["policies"].items():
        own = row.get("gain") or {}
        if "ratio" in own:
            rows.append({"arm": name, "kind": "policy", "times_static": own["ratio"], "low": own.get("low", NONE),
                         "high": own.get("high", NONE), "tokens_per_s": row.get("test_tokens_per_s"),
                         "cross_validated": (row.get("cross_validated_gain") or {}).get("ratio"),
                         "share_of_headroom": row.get("headroom"),
                         "switches_per_100_steps": row.get("switches_per_100_steps")})  # fmt: skip
    rows.sort(key=lambda row: (row["arm"] != "static", row["times_static"]))
    base = recorded["policies"].get("static", {}).get("test_tokens_per_s")
    others = [("oracle", "ceiling", recorded.get("oracle_test_tokens_per_s")),
              ("oracle that drafts all", "ceiling", recorded.get("oracle_shared_draft_test_tokens_per_s"))]  # fmt: skip
    for name, policy in policies_that_switch(bank).items():
        if len(policy.members) == 1:  # a dynamic policy that always takes as many nodes has nothing to choose at random
            continue
        floor = recorded["policies"].get(name, {}).get("random_tokens_per_s")
        others.append((f"{name} at random", "floor", floor))
    rows += [{"arm": name, "kind": kind, "times_static": rate / base, "low": NONE, "high": NONE, "tokens_per_s": rate}
             for name, kind, rate in others if base and rate]  # fmt: skip
    return rows


def thresholds(policy: Policy) -> list[float]:
    """Values of the signal at which a policy changes its tree."""
    if isinstance(policy, Ladder | Dynamic):
        return list(policy.edges)
    return sorted({policy.off, policy.on}) if isinstance(policy, Hysteresis) and policy.low != policy.high else []


def replayed_bank(material: Material, name: str, title: str) -> TopologyBank | Missing:
    """The bank of a run, for a figure that replays it, or why the figure cannot be made."""
    if material.bank is None:
        return Missing(name, title, "there is no bank", "entmtp fit-thresholds")
    if not material.replayable:
        return Missing(name, title, NO_REPLAY)
    if not material.unseen:
        return Missing(name, title, "there is no whole set of traces", "entmtp search")
    if material.bank.signal.depth > material.traces[material.unseen][0].heads:
        return Missing(name, title, "the signal needs more heads than the traces have")
    return material.bank


def _own_steps(tree: Topology, traces: Sequence[Trace], signal: Signal) -> Replay:
    """The steps that one tree makes, with the signal there."""
    return Replayer([tree], traces, signal).run(Static(0))


def verdict(run: Replay, observed: NDArray[np.float64]) -> str:
    """Whether what is observed is more or less than the signal announces, beyond the interval over prompts."""
    ratio, low, high = ratio_interval(np.bincount(run.prompt, observed).tolist(), np.bincount(run.prompt, run.signals).tolist())
    much = "it announces too little" if low > 1 else "it announces too much" if high < 1 else "right as far as these prompts tell"
    return f"{ratio:.2f} times as much{span(low, high)}: {much}"


def _binned(run: Replay, values: NDArray[np.float64], column: str) -> list[dict[str, Any]]:
    """Means of values of steps, `[steps]`, in bins of the signal of about equal count.

    Args:
        column: what to call them.
    """
    texts = int(run.prompt.max()) + 1
    edges = np.unique(np.quantile(run.signals, np.arange(1, _BINS) / _BINS))
    bins = np.searchsorted(edges, run.signals, side="right")
    rows: list[dict[str, Any]] = []
    for number in np.unique(bins).tolist():
        inside = bins == number
        counts = np.bincount(run.prompt[inside], minlength=texts).tolist()
        sums = np.bincount(run.prompt[inside], values[inside], texts).tolist()
        value, low, high = ratio_interval(sums, counts)
        own = run.signals[inside]
        rows.append({"signal_from": float(own.min()), "signal_to": float(own.max()), "signal": float(own.mean()), column: value,
                     "low": low, "high": high, "steps": sum(counts)})  # fmt: skip
    return rows


def signal_words(signal: Signal) -> tuple[str, str]:
    """The unit of a signal and what it is."""
    name, depth = signal.name, signal.depth
    said = {
        "expected_chain": ("drafts", f"how many drafts of a chain of {depth} the heads expect to be accepted"),
        "path_value": ("probability", f"how probable target and heads think the root and a chain of {depth} behind it"),
        "base_top1": ("probability", "the target's probability of the root"),
        "entropy_ema": ("nats", "the moving average of the target's entropy at the roots"),
        "entropy": ("nats", "the target's entropy at the root"),
        "accepted_ema": ("drafts", "the moving average of the drafts accepted in the steps before"),
        COMBINED: ("drafts", "a weighted sum of the other signals, fitted to the accepted drafts"),
    }
    return next(words for start, words in said.items() if name.startswith(start))


def policies_that_switch(bank: TopologyBank) -> Mapping[str, Policy]:
    """Policies whose tree is not the same at every step."""
    return {name: policy for name, policy in bank.policies.items() if isinstance(policy, Dynamic) or len(policy.members) > 1}
