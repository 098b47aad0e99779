"""Options from `entmtp.toml` and from the environment, as the defaults of the command that runs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

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

from ._output import Output


def defaults_of(command: str | None, functions: Mapping[str, Callable[..., None]]) -> dict[str, dict[str, Any]]:
    """Values that take the place of a command's defaults: the environment over the file. Unknown variables are warned of.

    Args:
        command: the one that runs. functions: all there are.
    """
    path = find_settings(os.environ, Path())
    ours = any(name.startswith(PREFIX) for name in os.environ)
    if command is None or command not in functions or (path is None and not ours):
        return {}
    known: Commands = {name: _options(function) for name, function in functions.items()}
    found = read_settings(path, known)[command] if path else {}
    for name, hint in unknown_variables(os.environ, known).items():
        Output().warn(f"nothing reads the variable {name}. {hint}")
    return {command: found | environment_settings(os.environ, command, known[command])}


def _options(function: Callable[..., None]) -> dict[str, Kind]:
    """The options of a command and what they take."""
    found = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        annotation, *more = get_args(parameter.annotation) or (parameter.annotation,)
        if any(isinstance(item, OptionInfo) for item in more):
            found[name] = _kind(annotation)
    return found


def _kind(annotation: Any) -> Kind:
    if isinstance(annotation, UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is list:
        return Kind(_kind(get_args(annotation)[0]).type, many=True)
    return Kind(str if annotation is Path else annotation)
