"""The report as one HTML page that needs nothing else: pictures inside, no script, readable on a phone and on paper.

Everything that came from files or prompts is escaped here. Writes no files.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from entmtp_calib.report.figure import Figure, Missing, is_none
from entmtp_calib.report.material import Material
from entmtp_calib.report.palette import DEPTHS, depth_colours
from entmtp_calib.report.timeline import TIMELINE
from entmtp_calib.trust import SMALL, too_few

_MOST_ROWS = 40  # a longer table is left to the CSV
_STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 44rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .25rem; }
p { margin: .4rem 0; } svg { display: block; width: 100%; max-width: 32rem; height: auto; margin: .75rem 0; }
.note, .mark, figcaption, td, th, summary { font-size: .85rem; } .note { color: #555; }
.mark { border-left: .3rem solid #c8553d; padding-left: .5rem; }
figure { margin: 0; } code, .text { font-family: ui-monospace, monospace; font-size: .85rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; } td, th { padding: .15rem .6rem .15rem 0; text-align: left;
vertical-align: top; border-bottom: 1px solid #e5e5e5; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
.about th { white-space: nowrap; } .about td { overflow-wrap: anywhere; }
.text { white-space: pre-wrap; border: 1px solid #d9d9d9; padding: .5rem; line-height: 1.7; }
.text span, .key span { padding: .1rem 0; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.text .root { border-left: 2px solid #1c1c1c; }
.key span { border: 1px solid #6b6b6b; padding: .1rem .4rem; margin-right: .3rem; }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } section, figure, tr { break-inside: avoid; }
h2, .mark { break-after: avoid; } svg { max-width: 9cm; } }
"""


def page(material: Material, found: Sequence[Figure | Missing], pictures: Mapping[str, str]) -> str:
    """The page.

    Args:
        pictures: SVG elements by name of the figure.
    """
    title = f"Report of {material.run.path.resolve().name}"
    shown = [item for item in found if isinstance(item, Figure)]
    missing = [item for item in found if isinstance(item, Missing)]
    parts = [
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # nothing may be fetched or run, whatever the files held
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>", _summary(material), _trust(material.counts),
        *(_figure(item, pictures[item.name], material.counts) for item in shown),
        _missing(missing, material.gaps), _provenance(material), "</body></html>",
    ]  # fmt: skip
    return "\n".join(part for part in parts if part) + "\n"


def _summary(material: Material) -> str:
    about, bank = material.run.about["inputs"], material.bank
    text = f"Draft trees for {about['target']['name']} with the heads {about['heads']['name']}, on {material.config.task}. "
    if bank is None:
        text += "The run has no bank yet."
    else:
        labels = ", ".join(tree.label for tree in bank.trees)
        text += f"The bank holds {labels}; the recommended policy is {bank.recommended}."
    if not material.replayable:
        text += " Acceptance is typical and not lossless: the text depends on the tree."
    return _paragraph(text)


def _trust(counts: Mapping[str, int]) -> str:
    used = ", ".join(f"{name} {count}" for name, count in counts.items())
    text = f"Prompts used: {used}."
    if too_few(counts):
        text += (
            f" A figure that rests on fewer than {SMALL} prompts is marked “too small to trust”: one odd prompt can change what "
            "it says, and its intervals are guesses themselves. Ask for more prompts before you rely on it."
        )
    return _paragraph(text)


def _figure(figure: Figure, picture: str, counts: Mapping[str, int]) -> str:
    small = too_few({name: counts[name] for name in figure.rests_on if name in counts})
    mark = "too small to trust: " + ", ".join(f"{name} {count} prompts" for name, count in small.items())
    named = picture.replace("<svg", f'<svg role="img" aria-label="{escape(figure.title)}"', 1)
    parts = [
        f'<section id="{escape(figure.name)}"><h2>{escape(figure.title)}</h2>',
        _paragraph(mark, "mark") if small else "",
        f"<figure><figcaption>{escape(figure.sentence)}</figcaption>{named}</figure>",
        _text(figure) if figure.name == TIMELINE else "",
        *(_paragraph(note, "note") for note in figure.notes),
        _table(figure), "</section>",
    ]  # fmt: skip
    return "\n".join(part for part in parts if part)


