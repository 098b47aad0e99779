"""Options from `entmtp.toml` and from the environment, as the defaults of the command that runs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from entmtp_calib.settings import (
    PREFIX,
    Commands,
    Kind,
    environment_settings,
    find_settings,
    read_settings,
    unknown_variables,
)

from ._failures import attempt
from ._output import Output


class Defaults(dict[str, Any]):
    """Values that take the place of a command's defaults: the environment over the file, read when the first is asked for.

    Until then a broken file stops nothing, so that --help can be had. Unknown variables are warned of.

    Args:
        command: the one that runs. functions: all there are.
    """

    def __init__(self, command: str, functions: Mapping[str, Callable[..., None]]) -> None:
        super().__init__()
        self._command, self._functions = command, functions
        self._read = False
        self.variables: frozenset[str] = frozenset()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of an option, if one is set; what is wrong with the settings ends the command here."""
        if not self._read:
            self._read = True
            attempt(self._fill)
        return super().get(key, default)

    def _fill(self) -> None:
        path = find_settings(os.environ, Path())
        if path is None and not any(name.startswith(PREFIX) for name in os.environ):
            return
        known: Commands = {name: _options(function) for name, function in self._functions.items()}
        if path:
            self.update(read_settings(path, known)[self._command])
        for name, hint in unknown_variables(os.environ, known).items():
            Output().warn(f"nothing reads the variable {name}. {hint}")
        there = environment_settings(os.environ, self._command, known[self._command])
        self.update(there)
        self.variables = frozenset(there)


class Command(TyperCommand):
    """A command whose help tells its own defaults, whatever the settings are and even if they are broken."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        ctx.default_map = None
        super().format_help(ctx, formatter)


class Origin(IntEnum):
    """Where the value of an option comes from; what comes first has the higher number."""

    DEFAULT = 0
    FILE = 1
    VARIABLE = 2
    FLAG = 3


def origin(ctx: typer.Context, name: str) -> Origin:
    """Where the value of an option comes from."""
    source = ctx.get_parameter_source(name)
    if source is None or source.name == "DEFAULT":
        return Origin.DEFAULT
    if source.name == "DEFAULT_MAP":
        from_variable = isinstance(ctx.default_map, Defaults) and name in ctx.default_map.variables
        return Origin.VARIABLE if from_variable else Origin.FILE
    return Origin.FLAG


def _options(function: Callable[..., None]) -> dict[str, Kind]:
    """The options of a command and what they take."""
    found = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        annotation, *more = get_args(parameter.annotation) or (parameter.annotation,)
        for option in more:
            if isinstance(option, OptionInfo):
                found[name] = replace(_kind(annotation), low=option.min, high=option.max)
    return found


def _kind(annotation: Any) -> Kind:
    if isinstance(annotation, UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is list:
        return Kind(_kind(get_args(annotation)[0]).type, many=True)
    return Kind(str if annotation is Path else annotation)
