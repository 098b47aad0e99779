"""The options with which a run begins, declared once for `run` and `search`, and the configuration that they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from . import _options as opt
from ._settings import origin

if TYPE_CHECKING:
    from entmtp_calib.calibrate.splits import RunConfig

PANELS: dict[str, dict[str, tuple[Any, Any]]] = {
    "Model and machine": {
        "model": (opt.Model, "smollm2"),
        "heads": (opt.Heads, "smollm2-hydra++"),
        "device": (opt.Device, "auto"),
        "dtype": (opt.Dtype, "auto"),
        "seed": (opt.Seed, 0),
    },
    "Prompts": {
        "task": (opt.Task, "humaneval"),
        "data": (opt.Data, None),
        "prompt_style": (opt.PromptStyle, "auto"),
        "turns": (opt.Turns, "first"),
        "long_prompts": (opt.LongPrompts, "skip"),
        "search_prompts": (opt.SearchPrompts, 32),
        "fit_prompts": (opt.FitPrompts, 24),
        "test_prompts": (opt.TestPrompts, 20),
    },
    "Texts": {
        "max_new_tokens": (opt.MaxNewTokens, 96),
        "stop": (opt.Stop, None),
        "temperature": (opt.Temperature, 0.0),
        "top_k": (opt.TopK, 0),
        "top_p": (opt.TopP, 1.0),
        "coupled": (opt.Coupled, True),
        "acceptance": (opt.Acceptance, "exact"),
        "epsilon": (opt.Epsilon, 0.09),
        "alpha": (opt.Alpha, 0.3),
    },
    "Search": {
        "schedule": (opt.Schedule, "trace"),
        "max_nodes": (opt.MaxNodes, 64),
        "max_depth": (opt.MaxDepth, None),
        "preset": (opt.Preset, None),
    },
}
"""Every field of `RunConfig` and the presets over them, with what is taken where nothing is given, by panel of the help."""
PAPER = {"acceptance": "typical", "temperature": 0.7, "epsilon": 0.09, "alpha": 0.3, "schedule": "paper", "max_new_tokens": 256,
         "max_nodes": 89, "max_depth": 4, "search_prompts": 100, "seed": 42}  # fmt: skip
"""EntMTP, section 4.1."""
RAW_STOPS = {"humaneval": ("\nclass", "\ndef", "\n#", "\nif", "\nprint")}
"""What comes behind a finished function, as in the HumanEval paper."""


def begins(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes any keywords these options, behind its own."""
    *own, _keywords = inspect.signature(command, eval_str=True).parameters.values()
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_shown_in(panel, annotation))
        for panel, options in PANELS.items()
        for name, (annotation, default) in options.items()
    ]
    keywords = [part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in own]
    command.__signature__ = inspect.Signature([*keywords, *shared])  # type: ignore[attr-defined]
    return command


def _shown_in(panel: str, annotation: Any) -> Any:
    kind, option = get_args(annotation)
    option = copy(option)
    option.rich_help_panel = panel
    return Annotated[kind, option]


def config_of(ctx: typer.Context) -> RunConfig:
    """The configuration that a command's options make, with those of a preset.

    A flag comes before a preset of the environment or of the file, and a preset that is given as a flag before both.

    Raises:
        UsageError: an unknown preset, an option that it sets, given in the same place, or a value that cannot be.
    """
    from entmtp_calib.calibrate.splits import RunConfig
    from entmtp_calib.errors import UsageError

    options = {name: ctx.params[name] for names in PANELS.values() for name in names}
    preset, options["stop"] = options.pop("preset"), _stops(options)
    if preset is None:
        return RunConfig(**options)
    if preset != "paper":
        raise UsageError(f"unknown preset {preset!r}.", "Known: paper.")
    asked = origin(ctx, "preset")
    for name in PAPER:
        if origin(ctx, name) == asked:
            raise UsageError(f"--{name.replace('_', '-')} is set by --preset paper.", "Leave one of them out.")
    return RunConfig(**options | {name: value for name, value in PAPER.items() if origin(ctx, name) < asked})


def _stops(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts that end answers: those given, or the task's own where a prompt is plain text, which has no end of its own."""
    if not options["stop"]:
        return RAW_STOPS.get(options["task"], ()) if options["prompt_style"] == "raw" else ()
    return () if list(options["stop"]) == ["none"] else tuple(options["stop"])
