"""Tables of the pipeline's results: which columns, from which values. Prints nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from entmtp_calib.trust import too_few

from ._output import Column, Table


def marked(table: Table, counts: Mapping[str, int]) -> Table:
    """The table, with a mark in its title if a figure of the run rests on too few prompts.

    Args:
        counts: prompts of each part.
    """
    small = ", ".join(f"{name} {count}" for name, count in too_few(counts).items())
    return table._replace(title=f"{table.title} (too small to trust: {small} prompts)") if small else table


def prompts_table(task: str, report: Any) -> Table:
    """What became of the prompts; the JSON document also has the first few row numbers of each reason."""
    rows = [{"what": "kept", "prompts": sum(report.used.values())}]
    rows += [{"what": f"skipped: {reason}", "prompts": count, "rows": list(report.examples.get(reason, ()))}
             for reason, count in sorted(report.skipped.items())]  # fmt: skip
    more = {"kept, but cut": report.cut, "not needed": report.not_needed}
    rows += [{"what": what, "prompts": count} for what, count in more.items() if count]
    return Table("prompts", f"Prompts of {task}", (Column("what", "what"), Column("prompts", "prompts")), rows)


def frontier_table(frontier: Any) -> Table:
    """Sizes in powers of two of every growth."""
    rows = []
    for growth in frontier.growths:
        sizes = [2**k for k in range(12) if 2**k < growth.order.size] + [growth.order.size]
        for size in sizes:
            tree = growth.order.prefix(size)
            rows.append({"max_depth": growth.max_depth, "nodes": size, "depth": tree.depth,
                         "searched_accept": growth.scores[size - 1], "added": str(list(growth.order.nodes[size - 1])),
                         "stopped": growth.stopped if size == growth.order.size else ""})  # fmt: skip
    columns = (Column("max_depth", "max depth"), Column("nodes", "nodes"), Column("depth", "depth"),
               Column("searched_accept", "mean accept (search)", ".3f"), Column("added", "last node"),
               Column("stopped", "growth ended"))  # fmt: skip
    return Table("frontier", "Frontier: trees grown on the search prompts", columns, rows)


def generalisation_table(found: Sequence[Any]) -> Table:
    """The frontier on new prompts, beside the trees of other methods."""
    rows = [{"nodes": row.size, "depth": row.depth, "fitted": row.fitted, "held_out": row.held_out, "gap": row.gap,
             "marginal": row.marginal, "sequoia": row.sequoia} for row in found]  # fmt: skip
    columns = (Column("nodes", "nodes"), Column("depth", "depth"), Column("fitted", "search prompts", ".3f"),
               Column("held_out", "new prompts", ".3f"), Column("gap", "gap", "+.1%"),
               Column("marginal", "closed form (Medusa)", ".3f"), Column("sequoia", "ranks alone (Sequoia)", ".3f"))  # fmt: skip
    return Table("generalisation", "Best trees by replay: mean accept, other methods on the new prompts", columns, rows)


def recalibration_table(recalibrated: Sequence[Any]) -> Table:
    """Every candidate's own rollouts beside what the search said."""
    rows = [
        {"tree": item.candidate.label, "nodes": item.candidate.topology.size, "depth": item.candidate.topology.depth,
         "searched": item.candidate.searched, "same_prompts": item.same_prompts, "bias": item.bias,
         "mean_accept": item.mean_accept, "prompt_mean": item.prompt_mean, "steps": item.steps, "near_ties": item.near_ties,
         "looped": item.looped}
        for item in recalibrated
    ]  # fmt: skip
    columns = (Column("tree", "tree"), Column("nodes", "nodes"), Column("searched", "search, biased", ".3f"),
               Column("same_prompts", "own steps, search prompts", ".3f"), Column("bias", "bias", "+.1%"),
               Column("mean_accept", "own rollout, new prompts", ".3f"), Column("prompt_mean", "mean of prompts", ".3f", True),
               Column("steps", "steps", "", True), Column("near_ties", "near ties"),
               Column("looped", "in loops", ".0%", True))  # fmt: skip
    return Table("recalibration", "Recalibration: mean accepted drafts per step, root excluded", columns, rows)


def _of_bank(table: Table, bank: Any) -> Table:
    """The table with the bank's mark."""
    if not bank.too_small_to_trust:
        return table
    found = marked(table, bank.prompts.get("prompts_used", {}))
    return found if found is not table else table._replace(title=f"{table.title} (too small to trust)")


def arms_table(bank: Any) -> Table:
    """Every timed arm by replay, and whether the bank kept it."""
    kept = {tree.label for tree in bank.trees}
    found = bank.evaluation.get("arms_fit_tokens_per_s", {})
    rows = [{"arm": label, "tokens_per_s": rate, "kept": "kept" if label in kept else ""} for label, rate in found.items()]
    columns = (Column("arm", "arm"), Column("tokens_per_s", "tokens/s", ".1f"), Column("kept", "in the bank"))
    title = "Arms on the fit prompts: replayed tokens per step over measured seconds per step"
    if bank.acceptance["rule"] != "exact":
        title = "Arms on the timed prompts: measured tokens per second"
    return _of_bank(Table("arms", title, columns, rows), bank)


