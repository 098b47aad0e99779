"""What a run folder holds, read for a report without loading a model; parts that are missing or unfinished are left out.

Reads through the library's readers and computes only what stages would print again. Draws and judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from entmtp_calib.bank import TopologyBank, load_bank
from entmtp_calib.calibrate.candidates import Candidate, choose_candidates
from entmtp_calib.calibrate.dynamic import Drafts, draftable
from entmtp_calib.calibrate.path_values import load_values, values_folder
from entmtp_calib.calibrate.rollout import load_trace
from entmtp_calib.calibrate.search import Frontier, frontier_from_json
from entmtp_calib.calibrate.splits import RunConfig
from entmtp_calib.calibrate.timing import AR, AR_AGAIN, Arm, Timed, runs_by_arm, summarise
from entmtp_calib.errors import ArtefactError
from entmtp_calib.evidence import Trace
from entmtp_calib.rundir import STAGES, RunDir
from entmtp_calib.storage import Journal, read_json
from entmtp_calib.topology import Topology, chain, from_lists, union
from entmtp_calib.trust import prompts_used

Rows = list[dict[str, Any]]
PARTS = ("search", "fit", "test")


@dataclass(frozen=True, slots=True)
class Material:
    """A run as far as it has come.

    frontier: None before the search ended; traces: of the parts that are whole; candidates: empty before recalibration began;
    rollouts: rows of the recalibration on new prompts, by tree, of the trees that are whole; timing_rows: of the journal, without
    its first line; timed: arms that ran on every timed prompt; bank: None before thresholds were fitted; counts: prompts that
    figures rest on; gaps: what was found unfinished, by stage.
    """

    run: RunDir
    config: RunConfig
    frontier: Frontier | None
    traces: Mapping[str, tuple[Trace, ...]]
    candidates: tuple[Candidate, ...]
    rollouts: Mapping[str, Rows]
    timing_rows: Rows
    timed: tuple[Timed, ...]
    bank: TopologyBank | None
    counts: Mapping[str, int]
    gaps: Mapping[str, str] = field(default_factory=dict)

    @property
    def unseen(self) -> str:
        """The part of the prompts that has been used least and is there: test, else fit, else search; empty if none is."""
        return next((part for part in reversed(PARTS) if self.traces.get(part)), "")

    @property
    def replayable(self) -> bool:
        """Whether acceptance follows from traces."""
        return self.config.rule.lossless

    @property
    def timed_on(self) -> str:
        """The processor that the timing stage names; empty where nothing was timed."""
        name = STAGES["time"][0]
        return str(self.run.journal_options(name).get("machine", "")) if Journal(self.run.file(name)).rows() else ""

    @property
    def trees(self) -> dict[str, Topology]:
        """Trees of the timed arms by label, plain decoding included."""
        return {AR: Topology()} | {candidate.label: candidate.topology for candidate in self.candidates}


def read_material(path: Path) -> Material:
    """Read a run folder.

    Raises:
        ArtefactError: no run there, or a file of it that is damaged or foreign.
    """
    run = RunDir.open(path)
    try:
        config = RunConfig(**run.about["config"])
        expected = {part: int(run.about["inputs"]["splits"][part]["prompts"]) for part in PARTS}
        heads = int(run.about["inputs"]["heads"]["heads"])
    except (TypeError, KeyError, ValueError):
        raise ArtefactError(f"{path / 'run.json'} lacks a field.", "Start another run with --out.") from None
    gaps: dict[str, str] = {}
    frontier_path, bank_path = run.file("frontier.json"), run.file("bank.json")
    frontier = frontier_from_json(read_json(frontier_path, "frontier")) if frontier_path.exists() else None
    traces = {part: _traces(run, part, count, gaps) for part, count in expected.items()}
    candidates = _candidates(run, config, frontier, traces["search"], heads)
    timing_rows = _stage_rows(run, "time")
    return Material(
        run, config, frontier, {part: found for part, found in traces.items() if found}, candidates,
        _rollouts(run, candidates, expected["fit"], gaps), timing_rows,
        _timed(run, candidates, timing_rows, expected["fit"], gaps),
        load_bank(bank_path) if bank_path.exists() else None, prompts_used(run), gaps,
    )  # fmt: skip


def read_drafts(material: Material, part: str) -> Drafts | None:
    """Path values of all that a dynamic policy may draft, over the texts of a part; None where the run does not hold them all.

    Raises:
        ArtefactError: a file that is damaged or of another text.
    """
    traces, searched = material.traces.get(part, ()), material.traces.get("search", ())
    if material.frontier is None or not searched or not traces:
        return None
    drafted = union([*draftable(material.frontier, searched), chain(traces[0].heads)])
    folder = values_folder(material.run.file(f"rollouts/values/{part}"), drafted)
    paths = [folder / f"{index:05d}.npz" for index in range(len(traces))]
    if not all(path.exists() for path in paths):
        return None
    return Drafts(drafted, traces, [load_values(path, drafted, trace) for path, trace in zip(paths, traces, strict=True)])


def _traces(run: RunDir, part: str, count: int, gaps: dict[str, str]) -> tuple[Trace, ...]:
    """The traces of a part, or none where some are missing."""
    paths = [run.file(f"rollouts/{part}") / f"{index:05d}.npz" for index in range(count)]
    there = [path for path in paths if path.exists()]
    if there and len(there) < count:
        gaps[part] = f"{len(there)} of {count} {part} prompts have been written"
    return tuple(map(load_trace, paths)) if there and len(there) == count else ()


def _stage_rows(run: RunDir, stage: str) -> Rows:
    """Rows of a stage's journal behind its first line."""
    return Journal(run.file(STAGES[stage][0])).rows()[1:]


