"""Figures drawn with matplotlib, from their rows and facts alone; SVG and PNG in the same bytes every time.

Imports matplotlib, so it is imported only where figures are drawn. Widths suit a phone: letters stay readable when a figure is
scaled to a narrow screen.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure as Canvas

from entmtp_calib.report import acceptance, speed, switching
from entmtp_calib.report import drawing_charts as charts
from entmtp_calib.report.contest import BENCH
from entmtp_calib.report.drawing_trees import draw_timeline, draw_trees
from entmtp_calib.report.figure import Figure
from entmtp_calib.report.palette import FAINT, INK, MUTED, PAPER
from entmtp_calib.report.timeline import TIMELINE
from entmtp_calib.report.trees import TREES

_STYLE: dict[Any, Any] = {
    "font.size": 10, "axes.titlesize": 10, "axes.labelsize": 10, "xtick.labelsize": 9, "ytick.labelsize": 9,
    "legend.fontsize": 9, "legend.handlelength": 1.8, "legend.columnspacing": 1.2, "legend.handletextpad": 0.6,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "xtick.color": MUTED, "ytick.color": MUTED, "text.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "legend.frameon": False, "lines.linewidth": 1.4, "lines.markersize": 4.5, "figure.facecolor": PAPER,
    "grid.color": FAINT, "grid.linewidth": 0.5,
    "figure.constrained_layout.use": True, "svg.fonttype": "none", "text.parse_math": False,
}  # fmt: skip


def draw(figure: Figure) -> Canvas:
    """The figure as matplotlib has it."""
    with rc_context(_STYLE):
        return _DRAWINGS[figure.name](figure)


def to_png(figure: Figure) -> bytes:
    """The figure as PNG, 200 dots an inch."""
    return _save(figure, "png", {"Software": None}, dpi=200)


def to_svg(figure: Figure) -> str:
    """The figure as an SVG element to put in a page: no declaration, no size, no metadata, its ids its own."""
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    text = _save(figure, "svg", nothing).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r' width="[^"]*pt"| height="[^"]*pt"', "", text, count=2)
    # Ids are hashes of coordinates, which differ in the last bit from one layout to the next; and a page has many figures.
    numbers = {name: f"{figure.name}-{number}" for number, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]*)"', text)))}
    return re.sub(r'(\bid="|href="#|url\(#)([^")]*)', lambda found: found[1] + numbers.get(found[2], found[2]), text)


def _save(figure: Figure, kind: str, metadata: dict[str, Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    with rc_context({**_STYLE, "svg.hashsalt": figure.name}):
        draw(figure).savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()


_DRAWINGS: dict[str, Callable[[Figure], Canvas]] = {
    speed.THROUGHPUT: charts.throughput, acceptance.FRONTIER: charts.frontier, switching.GAIN: charts.gain,
    TIMELINE: draw_timeline, TREES: draw_trees, acceptance.HITS: charts.hits, switching.SIGNAL: charts.signal,
    switching.RELIABILITY: charts.reliability, speed.COSTS: charts.costs, speed.SEARCH_TIME: charts.search_time,
    BENCH: charts.bench,
}  # fmt: skip