def bank_table(bank: Any) -> Table:
    """The trees of a bank."""
    rows = [
        {"index": index, "tree": tree.label, "nodes": tree.topology.size, "depth": tree.topology.depth, **tree.figures}
        for index, tree in enumerate(bank.trees)
    ]
    columns = (Column("index", "index"), Column("tree", "tree"), Column("nodes", "nodes"), Column("depth", "depth"),
               Column("mean_accept", "mean accept", ".3f"), Column("tokens_per_s", "tokens/s", ".1f"),
               Column("speedup", "× ar", ".2f"))  # fmt: skip
    title = f"Bank for {bank.target['name']} with {bank.heads['name']} on {bank.task}"
    return _of_bank(Table("bank", title, columns, rows), bank)


def policy_table(bank: Any) -> Table:
    """The policies of a bank as its evaluation recorded them."""
    recorded = bank.evaluation.get("policies", {})
    rows = []
    for name, policy in bank.policies.items():
        row = recorded.get(name, {})
        gain, seen = row.get("gain", {}), row.get("cross_validated_gain", {})
        rows.append({"policy": name + (" (recommended)" if name == bank.recommended else ""), "rule": describe(policy, bank),
                     "fit_tokens_per_s": row.get("fit_tokens_per_s"), "test_tokens_per_s": row.get("test_tokens_per_s"),
                     "cross_validated": seen.get("ratio"), "cross_validated_low": seen.get("low"),
                     "cross_validated_high": seen.get("high"), "gain": gain.get("ratio"), "gain_low": gain.get("low"),
                     "gain_high": gain.get("high"), "interval": f"{gain['low']:.3f}–{gain['high']:.3f}" if gain else "",
                     "headroom": row.get("headroom"), "random_tokens_per_s": row.get("random_tokens_per_s"),
                     "switches": row.get("switches_per_100_steps")})  # fmt: skip
    rows += _bounds(bank) if recorded else []
    columns = (Column("policy", "policy"), Column("rule", "rule"), Column("fit_tokens_per_s", "tokens/s, fit", ".1f", True),
               Column("cross_validated", "× static, held out", ".3f"), Column("test_tokens_per_s", "tokens/s, test", ".1f"),
               Column("gain", "× static", ".3f"), Column("interval", "95 % interval"),
               Column("headroom", "headroom", ".0%", True), Column("switches", "switches/100", ".1f", True))  # fmt: skip
    how = "by replay" if bank.acceptance["rule"] == "exact" else "by rollouts, not lossless,"
    return _of_bank(Table("policies", f"Policies on {bank.signal}, {how} with measured step costs", columns, rows), bank)


def _bounds(bank: Any) -> list[dict[str, Any]]:
    """Between what policies lie: the oracle, and the trees of each policy as often as it takes them, but by chance."""
    said = bank.evaluation
    static = said["policies"].get("static", {}).get("test_tokens_per_s")

    def row(policy: str, rule: str, test: float | None, **more: Any) -> dict[str, Any]:
        gain = test / static if test and static else None
        return {"policy": policy, "rule": rule, "test_tokens_per_s": test, "gain": gain, **more}

    rows = [row("oracle (ceiling)", "knows each step's acceptance", said.get("oracle_test_tokens_per_s"),
                fit_tokens_per_s=said.get("oracle_fit_tokens_per_s"), headroom=1.0)]  # fmt: skip
    for name, policy in bank.policies.items():
        if len(policy.members) > 1:
            by_chance = said["policies"].get(name, {}).get("random_tokens_per_s")
            rows.append(row(f"{name} at random (floor)", "its trees as often, by chance", by_chance))
    return rows if len(rows) > 1 else [*rows, row("at random (floor)", "same as static: no policy switches", static)]


def describe(policy: Any, bank: Any) -> str:
    """A policy in words."""
    labels = [label for label, _nodes in bank.choices(policy)]
    if policy.kind == "static":
        return labels[policy.index]
    if policy.kind != "dynamic" and len(policy.members) == 1:  # one tree, however many thresholds
        static = bank.policies.get("static")
        return "same as static" if static and static.members == policy.members else f"always {labels[policy.members[0]]}"
    if policy.kind == "hysteresis":
        return f"{labels[policy.low]} below {policy.off:.3g}, {labels[policy.high]} from {policy.on:.3g}"
    dynamic = policy.kind == "dynamic"
    first, *others = policy.members if dynamic else policy.trees
    parts = [labels[first]]
    for edge, index in zip(policy.edges, others, strict=True):
        parts.append(f"{edge:.3g}: {labels[index]}")
    return ", ".join(parts) + (f" of {policy.drafted.size} drafted" if dynamic else "")