def _candidates(
    run: RunDir, config: RunConfig, frontier: Frontier | None, searched: tuple[Trace, ...], heads: int
) -> tuple[Candidate, ...]:
    """The trees that recalibration takes, chosen again as it chose them."""
    name = STAGES["recalibrate"][0]
    lossless = config.rule.lossless
    if frontier is None or not Journal(run.file(name)).rows() or (lossless and not searched):
        return ()
    options = run.journal_options(name)
    added = {label: from_lists(nodes, f"tree {label}") for label, nodes in options.get("added", {}).items()}
    return tuple(choose_candidates(frontier, searched if lossless else None, options["trees"], heads, added))


def _rollouts(run: RunDir, candidates: tuple[Candidate, ...], fit_prompts: int, gaps: dict[str, str]) -> dict[str, Rows]:
    """Rows on new prompts of every tree that has decoded all of them; they come first, before those on the search prompts."""
    if not candidates:
        return {}
    wanted = min(int(run.journal_options(STAGES["recalibrate"][0])["prompts"]), fit_prompts)
    rows = _stage_rows(run, "recalibrate")
    found = {item.label: [row for row in rows if row.get("tree") == item.label][:wanted] for item in candidates}
    whole = {label: own for label, own in found.items() if len(own) == wanted}
    if len(whole) < len(candidates):
        gaps["recalibrate"] = f"{len(whole)} of {len(candidates)} trees have been recalibrated"
    return whole


def _timed(
    run: RunDir, candidates: tuple[Candidate, ...], rows: Rows, fit_prompts: int, gaps: dict[str, str]
) -> tuple[Timed, ...]:
    """Figures of the arms that ran on every prompt at least once; some stop before others."""
    if not candidates or not rows:
        return ()
    wanted = min(int(run.journal_options(STAGES["time"][0])["prompts"]), fit_prompts)
    arms = [Arm(AR, Topology()), *(Arm(item.label, item.topology) for item in candidates), Arm(AR_AGAIN, Topology())]
    prompts: dict[str, set[str]] = {}
    for label, own in runs_by_arm(rows).items():
        prompts[label] = {row["prompt"] for row in own}
    whole = [arm for arm in arms if len(prompts.get(arm.label, ())) >= wanted]
    if len(whole) < len(arms):
        gaps["time"] = f"{len(whole)} of {len(arms)} arms have been timed on every prompt"
    return tuple(summarise(whole, rows)) if whole and whole[0].label == AR else ()