def _text(figure: Figure) -> str:
    """The text, every token on the colour of the depth that it came from, a bar before every step."""
    spans = []
    for piece, depth, step in figure.facts["pieces"]:
        back, letters = depth_colours(depth)
        kind = ' class="root"' if depth == 0 else ""
        spans.append(f'<span{kind} style="background:{back};color:{letters}" title="step {step}">{escape(piece)}</span>')
    deepest = min(max((depth for _piece, depth, _step in figure.facts["pieces"]), default=0), len(DEPTHS) - 1)
    names = ["root", *(f"draft {depth}" for depth in range(1, deepest + 1))]
    key = "".join(
        f'<span style="background:{back};color:{letters}">{name}</span>'
        for name, (back, letters) in zip(names, map(depth_colours, range(deepest + 1)), strict=True)
    )
    what = "The text" if figure.facts["as_text"] else "The ids of the tokens, since no tokenizer is at hand"
    told = _paragraph(f"{what}, under {figure.facts['main']}; a bar begins every step.", "note")
    return f'{told}<p class="key note">{key}</p><div class="text">{"".join(spans)}</div>'


def _table(figure: Figure) -> str:
    file = f"figures/{figure.name}.csv"
    if len(figure.rows) > _MOST_ROWS:
        return _paragraph(f"{len(figure.rows)} rows in {file}", "note")
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in figure.columns)
    body = "".join("<tr>" + "".join(_cell(row.get(name)) for name in figure.columns) + "</tr>" for row in figure.rows)
    return (
        f"<details><summary>The numbers, also in {escape(file)}</summary>"
        f'<div class="wide"><table><tr>{head}</tr>{body}</table></div></details>'
    )


def _cell(value: Any) -> str:
    if is_none(value):
        return "<td></td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, (int, float)):
        return f'<td class="number">{value:.4g}</td>' if isinstance(value, float) else f'<td class="number">{value}</td>'
    return f"<td>{escape(str(value))}</td>"


def _missing(missing: Sequence[Missing], gaps: Mapping[str, str]) -> str:
    lines = [item.title + ": " + item.reason + (f" (comes with {item.hint})" if item.hint else "") for item in missing]
    lines += [f"Unfinished: {text}" for text in gaps.values()]
    if not lines:
        return ""
    return "<h2>What is not here</h2><ul>" + "".join(f'<li class="note">{escape(line)}</li>' for line in lines) + "</ul>"


def _provenance(material: Material) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(value))}</td></tr>'
        for name, value in provenance(material).items()
    )
    return f'<h2>Where this comes from</h2><table class="about">{rows}</table>'


def provenance(material: Material) -> dict[str, str]:
    """What the figures depend on, by name; what the run does not tell is left out."""
    about, config, bank = material.run.about, material.config, material.bank
    measured: Mapping[str, Any] = bank.measured if bank else {}
    own = about.get("provenance", {})
    rule = ", ".join(f"{name} {value}" for name, value in config.rule.about().items())
    versions = ", ".join(f"{name} {value}" for name, value in own.get("versions", {}).items())
    found = {
        "target": f"{about['inputs']['target']['name']} ({about['inputs']['target'].get('identity', '')[:19]})",
        "heads": f"{about['inputs']['heads']['name']} ({about['inputs']['heads'].get('identity', '')[:19]})",
        "prompts": config.task, "acceptance": rule, "cap": f"{config.max_new_tokens} new tokens", "seed": str(config.seed),
        "placement": about.get("placement", ""), "dtype": str(measured.get("dtype", config.dtype)),
        "timed on": _machine(measured) or material.timed_on,
        "versions": versions, "revision": own.get("revision", ""), "command": shlex.join(own.get("command", [])),
        "bank by": shlex.join(bank.provenance.get("command", [])) if bank else "", "fingerprint": about["fingerprint"],
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def _machine(measured: Mapping[str, Any]) -> str:
    if not measured:
        return ""
    parts = (
        measured.get("cpu"),
        f"{measured.get('cores', '?')} cores",
        measured.get("system"),
        f"load {measured.get('load', '?')}",
    )
    return ", ".join(str(part) for part in parts if part)


def _paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"
