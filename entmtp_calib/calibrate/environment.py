"""What surrounds a timing: the machine and its load before and after, and signs that it was not alone.

Reads the system's own figures; times nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from entmtp_calib.calibrate.paired import Ratio
from entmtp_calib.calibrate.timing import AR_AGAIN, Row, Timed
from entmtp_calib.engine.graphs import Graphs
from entmtp_calib.engine.target import Target
from entmtp_calib.provenance import machine, versions

FOREIGN_LOAD = 0.5  # cores that others may use before it is worth a word
LARGE_CV = 0.1


class Watch:
    """The environment as rows for the journal, at the beginning of a session and at its end.

    Args:
        graphs: where steps are captured; None where they are not.
    """

    def __init__(self, target: Target, graphs: Graphs | None = None) -> None:
        self.target, self.graphs = target, graphs
        self._began = (time.perf_counter(), time.process_time())

    def start(self) -> Row:
        """Device, dtype, threads, graphs, versions, processor and load; from now on this process's own share is counted."""
        self._began = (time.perf_counter(), time.process_time())
        about = {"device": str(self.target.device), "dtype": str(self.target.dtype).removeprefix("torch."),
                 "threads": torch.get_num_threads(), "graphs": graphs_used(self.graphs), "versions": versions()}  # fmt: skip
        return journal_row({"environment": {"when": "start"} | about | machine()})

    def end(self) -> Row:
        """The load, how many cores this process kept busy meanwhile, and what became of graphs."""
        wall, own = (now - then for now, then in zip((time.perf_counter(), time.process_time()), self._began, strict=True))
        about = {"when": "end", "own_cores": round(own / wall, 2), "graphs": graphs_used(self.graphs)}
        return journal_row({"environment": about | machine()})


@dataclass(frozen=True, slots=True)
class Trouble:
    """Signs that a timing cannot be trusted to the last percent; None where there is none.

    again: plain decoding against itself, if its interval leaves out 1; noisy: the arm whose rounds differ most, if by much;
    load, cores, own: the load at the end of a session, the machine's cores, and those that the timing itself kept busy, if others
    worked beside it.
    """

    again: Ratio | None = None
    noisy: Timed | None = None
    load: float | None = None
    cores: int = 0
    own: float = 0.0


def trouble(timed: Sequence[Timed], rows: Sequence[Mapping[str, Any]]) -> Trouble:
    """What to be told about a timing."""
    pair = [Ratio(arm.speedup, arm.speedup_low, arm.speedup_high) for arm in timed if arm.label == AR_AGAIN]
    noisy = max(timed, key=lambda arm: arm.cv)
    ends = [found for found in environments(rows) if found["when"] == "end" and found["load"] >= 0]
    busy = max(ends, key=lambda found: found["load"] - found["own_cores"], default=None)
    found = Trouble(pair[0] if pair and pair[0].differs else None, noisy if noisy.cv > LARGE_CV else None)
    if busy is None or busy["load"] - busy["own_cores"] < FOREIGN_LOAD:
        return found
    return Trouble(found.again, found.noisy, busy["load"], busy["cores"], busy["own_cores"])


def graphs_used(graphs: Graphs | None) -> str:
    """Whether steps are captured: "on", "off", or why that was given up."""
    return "off" if graphs is None else "on" if graphs.reason is None else f"given up: {graphs.reason}"


def timed_with_graphs(rows: Sequence[Mapping[str, Any]]) -> str:
    """The same for a whole timing: why graphs were given up, if they were at any time."""
    found = [about.get("graphs", "off") for about in environments(rows)] or ["off"]
    return next((said for said in found if said not in ("on", "off")), found[-1])


def timed_on(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """System, processor, cores and load when a timing began; empty for a journal that is too old to tell."""
    first = next((about for about in environments(rows) if about["when"] == "start"), {})
    return {name: first[name] for name in ("system", "cpu", "cores", "load") if name in first}


def journal_row(what: dict[str, Any]) -> Row:
    """A row of the timing journal that is no run."""
    return {"arm": "", "prompt": "", "round": -1} | what


def environments(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the journal tells of the machine, in order."""
    return [row["environment"] for row in rows if "environment" in row]
