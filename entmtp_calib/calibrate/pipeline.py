"""The stages of a run, each reading what the stage before wrote: search, recalibrate, time, fit-thresholds.

Computes and stores; prints nothing. Every stage skips what is there, so the same call resumes a killed one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from entmtp_calib.calibrate.bank_rules import HULL, check_rule
from entmtp_calib.calibrate.baseline_trees import marginal_tree
from entmtp_calib.calibrate.candidates import Candidate, choose_candidates
from entmtp_calib.calibrate.cost_model import Predicted
from entmtp_calib.calibrate.environment import timed_on, timed_with_graphs
from entmtp_calib.calibrate.farm import Farm
from entmtp_calib.calibrate.fit_stage import by_replay, by_rollouts
from entmtp_calib.calibrate.fitting import Fitted, make_bank
from entmtp_calib.calibrate.generalisation import Generalisation, generalisation
from entmtp_calib.calibrate.joint_search import grow_jointly, joint_rollout, joint_work
from entmtp_calib.calibrate.recalibrate import Recalibrated, recalibrate, rollout_work
from entmtp_calib.calibrate.rollout import self_rollout, trace_work
from entmtp_calib.calibrate.rounds import time_arms
from entmtp_calib.calibrate.search import Frontier, Growth, frontier_from_json, search
from entmtp_calib.calibrate.splits import Encoded, Report, RunConfig, Splits
from entmtp_calib.calibrate.time_stage import progress, race_of, speeds
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.engine.acceptance import GREEDY, Exact
from entmtp_calib.engine.limits import check_depth
from entmtp_calib.engine.pair import Pair, with_graphs
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.evidence import Trace
from entmtp_calib.graph_mode import wants_graphs
from entmtp_calib.provenance import machine, provenance
from entmtp_calib.rundir import STAGES, RunDir
from entmtp_calib.signals import AUTO, signal_depth
from entmtp_calib.storage import Journal, read_json, to_json, write_atomically
from entmtp_calib.template import template_about
from entmtp_calib.topology import Topology, from_lists
from entmtp_calib.trust import prompts_used

Tick = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""
_POOL = 4  # nodes that a joint rollout looks at, for every node of the largest tree


class Calibration:
    """One run: its folder, its models (loaded when first needed) and its stages.

    Args:
        run: the folder.
        pair, prompts: called at most once, when a stage has something to compute.
        tick: told about progress.
        farm: processes that share rollouts and recalibration.
    """

    def __init__(
        self, run: RunDir, pair: Callable[[], Pair], prompts: Callable[[Pair], Splits], tick: Tick, farm: Farm | None = None
    ) -> None:
        self.run = run
        self.farm = farm or Farm()
        self.config = RunConfig(**run.about["config"])
        self._load_pair, self._load_prompts = pair, prompts
        self._pair: Pair | None = None
        self._splits: Splits | None = None
        self._traces: dict[str, list[Trace]] = {}
        self.tick = tick

    @property
    def pair(self) -> Pair:
        """Target and heads."""
        if self._pair is None:
            self._pair = self._load_pair()
            check_same(self.run.about["inputs"], inputs_of(self._pair, self.config))
        return self._pair

    @property
    def splits(self) -> Splits:
        """Prompts as token ids."""
        if self._splits is None:
            self._splits = self._load_prompts(self.pair)
            if self._splits.about() != self.run.about["inputs"]["splits"]:
                raise ArtefactError("the prompts are not those that this run began with.", "Start another run with --out.")
        return self._splits

    @property
    def stop(self) -> StopRule:
        """When texts of this run end."""
        return stop_rule(self.pair, self.config)

    def search(self) -> Frontier:
        """Grow the frontier, from one trace of the search prompts or, by another schedule, from joint rollouts."""
        path = self.run.file("frontier.json")
        if path.exists():
            return frontier_from_json(read_json(path, "frontier"))
        assert self.config.max_depth is not None, "a run is begun with a depth"
        if self.config.schedule == "trace":
            frontier = search(self.traces("search"), self.config.max_nodes, self.config.max_depth)
        else:
            frontier = Frontier(tuple(self._grow(depth) for depth in range(1, self.config.max_depth + 1)))
        write_atomically(path, to_json(frontier.to_json()))
        return frontier

    def _grow(self, depth: int) -> Growth:
        """One growth from joint rollouts; the pool is the closed-form tree of the target's greedy texts."""
        options = self.config
        prompts = [ids for _name, ids in self.splits.search]
        rollout, forwards = joint_rollout(
            self.pair.target, self.pair.heads, prompts, self.stop, options.rule, self.run.file("rollouts/joint"),
            lambda done: self.tick(f"joint rollout, depth {depth}", done, len(prompts)), self.farm,
        )  # fmt: skip
        wide = Topology()
        if options.schedule == "joint":
            assert options.max_depth is not None
            wide = marginal_tree(self.traces("search"), _POOL * options.max_nodes, options.max_depth)
        growth, _rollouts = grow_jointly(rollout, wide, options.max_nodes, depth, options.schedule, options.max_depth)
        return replace(growth, forwards=forwards())

    def generalisation(self) -> list[Generalisation]:
        """How the frontier holds on the fit prompts, beside trees of other methods; empty where nothing can be replayed."""
        if not self.config.rule.lossless:
            return []
        return generalisation(self.search(), self.traces("search"), self.traces("fit"))

    def traces(self, part: str) -> list[Trace]:
        """Traces of one part of the prompts, written where they are missing; of greedy texts where the rule is not exact."""
        if part in self._traces:
            return self._traces[part]
        prompts: Encoded = getattr(self.splits, part)
        folder = self.run.file(f"rollouts/{part}")
        self._traces[part] = self_rollout(
            self.pair.target, self.pair.heads, prompts, self.stop, folder,
            lambda done: self.tick(f"self-rollout ({part})", done, len(prompts)), exact_rule(self.config), self.farm,
        )  # fmt: skip
        return self._traces[part]

    def recalibrate(
        self, trees: int, prompts: int, fresh: bool = False, added: Mapping[str, Any] | None = None
    ) -> list[Recalibrated]:
        """Run every candidate tree by itself on prompts that search did not see.

        Args:
            added: trees beside those of the frontier, node lists by label; the stages behind this one have them too.
        """
        self.require("frontier.json", "search")
        candidates = self._choose(trees, added)
        options = {"trees": trees, "prompts": prompts} | ({"added": dict(added)} if added else {})
        journal, rows = self.run.stage_journal("recalibrate", options, fresh)
        chosen, seen = self.splits.fit[:prompts], [] if self.config.rule.lossless else self.splits.search
        total = len([*chosen, *seen]) * len(candidates)
        return recalibrate(
            self.pair.target, self.pair.heads, candidates, chosen, self.stop, journal, rows,
            lambda done: self.tick("recalibrate", done, total), self.config.rule, self.farm, seen,
        )  # fmt: skip

    def candidates(self) -> list[Candidate]:
        """The candidates of the recalibration that this run has."""
        self.require("recalibration.jsonl", "recalibrate")
        options = self.options("recalibrate")
        return self._choose(options["trees"], options.get("added"))

    def _choose(self, trees: int, added: Mapping[str, Any] | None) -> list[Candidate]:
        more = {label: from_lists(nodes, f"tree {label}") for label, nodes in (added or {}).items()}
        for topology in more.values():
            check_depth(topology, self.pair.heads)
        traces = self.traces("search") if self.config.rule.lossless else None
        return choose_candidates(self.search(), traces, trees, self.pair.heads.depth, more)

    def options(self, stage: str) -> dict[str, Any]:
        """Options that a stage was begun with."""
        return self.run.journal_options(STAGES[stage][0])

    def time(
        self, rounds: int | None, prompts: int, fresh: bool = False, budget: float | None = None, graphs: bool | None = None
    ) -> list[Timed]:
        """Time plain decoding and every candidate, interleaved; rounds and budget as in `Race`.

        Args:
            graphs: whether every arm's steps are captured; from now on those of this run's decoders are, or are not.
        """
        race = race_of(self.candidates(), rounds, budget, self.traces("fit") if self.config.rule.lossless else None)
        more = ({"budget": budget} if budget else {}) | ({"graphs": True} if graphs else {})
        options = {"rounds": rounds, "prompts": prompts, "machine": machine()["cpu"]} | more
        journal, rows = self.run.stage_journal("time", options, fresh)
        chosen = self.splits.fit[:prompts]
        self._pair = with_graphs(self.pair, bool(graphs))
        return time_arms(
            self.pair.target, self.pair.heads, race, chosen, self.stop, self.config.seed, journal, rows,
            progress(race, len(chosen), rows, self.tick), self.config.rule, self.pair.graphs,
        )  # fmt: skip

    def wants_graphs(self, mode: str) -> bool:
        """Whether the timing of this run captures steps.

        Raises:
            UsageError: an unknown mode, or graphs asked for where there are none.
        """
        return wants_graphs(mode, self.config.device, self.config.rule.lossless)

    def timing_rows(self) -> list[dict[str, Any]]:
        """The rows of the timing journal; its first line has the options of the stage."""
        return Journal(self.run.file("timings.jsonl")).rows()[1:]

    def predicted(self) -> dict[str, Predicted]:
        """Every arm's speed on the timed prompts by the cost model; empty for a journal that is too old for it."""
        traces = self.traces("fit")[: self.options("time")["prompts"]] if self.config.rule.lossless else None
        return speeds(self.candidates(), self.timing_rows(), traces)

    def fit(
        self, signal: str, timed: Sequence[Timed], recalibrated: Sequence[Recalibrated], studied: bool = False, rule: str = HULL
    ) -> Fitted:
        """Choose the bank, fit policies on the fit prompts, judge them on the test prompts, write `bank.json`.

        Args:
            signal: by name, or "auto".
            studied: whether all signals are looked at, and other orders of drafting and choosing are tried; see `study.json`.
            rule: which trees the bank keeps; see `bank_rules`.
        """
        self.check_signal(signal)
        check_rule(rule, self.config.rule.lossless)
        fitted = by_replay(self, signal, timed, studied, rule) if self.config.rule.lossless else by_rollouts(self, signal, timed)
        prompts = self.run.about.get("prompts", {}) | {"prompts_used": prompts_used(self.run)}
        bank_file = make_bank(
            asdict(self.config), self.run.about["inputs"], sorted(self.pair.target.end_ids),
            str(self.pair.target.device), self.config.rule.about(), fitted, recalibrated, prompts,
        )  # fmt: skip
        graphs = timed_with_graphs(self.timing_rows())
        measured = {**bank_file.measured} | timed_on(self.timing_rows()) | ({"graphs": graphs} if graphs != "off" else {})
        more = {**bank_file.evaluation, "bank_rule": rule}
        replace(bank_file, measured=measured, evaluation=more).save(self.run.file("bank.json"))
        return fitted

    def check_signal(self, signal: str) -> None:
        """Refuse a signal that needs more heads than there are.

        Raises:
            UsageError: it does, or it is not known.
        """
        if signal != AUTO and signal_depth(signal) > self.pair.heads.depth:
            raise UsageError(f"signal {signal} needs {signal_depth(signal)} heads and there are {self.pair.heads.depth}.")

    def require(self, name: str, stage: str) -> None:
        """Insist on a file of an earlier stage.

        Raises:
            ArtefactError: it is not there.
        """
        if not self.run.file(name).exists():
            raise ArtefactError(f"the run {self.run.path} has no {name}.", f"Run first: entmtp {stage} {self.run.path}")


