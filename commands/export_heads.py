"""`export-heads`: heads in the layouts of the original decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from entmtp_calib.errors import UsageError

from . import _completion as known
from . import _options as opt
from ._output import Output


def export_heads(
    heads: Annotated[str, typer.Argument(help="Shipped heads by name, a folder or a hub name.", metavar="HEADS")],
    out: Annotated[Path, typer.Option(help="Folder for the exported heads; a new or empty one.")],
    format: Annotated[str, typer.Option(help="hydra (Hydra and Hydra++) or medusa.", autocompletion=known.layouts)],
    base: Annotated[
        str | None, typer.Option(help="Target of the heads; see --model of run.", show_default="the heads' own, else smollm2")
    ] = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write heads as the original decoders of Hydra and Medusa read them, in float16.

    Their files hold a whole LM head per head, so the target is loaded for what the heads borrow from it.
    """
    from entmtp_calib.engine.head_export import check_format, export
    from entmtp_calib.engine.head_files import load_heads, save_published
    from entmtp_calib.engine.loading import EMBEDDED, choose_placement, load_target

    screen = Output(json, quiet)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out} is there already and not empty.", "Give a new folder.")
    loaded = load_heads(heads)
    check_format(format, loaded.heads.shape.architecture)
    name = base or str(loaded.about.get("base_name") or "smollm2")
    screen.say(f"loading {name}")
    target, _tokenizer = load_target(name, choose_placement("cpu", "float32"))
    if loaded.base and loaded.base != target.identity:
        screen.warn(f"the heads were trained for another model than {name}, whose embedding and LM head go into the file")
    made = export(loaded.heads.bind(target), target, format)
    for note in (*loaded.notes, *made.notes):
        screen.say(note)
    if name in EMBEDDED:
        screen.say(f"base_model_name_or_path is {name}; put a name there that the original decoder can load")
    size = save_published(out, made.file, made.tensors, made.config)
    shape = loaded.heads.shape
    about = {"format": format, "architecture": shape.architecture, "heads": shape.heads, "layers": shape.layers, "base": name,
             "file": str(out / made.file), "megabytes": size / 1e6, "notes": list(made.notes)}  # fmt: skip
    screen.keep(export=about)
    screen.text(f"{about['file']}: {shape.heads} {shape.architecture} heads in the layout of {format}, {size / 1e6:.1f} MB")
    screen.finish("export-heads")
