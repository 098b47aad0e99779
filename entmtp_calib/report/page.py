"""The report as one HTML page that needs nothing else: pictures inside, no script, readable on a phone and on paper.

Everything that came from files or prompts is escaped here. Writes no files.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from entmtp_calib.report.answer import answer
from entmtp_calib.report.figure import Figure, Missing, is_none
from entmtp_calib.report.material import Material
from entmtp_calib.report.palette import DEPTHS, depth_colours
from entmtp_calib.report.timeline import TIMELINE
from entmtp_calib.trust import SMALL, too_few

_TURNING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # bidirectional classes of control characters
_MOST_ROWS = 40  # a longer table is left to the CSV
_STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 44rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; }
h1 { font-size: 1.5rem; line-height: 1.2; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin: 0 0 .25rem; }
p { margin: .4rem 0; overflow-wrap: anywhere; } section { margin: 2.5rem 0; }
nav ul { columns: 17rem; margin: .8rem 0; padding-left: 1.2rem; } nav a { color: #14213d; } nav li { break-inside: avoid; }
figure { margin: 0; } svg { display: block; width: 100%; max-width: 30rem; height: auto; margin: .75rem 0; }
.answer { font-weight: 600; } .note, .mark, figcaption, td, th, summary, nav { font-size: .9rem; } .note { color: #555; }
.mark { border-left: .3rem solid #c8553d; padding-left: .5rem; } summary { cursor: pointer; }
.text { font-family: ui-monospace, monospace; font-size: .9rem; overflow-wrap: anywhere; white-space: pre-wrap;
border: 1px solid #d9d9d9; padding: .5rem; line-height: 1.7; }
.text span, .key span { padding: .1rem 0; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.text .root { border-left: 2px solid #1c1c1c; }
.key span { border: 1px solid #6b6b6b; padding: .1rem .4rem; margin-right: .3rem; white-space: nowrap; }
.wide { overflow-x: auto; } table { border-collapse: collapse; } td, th { padding: .15rem .6rem .15rem 0; text-align: left;
vertical-align: top; border-bottom: 1px solid #e5e5e5; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
.about th { white-space: nowrap; } .about td { overflow-wrap: anywhere; }
@media screen and (min-width: 62rem) { body { max-width: 60rem; } figcaption, .answer, main > p { max-width: 46rem; }
.beside { display: grid; grid-template-columns: 30rem 1fr; column-gap: 1.5rem; align-items: start; } }
@media print { @page { margin: 1.5cm; } body { max-width: none; padding: 0; font-size: 9.5pt; } nav, summary { display: none; }
section { margin: 1.2rem 0; } section, .beside, tr { break-inside: avoid; } h2, .mark, figcaption { break-after: avoid; }
svg { margin: .3rem 0; } .about { break-inside: auto; } .about td, .about th { font-size: 8pt; }
.beside { display: grid; grid-template-columns: 8.5cm 1fr; column-gap: .6cm; align-items: start; } }
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
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>{escape(title)}</h1>", _answer(material), _trust(material.counts), _contents(shown),
        *(_figure(item, pictures[item.name], material.counts) for item in shown),
        _missing(missing, material.gaps), _provenance(material), "</main></body></html>",
    ]  # fmt: skip
    return "\n".join(part for part in parts if part) + "\n"


def _answer(material: Material) -> str:
    """What the run is of, what to use, and what the bank holds."""
    about, use, known = answer(material)
    return "\n".join([_paragraph(about), _paragraph(use, "answer"), _paragraph(known) if known else ""])


def _contents(shown: Sequence[Figure]) -> str:
    lines = "".join(f'<li><a href="#{escape(item.name)}">{escape(item.title)}</a></li>' for item in shown)
    return f'<nav aria-label="Figures"><ul>{lines}</ul></nav>' if lines else ""


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
    """Heading, mark and sentence; beside the picture, or under it where there is no room, what belongs to it; the numbers."""
    small = too_few({name: counts[name] for name in figure.rests_on if name in counts})
    mark = "too small to trust: " + ", ".join(f"{name} {count} prompts" for name, count in small.items())
    drawn = picture.replace("<svg", f'<svg role="img" aria-label="{escape(figure.title)}"', 1)
    parts = [
        f'<section id="{escape(figure.name)}"><h2>{escape(figure.title)}</h2>',
        _paragraph(mark, "mark") if small else "",
        f'<figure><figcaption>{_prose(figure.sentence)}</figcaption><div class="beside">{drawn}<div>',
        _text(figure) if figure.name == TIMELINE else "",
        *(_paragraph(note, "note") for note in figure.notes),
        "</div></div></figure>", _table(figure), "</section>",
    ]  # fmt: skip
    return "\n".join(part for part in parts if part)


def _text(figure: Figure) -> str:
    """The text, every token on the colour of the depth that it came from, a bar before every step."""
    spans = []
    for piece, depth, step in figure.facts["pieces"]:
        back, letters = depth_colours(depth)
        kind = ' class="root"' if depth == 0 else ""
        spans.append(f'<span{kind} style="background:{back};color:{letters}" title="step {step}">{escape(visible(piece))}</span>')
    deepest = min(max((depth for _piece, depth, _step in figure.facts["pieces"]), default=0), len(DEPTHS) - 1)
    names = ["root", *(f"depth {depth}" for depth in range(1, deepest + 1))]
    key = "".join(
        f'<span style="background:{back};color:{letters}">{name}</span>'
        for name, (back, letters) in zip(names, map(depth_colours, range(deepest + 1)), strict=True)
    )
    what = "The text" if figure.facts["as_text"] else "The ids of the tokens, since no tokenizer is at hand"
    told = _paragraph(f"{what}, under {figure.facts['main']}; a bar begins every step.", "note")
    return f'{told}<p class="key note">{key}</p><div class="text" dir="auto">{"".join(spans)}</div>'


def visible(text: str) -> str:
    """The text with signs in place of control characters, which a page may not hold or which turn the order of what follows."""
    return "".join(_sign(sign) for sign in text)


def _sign(sign: str) -> str:
    if unicodedata.bidirectional(sign) in _TURNING:
        return "\ufffd"
    if unicodedata.category(sign) not in ("Cc", "Cs") or sign in "\n\t":
        return sign
    return chr(0x2400 + ord(sign)) if ord(sign) < 32 else "\ufffd"


def _table(figure: Figure) -> str:
    file = f"figures/{figure.name}.csv"
    if len(figure.rows) > _MOST_ROWS:
        return _paragraph(f"{len(figure.rows)} rows in {file}", "note")
    head = "".join(f'<th scope="col">{escape(name.replace("_", " "))}</th>' for name in figure.columns)
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
    return f"<td>{escape(visible(str(value)))}</td>"


def _missing(missing: Sequence[Missing], gaps: Mapping[str, str]) -> str:
    lines = [item.title + ": " + item.reason + (f" (comes with {item.hint})" if item.hint else "") for item in missing]
    lines += [f"Unfinished: {text}" for text in gaps.values()]
    if not lines:
        return ""
    items = "".join(f'<li class="note">{_prose(line)}</li>' for line in lines)
    return f"<section><h2>What is not here</h2><ul>{items}</ul></section>"


def _provenance(material: Material) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(visible(str(value)))}</td></tr>'
        for name, value in provenance(material).items()
    )
    return f'<section class="about"><h2>Where this comes from</h2><table>{rows}</table></section>'


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
    return f'<p class="{kind}">{_prose(text)}</p>' if kind else f"<p>{_prose(text)}</p>"


def _prose(text: str) -> str:
    """Sentences; no line begins with a percent sign."""
    return escape(visible(text)).replace(" %", "&nbsp;%")