def stop_rule(pair: Pair, config: RunConfig) -> StopRule:
    """When texts of a run end."""
    return StopRule(pair.target.end_ids, config.max_new_tokens, config.stop, pair.tokenizer.decode)


def serve(farm: Farm, pair: Pair, splits: Splits, config: RunConfig) -> None:
    """Work for the process that runs the command, until it ends."""
    stop = stop_rule(pair, config)
    works = {
        part: trace_work(pair.target, pair.heads, prompts, stop, exact_rule(config)) for part, prompts in splits.parts.items()
    }
    seen = [ids for _name, ids in splits.search]
    works["joint"] = joint_work(pair.target, pair.heads, seen, stop, config.rule)
    works["recalibrate"] = rollout_work(pair.target, pair.heads, [*splits.fit, *splits.search], stop, config.rule)
    farm.serve(works)


def exact_rule(config: RunConfig) -> Exact:
    """The rule by which the target writes alone: the run's, or greedy where that accepts what the target would not write."""
    return config.rule if isinstance(config.rule, Exact) else GREEDY


def inputs_of(pair: Pair, config: RunConfig) -> dict[str, Any]:
    """Identities that a run is bound to."""
    assert pair.loaded is not None
    target, loaded = pair.target, pair.loaded
    return {
        "target": {"name": target.name, "identity": target.identity, "vocab_size": target.vocab_size},
        "heads": {"name": loaded.name, "identity": loaded.identity, "layout": loaded.layout, "heads": loaded.heads.depth},
        "template": template_about(pair.tokenizer, config.prompt_style),
    }


def check_same(recorded: dict[str, Any], found: dict[str, Any]) -> None:
    """Refuse a run whose model, heads or template changed since it began."""
    for part, value in found.items():
        if recorded[part] != value:
            raise ArtefactError(f"the {part} of this run is not what it began with.", "Start another run with --out.")


def begin(path: Path, config: RunConfig, pair: Pair, splits: Splits, report: Report, fresh: bool) -> RunDir:
    """Open or create the run folder of exactly this configuration."""
    inputs = inputs_of(pair, config) | {"splits": splits.about()}
    more = {"provenance": provenance(), "placement": pair.placement.reason, "prompts": report.about()}
    return RunDir.start(path, asdict(config), inputs, more, fresh)
