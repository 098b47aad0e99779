"""Settings: options of commands from `entmtp.toml` and from `ENTMTP_*` variables, checked against the options there are.

Knows names and types of options; what they mean is the business of the commands. Reads one file, writes none.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from entmtp_calib.errors import ArtefactError, UsageError, did_you_mean

FILE, PREFIX = "entmtp.toml", "ENTMTP_"
OTHERS = ("CONFIG", "DEBUG", "CACHE", "PACK")
"""Variables that are no option's."""
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Kind:
    """What an option takes: str, int, float or bool; many: several of them; low, high: bounds, None for none."""

    type: type
    many: bool = False
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        bounds = [f"at {word} {bound:g}" for word, bound in (("least", self.low), ("most", self.high)) if bound is not None]
        return (
            _NAMES[self.type] + (" of " + " and ".join(bounds) if bounds else "") + (", or a list of such" if self.many else "")
        )

    def takes(self, value: Any) -> bool:
        """Whether a value of a TOML file is of this kind."""
        if self.many and isinstance(value, list):
            return all(replace(self, many=False).takes(item) for item in value)
        fits = type(value) is self.type or (self.type is float and type(value) is int)
        return fits and (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def read(self, text: str, name: str) -> Any:
        """The value that a variable's text stands for.

        Raises:
            UsageError: none of this kind.
        """
        try:
            value = self.type(text) if self.type is not bool else (_YES + _NO).index(text.lower()) < len(_YES)
        except ValueError:
            value = None
        if not self.takes(value):
            wanted = replace(self, many=False)
            raise UsageError(f"{name} is {text[:40]!r}, not {wanted}.", "Change or unset the variable.") from None
        return self.whole(value)

    def whole(self, value: Any) -> Any:
        """A value as the command takes it: several even where one was given."""
        return [value] if self.many and not isinstance(value, list) else value


Commands = Mapping[str, Mapping[str, Kind]]
"""Options of every command, by command and by name with underscores."""


def find_settings(environment: Mapping[str, str], folder: Path) -> Path | None:
    """The file that ENTMTP_CONFIG names, else `entmtp.toml` in a folder, else None.

    Raises:
        ArtefactError: ENTMTP_CONFIG names nothing.
    """
    named = environment.get(PREFIX + "CONFIG")
    if named:
        if not Path(named).is_file():
            raise ArtefactError(f"there is no file {named}, which ENTMTP_CONFIG names.", "Change or unset the variable.")
        return Path(named)
    return folder / FILE if (folder / FILE).is_file() else None


def read_settings(path: Path, commands: Commands) -> dict[str, dict[str, Any]]:
    """What a file sets for every command: keys of the top for all that take them, tables for one.

    Raises:
        ArtefactError: not TOML. UsageError: an unknown key or table, or a value of another type; the message names it.
    """
    try:
        document = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ArtefactError(f"{path} cannot be read ({error}).", "It is TOML: name = value, and [command] tables.") from None
    _refuse_twice(path, document)
    found: dict[str, dict[str, Any]] = {command: {} for command in commands}
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    for key, value in document.items():
        if key not in tables:
            _set(found, f"{path}: {key}", key, value, commands)
    for name, table in tables.items():
        command = name.replace("_", "-")
        if command not in commands:
            raise UsageError(f"{path}: [{name}] is no command.", did_you_mean(command, list(commands)))
        _refuse_twice(path, table)
        for key, value in table.items():
            _set(found, f"{path}: [{name}] {key}", key, value, {command: commands[command]})
    return found


def _refuse_twice(path: Path, table: Mapping[str, Any]) -> None:
    """Refuse a name in both of its spellings; which of the two is meant, nobody knows."""
    twice = next((key for key in table if "-" in key and key.replace("-", "_") in table), None)
    if twice is not None:
        raise UsageError(f"{path}: {twice} and {twice.replace('-', '_')} are one name.", "Keep one of them.")


def environment_settings(environment: Mapping[str, str], command: str, options: Mapping[str, Kind]) -> dict[str, Any]:
    """What variables set for a command: `ENTMTP_COMMAND_OPTION`, else `ENTMTP_OPTION`; empty ones set nothing.

    Raises:
        UsageError: a text that is not of the option's kind.
    """
    found = {}
    for option, kind in options.items():
        own = f"{PREFIX}{command}_{option}".replace("-", "_").upper()
        for name in (own, PREFIX + option.upper()):
            if environment.get(name) and option not in found and name != PREFIX + "CONFIG":
                found[option] = kind.read(environment[name], name)
    return found


def unknown_variables(environment: Mapping[str, str], commands: Commands) -> dict[str, str]:
    """Variables of our prefix that nothing reads, with a hint each."""
    known = set(OTHERS)
    for command, options in commands.items():
        for option in options:
            known |= {option.upper(), f"{command}_{option}".replace("-", "_").upper()}
    unknown = {name.removeprefix(PREFIX) for name in environment if name.startswith(PREFIX)} - known
    return {PREFIX + name: _hint(name, sorted(known)) for name in sorted(unknown)}


def _hint(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)  # all of them would fill a screen
    return f"Did you mean {PREFIX}{close[0]}?" if close else "Options are in `entmtp COMMAND --help`."


def _set(found: dict[str, dict[str, Any]], where: str, key: str, value: Any, commands: Commands) -> None:
    """Set an option of all commands that take it with this value.

    Raises:
        UsageError: none does.
    """
    name = key.replace("-", "_")
    kinds = {command: options[name] for command, options in commands.items() if name in options}
    if not kinds:
        known = sorted({option.replace("_", "-") for options in commands.values() for option in options})
        raise UsageError(f"{where} is no option.", did_you_mean(key.replace("_", "-"), known))
    takers = [command for command, kind in kinds.items() if kind.takes(value)]
    if not takers:
        shown = json.dumps(value, ensure_ascii=False, default=str)[:40]
        raise UsageError(f"{where} is {shown}, not {next(iter(kinds.values()))}.", "Change the value in the file.")
    for command in takers:
        found[command][name] = kinds[command].whole(value)
