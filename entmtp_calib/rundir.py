"""A run folder: the names of its files, who may use it, and starting stages over.

Knows names and fingerprints; what the files say is the business of those who write them.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from entmtp_calib.errors import ArtefactError, UsageError
from entmtp_calib.storage import Journal, digest, hold, read_json, to_json, write_atomically

_log = logging.getLogger(__name__)
FORMAT, VERSION = "entmtp-run", 1
_FIELDS = {"config": dict, "inputs": dict, "fingerprint": str}
STAGES: dict[str, tuple[str, ...]] = {
    "search": ("rollouts/search", "rollouts/joint", "rollouts/fit", "frontier.json"),
    "recalibrate": ("recalibration.jsonl",),
    "time": ("timings.jsonl",),
    "fit-thresholds": ("rollouts/test", "rollouts/values", "rollouts/typical", "study.json", "bank.json"),
}
"""Stages in order and the files of each; the last one is there when the stage has ended."""


class RunDir:
    """One run on disk.

    Attributes:
        path: the folder; about: the content of `run.json`.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.about = about

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run.

        Raises:
            ArtefactError: no run there, one of another version, or one whose options were changed by hand.
        """
        about = read_json(path / "run.json", "run", "Start one with: entmtp search --out FOLDER")
        sound = isinstance(about, dict) and about.get("format") == FORMAT
        if not sound or not all(type(about.get(name)) is kind for name, kind in _FIELDS.items()):
            raise ArtefactError(f"{path / 'run.json'} does not describe a run.", "Give another folder.")
        if about.get("version") != VERSION:
            raise ArtefactError(f"the run {path} has version {about.get('version')}; this tool reads {VERSION}.", "Use --fresh.")
        if about["fingerprint"] != digest({"config": about["config"], "inputs": about["inputs"]}):
            raise ArtefactError(f"{path / 'run.json'} was changed: its options are not those it began with.", "Use --fresh.")
        return cls(path, about)

    @classmethod
    def start(
        cls, path: Path, config: dict[str, Any], inputs: dict[str, Any], more: dict[str, Any], fresh: bool = False
    ) -> RunDir:
        """Open the run of exactly this configuration, or begin it.

        Args:
            config: options that results depend on; inputs: identities of target, heads and prompts;
            more: what is recorded without being compared (provenance).
            fresh: throw away what is there.

        Raises:
            ArtefactError: the folder holds a run of other options or inputs. UsageError: it holds something else.
            EntmtpError: another process is at work in it.
        """
        fingerprint = digest({"config": config, "inputs": inputs})
        about = {"format": FORMAT, "version": VERSION, "config": config, "inputs": inputs, "fingerprint": fingerprint} | more
        for place in (path, *path.parents):
            if place.exists() and not place.is_dir():
                raise UsageError(f"{place} is a file.", "Give a folder with --out.")
        path.mkdir(parents=True, exist_ok=True)
        hold(path)
        if any(not item.name.endswith(".tmp") for item in path.iterdir()):
            if not (path / "run.json").exists():
                raise UsageError(f"{path} is not empty and holds no run.", "Give another folder with --out.")
            if not fresh:
                there = cls.open(path)
                if there.about.get("fingerprint") != fingerprint:
                    raise ArtefactError(_difference(there.about, about), "Use another --out, or --fresh to start over.")
                return there
            cls(path, about).clear("search")
        write_atomically(path / "run.json", to_json(about))
        return cls(path, about)

    def file(self, name: str) -> Path:
        """Path of a file or folder of the run."""
        return self.path / name

    def clear(self, stage: str) -> None:
        """Remove the results of a stage and of all stages after it."""
        names = list(STAGES)
        for later in names[names.index(stage) :]:
            for name in STAGES[later]:
                target = self.path / name
                shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)

    def stage_journal(self, stage: str, options: dict[str, Any], fresh: bool = False) -> tuple[Journal, list[dict[str, Any]]]:
        """The journal of a stage and its rows so far; its first line holds the options it belongs to.

        Raises:
            ArtefactError: it was begun with other options.
        """
        if fresh:
            self.clear(stage)
        journal = Journal(self.path / STAGES[stage][0])
        rows = journal.rows()
        key = digest({"fingerprint": self.about["fingerprint"], "options": options})
        if not rows:
            journal.append({"stage": stage, "key": key, "options": options})
            _log.info("%s begins with %s", stage, options)
            return journal, []
        if rows[0].get("key") != key:
            raise ArtefactError(
                f"{journal.path} was begun with other options ({rows[0].get('options')!s:.200}).",
                f"Use --fresh to {stage} anew.",
            )
        _log.info("%s goes on behind %d rows of %s", stage, len(rows) - 1, journal.path)
        return journal, rows[1:]

    def journal_options(self, name: str) -> dict[str, Any]:
        """Options in the first line of a stage's journal.

        Raises:
            ArtefactError: the journal has no such line.
        """
        rows = Journal(self.path / name).rows()
        if not rows or not isinstance(rows[0].get("options"), dict):
            raise ArtefactError(f"{self.path / name} does not say what it belongs to.", "Run the stage again with --fresh.")
        return dict(rows[0]["options"])


def _difference(there: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Name the first option or input that differs."""
    for part in ("config", "inputs"):
        for key, value in wanted[part].items():
            old = there.get(part, {}).get(key)
            if old != value:
                return f"this folder holds a run with {key} = {_short(old)}, not {_short(value)}."
    return "this folder holds another run."


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"
