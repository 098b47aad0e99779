"""Figures drawn with matplotlib, from their rows and facts alone; SVG and PNG in the same bytes every time.

Imports matplotlib, so it is imported only where figures are drawn. Widths suit a phone: letters stay readable when a figure is
scaled to a narrow screen.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from entmtp_calib.report import acceptance, speed, switching
from entmtp_calib.report.acceptance import HELD_OUT, REPLAYED, ROLLOUT, SEARCHED
from entmtp_calib.report.contest import BENCH, ORACLE
from entmtp_calib.report.drawing_trees import draw_timeline, draw_trees
from entmtp_calib.report.figure import Figure, Row, is_none
from entmtp_calib.report.palette import DASHES, FAINT, INK, MARKS, MUTED, PAPER, SERIES, WIDTH
from entmtp_calib.report.timeline import TIMELINE

_STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8,
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


def _axes(height: float) -> tuple[Canvas, Axes]:
    canvas = Canvas(figsize=(WIDTH, height))
    return canvas, canvas.subplots()


def _column(rows: Iterable[Row], name: str) -> list[float]:
    return [float("nan") if is_none(row.get(name)) else float(row[name]) for row in rows]


def _bars(rows: Sequence[Row], value: str) -> list[list[float]]:
    """Lengths of error bars below and above; zero where there is no interval."""

    def length(near: float, far: float) -> float:
        return max(0.0, far - near) if far == far and near == near else 0.0

    values, lows, highs = (_column(rows, name) for name in (value, "low", "high"))
    return [list(map(length, lows, values)), list(map(length, values, highs))]


def _sizes_axis(axes: Axes, largest: float) -> None:
    """Numbers of nodes, in powers of two."""
    axes.set_xscale("log", base=2)
    ticks = [2**k for k in range(12) if 2**k <= largest * 1.01]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("nodes of the tree")


def _throughput(figure: Figure) -> Canvas:
    canvas, axes = _axes(4.2)
    facts, drafting = figure.facts, [row for row in figure.rows if row["nodes"]]
    again = [row for row in figure.rows if not row["nodes"] and row["arm"] != "ar"]
    for row in again:
        axes.axhspan(row["low"], row["high"], color=FAINT, linewidth=0)
    axes.axhline(1.0, color=INK, linewidth=1.2, label=f"plain decoding, {facts['plain_tokens_per_s']:.1f} tokens/s")
    own = [row for row in drafting if row["arm"] != facts["default"]]
    default = [row for row in drafting if row["arm"] == facts["default"]]
    for row in default:
        axes.axhline(row["times_plain"], color=SERIES[1], linestyle="--", label="published 63-node tree")
    axes.errorbar(_column(default, "nodes"), _column(default, "times_plain"), yerr=_bars(default, "times_plain"), fmt="s",
                  color=SERIES[1], markersize=3.5, capsize=2, linewidth=1)  # fmt: skip
    axes.plot(_column(own, "nodes"), _column(own, "times_plain"), color=FAINT, linewidth=1, zorder=1)
    for kept, fill, label in ((True, SERIES[3], "in the bank"), (False, PAPER, "timed, not in the bank")):
        some = [row for row in own if bool(row["in_bank"]) is kept]
        if some:
            axes.errorbar(_column(some, "nodes"), _column(some, "times_plain"), yerr=_bars(some, "times_plain"), fmt="o",
                          color=SERIES[3], markerfacecolor=fill, capsize=2, linewidth=1, label=label)  # fmt: skip
    replayed = [row for row in drafting if not is_none(row["replayed_times_plain"])]
    if replayed:
        axes.plot(_column(replayed, "nodes"), _column(replayed, "replayed_times_plain"), "x", color=SERIES[1],
                  label="replay over all fit prompts")  # fmt: skip
    _sizes_axis(axes, max(_column(drafting, "nodes"), default=1))
    axes.set_ylabel("times plain decoding (tokens/s)")
    right = axes.secondary_yaxis(
        "right", functions=(lambda y: y * facts["plain_tokens_per_s"], lambda y: y / facts["plain_tokens_per_s"])
    )
    right.set_ylabel("tokens/s, prefill included")
    canvas.legend(loc="outside lower center", ncols=2)
    return canvas


def _frontier(figure: Figure) -> Canvas:
    depths = sorted({row["max_depth"] for row in figure.rows})
    columns = min(2, len(depths))
    lines = -(-len(depths) // columns)
    canvas = Canvas(figsize=(WIDTH, 0.9 + 1.9 * lines))
    grid = canvas.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes in grid[len(depths) :]:
        axes.set_visible(False)
    largest = max(row["nodes"] for row in figure.rows)
    looks = ((SEARCHED, "search's own count (biased)", SERIES[0], "-"), (REPLAYED, "own steps, search prompts", SERIES[2], "--"),
             (HELD_OUT, "own steps, new prompts", SERIES[3], "-"))  # fmt: skip
    for axes, depth in zip(grid, depths, strict=False):
        rows = [row for row in figure.rows if row["max_depth"] == depth]
        for kind, label, colour, dash in looks:
            own = [row for row in rows if row["kind"] == kind]
            x, y = _column(own, "nodes"), _column(own, "mean_accept")
            axes.plot(x, y, color=colour, linestyle=dash, label=label, linewidth=2.4 if kind == SEARCHED else 1.4)
            if kind == HELD_OUT:
                axes.fill_between(x, _column(own, "low"), _column(own, "high"), color=colour, alpha=0.15, linewidth=0)
        own = [row for row in rows if row["kind"] == ROLLOUT]
        axes.errorbar(_column(own, "nodes"), _column(own, "mean_accept"), yerr=_bars(own, "mean_accept"), fmt="o",
                      color=SERIES[1], markerfacecolor=PAPER, capsize=2, linewidth=1,
                      label="decoded by itself, new prompts")  # fmt: skip
        axes.set_title(f"depth at most {depth}", loc="left")
        _sizes_axis(axes, largest)
        axes.label_outer()
    canvas.supylabel("accepted drafts per step", fontsize=9)
    canvas.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return canvas


def _hits(figure: Figure) -> Canvas:
    canvas, axes = _axes(3.4)
    for number, depth in enumerate(sorted({row["depth"] for row in figure.rows})):
        rows = [row for row in figure.rows if row["depth"] == depth]
        look = number % len(SERIES)
        x = [rank + 1 + 0.06 * number for rank in _column(rows, "rank")]
        axes.errorbar(x, _column(rows, "within"), yerr=_bars(rows, "within"), color=SERIES[-1 - look], marker=MARKS[look],
                      linestyle=DASHES[look], capsize=1.5, elinewidth=0.8, label=f"depth {depth}")  # fmt: skip
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:.0%}")
    axes.set_xticks(range(1, acceptance.RANKS + 1))
    axes.set_xlabel("among the first so many guesses of the head")
    axes.set_ylabel("true token found")
    axes.legend(loc="lower right", ncols=2)
    return canvas


def _signal(figure: Figure) -> Canvas:
    canvas, axes = _axes(3.4)
    rows, facts = figure.rows, figure.facts
    axes.errorbar(_column(rows, "signal"), _column(rows, "accepted"), yerr=_bars(rows, "accepted"), color=SERIES[3], marker="o",
                  capsize=2, elinewidth=0.8, label=f"accepted by {facts['tree']}")  # fmt: skip
    looks = {name: number for number, name in enumerate(dict.fromkeys(line["policy"] for line in facts["lines"]))}
    named: set[str] = set()
    for line in facts["lines"]:
        name = line["policy"]
        axes.axvline(line["threshold"], color=SERIES[1 - looks[name] % 2], linestyle=DASHES[1 + looks[name] % 3],
                     label=None if name in named else f"thresholds of {name}")  # fmt: skip
        named.add(name)
    if min(_column(rows, "signal")) > 0 and max(_column(rows, "signal")) > 20 * min(_column(rows, "signal")):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _place: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda _value, _place: "")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{facts['signal']} (mean of the bin)")
    axes.set_ylabel("accepted drafts per step")
    canvas.legend(loc="outside lower center", ncols=2)
    return canvas


def _reliability(figure: Figure) -> Canvas:
    canvas, axes = _axes(3.6)
    rows, top = figure.rows, max(*_column(figure.rows, "signal"), *_column(figure.rows, "observed")) * 1.08 or 1.0
    axes.plot([0, top], [0, top], color=MUTED, linestyle=":", label="what it says is what happens")
    axes.errorbar(_column(rows, "signal"), _column(rows, "observed"), yerr=_bars(rows, "observed"), color=SERIES[3], marker="o",
                  capsize=2, elinewidth=0.8, label="observed")  # fmt: skip
    axes.set_xlim(0, top)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"announced by {figure.facts['signal']}")
    axes.set_ylabel(figure.facts["unit"])
    axes.legend(loc="upper left")
    return canvas


def _gain(figure: Figure) -> Canvas:
    rows = list(reversed(figure.rows))
    canvas, axes = _axes(1.2 + 0.38 * len(rows))
    looks = {"policy": ("o", SERIES[3]), "ceiling": (">", SERIES[1]), "floor": ("<", SERIES[2])}
    for place, row in enumerate(rows):
        mark, colour = looks[row["kind"]]
        axes.errorbar([row["times_static"]], [place], xerr=_bars([row], "times_static"), fmt=mark, color=colour, capsize=3)
        axes.annotate(f"{row['times_static']:.3f}", (row["times_static"], place), (0, 6), textcoords="offset points", ha="center",
                      fontsize=8)  # fmt: skip
    axes.axvline(1.0, color=MUTED, linestyle="--", linewidth=1)
    more = {figure.facts["recommended"]: " (recommended)", "oracle": " (ceiling)"}
    axes.set_yticks(range(len(rows)), [row["arm"] + more.get(row["arm"], "") for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.3)
    axes.margins(x=0.12)
    axes.set_xlabel("tokens/s, the best static tree is 1")
    return canvas


def _costs(figure: Figure) -> Canvas:
    canvas, axes = _axes(3.4)
    rows = [{**row, "rows": row["nodes"] + 1} for row in figure.rows]
    axes.errorbar(_column(rows, "rows"), _column(rows, "measured_ms"), yerr=_bars(rows, "measured_ms"), fmt="o", color=SERIES[3],
                  markerfacecolor=PAPER, capsize=2, elinewidth=0.8, label="measured")  # fmt: skip
    axes.plot(_column(rows, "rows"), _column(rows, "model_ms"), "x", color=SERIES[1], label="model")
    axes.plot(_column(rows, "rows"), _column(rows, "draft_ms"), "^", color=SERIES[0], label="of it drafting, measured alone")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows of the forward pass (nodes and root)")
    axes.set_ylabel("milliseconds per step")
    axes.legend(loc="upper left")
    return canvas


def _search_time(figure: Figure) -> Canvas:
    canvas, axes = _axes(3.0)
    x, texts = _column(figure.rows, "prompts"), _column(figure.rows, "rollout_s")
    total = [a + b for a, b in zip(texts, _column(figure.rows, "growth_s"), strict=True)]
    axes.plot(x, total, color=SERIES[3], marker="o", label="text and growth of the trees")
    axes.plot(x, texts, color=SERIES[1], marker="s", linestyle="--", label="text alone")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("prompts of the search")
    axes.set_ylabel("seconds")
    axes.legend(loc="upper left")
    return canvas


def _bench(figure: Figure) -> Canvas:
    rows = list(reversed(figure.rows))
    canvas, axes = _axes(1.2 + 0.32 * len(rows))
    for place, row in enumerate(rows):
        run, edge = row["arm"] != ORACLE, row["speedup"] if is_none(row["high"]) else max(row["high"], row["speedup"])
        axes.barh([place], [row["speedup"]], height=0.62, color=SERIES[2] if run and row["nodes"] else FAINT if run else PAPER,
                  edgecolor=MUTED, linestyle="-" if run else "--", xerr=_bars([row], "speedup") if run else None,
                  capsize=2)  # fmt: skip
        axes.annotate(f"{row['speedup']:.2f}", (edge, place), (3, 0), textcoords="offset points", va="center",
                      fontsize=8)  # fmt: skip
    axes.axvline(1.0, color=INK, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(rows)), [row["arm"] for row in rows])
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("tokens/s, plain decoding is 1")
    axes.set_title(figure.title, loc="left", wrap=True, fontsize=8)
    return canvas


_DRAWINGS: dict[str, Callable[[Figure], Canvas]] = {
    speed.THROUGHPUT: _throughput, acceptance.FRONTIER: _frontier, switching.GAIN: _gain, TIMELINE: draw_timeline,
    acceptance.TREES: draw_trees, acceptance.HITS: _hits, switching.SIGNAL: _signal, switching.RELIABILITY: _reliability,
    speed.COSTS: _costs, speed.SEARCH_TIME: _search_time, BENCH: _bench,
}  # fmt: skip
