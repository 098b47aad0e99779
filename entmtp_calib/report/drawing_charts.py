"""Charts drawn with matplotlib, one function a figure, from its rows and facts alone. Knows nothing of files and formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator

from entmtp_calib.report.acceptance import HELD_OUT, RANKS, REPLAYED, ROLLOUT, SEARCHED
from entmtp_calib.report.contest import ORACLE
from entmtp_calib.report.figure import NONE, Figure, Row, is_none
from entmtp_calib.report.palette import DASHES, FAINT, INK, MARKS, MUTED, PAPER, SERIES, WIDTH, short

_ASIDE = 0.88  # of the nodes at which the published tree is drawn: beside a grown tree of its size, not over it


def throughput(figure: Figure) -> Canvas:
    """Speed over nodes: the grown trees with intervals, the bank filled, plain decoding and the published tree as lines."""
    canvas, axes = _axes(4.6)
    plain, drafting = figure.facts["plain_tokens_per_s"], [row for row in figure.rows if row["nodes"]]
    for row in figure.rows:
        if not row["nodes"] and row["arm"] != "ar":
            axes.axhspan(row["low"], row["high"], color=FAINT, linewidth=0)
    axes.axhline(1.0, color=INK, linewidth=1.2, label=f"plain decoding ({plain:.1f} tokens/s)")
    own = [row for row in drafting if row["arm"] != figure.facts["default"]]
    default = [row for row in drafting if row["arm"] == figure.facts["default"]]
    for row in default:
        axes.axhline(row["times_plain"], color=SERIES[1], linestyle="--", label="published 63-node tree")
    aside = [_ASIDE * size for size in _column(default, "nodes")]
    axes.errorbar(aside, _column(default, "times_plain"), yerr=_bars(default, "times_plain"), fmt="s", color=SERIES[1],
                  markersize=3.5, capsize=2, linewidth=1)  # fmt: skip
    axes.plot(_column(own, "nodes"), _column(own, "times_plain"), color=FAINT, linewidth=1, zorder=1)
    for kept, fill, label in ((True, SERIES[3], "in the bank"), (False, PAPER, "timed, not in the bank")):
        some = [row for row in own if bool(row["in_bank"]) is kept]
        if some:
            axes.errorbar(_column(some, "nodes"), _column(some, "times_plain"), yerr=_bars(some, "times_plain"), fmt="o",
                          color=SERIES[3], markerfacecolor=fill, capsize=2, linewidth=1, label=label)  # fmt: skip
    replayed = [row for row in own if not is_none(row["replayed_times_plain"])]
    if replayed:
        axes.plot(_column(replayed, "nodes"), _column(replayed, "replayed_times_plain"), "x", color=SERIES[1],
                  label="replay, all fit prompts")  # fmt: skip
    _name_best(axes, own)
    _sizes_axis(axes, max(_column(drafting, "nodes"), default=1))
    axes.set_ylabel("times plain decoding")
    right = axes.secondary_yaxis("right", functions=(lambda y: y * plain, lambda y: y / plain))
    right.set_ylabel("tokens/s, prefill included")
    _legend(canvas)
    return canvas


def _name_best(axes: Axes, rows: Sequence[Row]) -> None:
    """The label of the fastest tree over its place, above the axes, where nothing else is."""
    if rows:
        best = max(rows, key=lambda row: (row["times_plain"], -row["nodes"]))
        side = "left" if best["nodes"] < 4 else "center" if best["nodes"] <= 16 else "right"
        axes.annotate(f"fastest: {short(best['arm'])}", (best["nodes"], 1.01), xycoords=("data", "axes fraction"), ha=side)


def frontier(figure: Figure) -> Canvas:
    """A panel for every bound on depth: mean accept over nodes, as counted and as found on the tree's own steps."""
    depths = sorted({row["max_depth"] for row in figure.rows})
    columns = min(2, len(depths))
    lines = -(-len(depths) // columns)
    canvas = Canvas(figsize=(WIDTH, 1.1 + 1.9 * lines))
    grid = canvas.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes in grid[len(depths) :]:
        axes.set_visible(False)
    largest = max(row["nodes"] for row in figure.rows)
    for axes, depth in zip(grid, depths, strict=False):
        _growth(axes, [row for row in figure.rows if row["max_depth"] == depth])
        axes.set_title(f"depth at most {depth}", loc="left")
        _sizes_axis(axes, largest)
        axes.label_outer()
    for axes in grid[max(0, len(depths) - columns) : len(depths)]:  # what stands above an empty place is the lowest, too
        axes.xaxis.set_tick_params(labelbottom=True)
        axes.set_xlabel("nodes of the tree")
    canvas.supylabel("accepted drafts per step", fontsize=10)
    shown = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    canvas.legend(list(shown.values()), list(shown), loc="outside lower left", ncols=2)
    return canvas


def _growth(axes: Axes, rows: Sequence[Row]) -> None:
    looks = ((SEARCHED, "search's count (biased)", SERIES[0], "-"), (REPLAYED, "own steps, same prompts", SERIES[2], "--"),
             (HELD_OUT, "own steps, new prompts", SERIES[3], "-"))  # fmt: skip
    for kind, label, colour, dash in looks:
        own = [row for row in rows if row["kind"] == kind]
        x, y = _column(own, "nodes"), _column(own, "mean_accept")
        if own:
            axes.plot(x, y, color=colour, linestyle=dash, label=label, linewidth=2.4 if kind == SEARCHED else 1.4)
        if kind == HELD_OUT:
            axes.fill_between(x, _column(own, "low"), _column(own, "high"), color=colour, alpha=0.15, linewidth=0)
    own = [row for row in rows if row["kind"] == ROLLOUT]
    if own:
        axes.errorbar(_column(own, "nodes"), _column(own, "mean_accept"), yerr=_bars(own, "mean_accept"), fmt="o",
                      color=SERIES[1], markerfacecolor=PAPER, capsize=2, linewidth=1, label="decoded, new prompts")  # fmt: skip


def hits(figure: Figure) -> Canvas:
    """A line for every depth: how often the true token is among the first guesses."""
    canvas, axes = _axes(3.6)
    for number, depth in enumerate(sorted({row["depth"] for row in figure.rows})):
        rows = [row for row in figure.rows if row["depth"] == depth]
        look = number % len(SERIES)
        x = [rank + 1 + 0.06 * number for rank in _column(rows, "rank")]
        axes.errorbar(x, _column(rows, "within"), yerr=_bars(rows, "within"), color=SERIES[-1 - look], marker=MARKS[look],
                      linestyle=DASHES[look], capsize=1.5, elinewidth=0.8, label=f"depth {depth}")  # fmt: skip
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:.0%}")
    axes.set_xticks(range(1, RANKS + 1))
    axes.set_xlabel("guesses taken from the head")
    axes.set_ylabel("positions with the true token")
    _legend(canvas, 4)
    return canvas


def signal(figure: Figure) -> Canvas:
    """Accepted drafts over the signal, with the thresholds of the policies."""
    canvas, axes = _axes(3.6)
    rows, facts = figure.rows, figure.facts
    axes.errorbar(_column(rows, "signal"), _column(rows, "accepted"), yerr=_bars(rows, "accepted"), color=SERIES[3], marker="o",
                  capsize=2, elinewidth=0.8, label=f"accepted by {short(facts['tree'])}")  # fmt: skip
    looks = {name: number for number, name in enumerate(dict.fromkeys(line["policy"] for line in facts["lines"]))}
    named: set[str] = set()
    for line in facts["lines"]:
        name = line["policy"]
        axes.axvline(line["threshold"], color=SERIES[1 - looks[name] % 2], linestyle=DASHES[1 + looks[name] % 3],
                     label=None if name in named else f"thresholds of {name}")  # fmt: skip
        named.add(name)
    if min(_column(rows, "signal")) > 0 and max(_column(rows, "signal")) > 20 * min(_column(rows, "signal")):
        _log_axis(axes, max(_column(rows, "signal")) / min(_column(rows, "signal")))
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{facts['signal']} ({facts['unit']})")
    axes.set_ylabel("accepted drafts per step")
    _legend(canvas)
    return canvas


def _log_axis(axes: Axes, span: float) -> None:
    """Numbers at 1, 2 and 5, over many decades at their beginnings only."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if span < 500 else (1.0,)))
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda _value, _place: "")


def reliability(figure: Figure) -> Canvas:
    """What is observed over what the signal announces."""
    canvas, axes = _axes(3.8)
    rows, top = figure.rows, max(*_column(figure.rows, "signal"), *_column(figure.rows, "observed")) * 1.08 or 1.0
    axes.plot([0, top], [0, top], color=MUTED, linestyle=":", label="what it says is what happens")
    axes.errorbar(_column(rows, "signal"), _column(rows, "observed"), yerr=_bars(rows, "observed"), color=SERIES[3], marker="o",
                  capsize=2, elinewidth=0.8, label="observed")  # fmt: skip
    axes.set_xlim(0, top)
    axes.set_ylim(bottom=0)
    axes.locator_params(nbins=6)
    axes.set_xlabel(f"announced by {figure.facts['signal']}")
    axes.set_ylabel(figure.facts["unit"])
    _legend(canvas)
    return canvas


def gain(figure: Figure) -> Canvas:
    """A line for every policy, ceiling and floor; the numbers stand at the right."""
    rows = list(reversed(figure.rows))
    canvas, axes = _axes(0.9 + 0.4 * len(rows))
    looks = {"policy": ("o", SERIES[3]), "ceiling": (">", SERIES[1]), "floor": ("<", SERIES[2])}
    for place, row in enumerate(rows):
        mark, colour = looks[row["kind"]]
        reach = None if is_none(row["low"]) else _bars([row], "times_static")
        axes.errorbar([row["times_static"]], [place], xerr=reach, fmt=mark, color=colour, capsize=3)
    axes.axvline(1.0, color=MUTED, linestyle="--", linewidth=1, zorder=1)
    more = {figure.facts["recommended"]: "\n(recommended)", "oracle": "\n(ceiling)"}
    names = [row["arm"].replace(" that ", "\nthat ").replace(" at ", "\nat ") + more.get(row["arm"], "") for row in rows]
    _name_lines(axes, names, [f"{row['times_static']:.3f}" for row in rows])
    axes.margins(x=0.08)
    axes.set_xlabel("tokens/s, the best static tree is 1")
    return canvas


def _name_lines(axes: Axes, names: Sequence[str], values: Sequence[str]) -> None:
    """What stands to the left and to the right of lines that are numbered from below."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(values)), values)
    right.tick_params(length=0, labelcolor=INK)
    right.spines["right"].set_visible(False)


def costs(figure: Figure) -> Canvas:
    """Milliseconds over rows: measured, modelled, and what of it is drafting."""
    canvas, axes = _axes(3.6)
    rows = [{**row, "rows": row["nodes"] + 1} for row in figure.rows]
    axes.errorbar(_column(rows, "rows"), _column(rows, "measured_ms"), yerr=_bars(rows, "measured_ms"), fmt="o", color=SERIES[3],
                  markerfacecolor=PAPER, markersize=7, capsize=2, elinewidth=0.8, label="measured")  # fmt: skip
    axes.plot(_column(rows, "rows"), _column(rows, "model_ms"), "x", color=SERIES[1], label="model", zorder=3)
    axes.plot(_column(rows, "rows"), _column(rows, "draft_ms"), "^", color=SERIES[0], label="drafting alone, measured",
              clip_on=False)  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows of the forward pass (nodes and root)")
    axes.set_ylabel("milliseconds per step")
    _legend(canvas)
    return canvas


def search_time(figure: Figure) -> Canvas:
    """Seconds over prompts, the text's and all."""
    canvas, axes = _axes(3.2)
    x, texts = _column(figure.rows, "prompts"), _column(figure.rows, "rollout_s")
    total = [a + b for a, b in zip(texts, _column(figure.rows, "growth_s"), strict=True)]
    axes.plot(x, total, color=SERIES[3], marker="o", label="text and growth of the trees")
    axes.plot(x, texts, color=SERIES[1], marker="s", linestyle="--", label="text alone")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("prompts of the search")
    axes.set_ylabel("seconds")
    _legend(canvas)
    return canvas


def bench(figure: Figure) -> Canvas:
    """A bar for every way to decode; the numbers stand at the right."""
    rows = list(reversed(figure.rows))
    canvas, axes = _axes(1.2 + 0.32 * len(rows))
    for place, row in enumerate(rows):
        run = row["arm"] != ORACLE
        axes.barh([place], [row["speedup"]], height=0.62, color=SERIES[0] if run and row["nodes"] else FAINT if run else PAPER,
                  edgecolor=MUTED, linestyle="-" if run else "--", xerr=_bars([row], "speedup") if run else None,
                  ecolor=INK, capsize=2)  # fmt: skip
    axes.axvline(1.0, color=INK, linestyle="--", linewidth=1)
    _name_lines(axes, [short(row["arm"], 30).replace(", ", ",\n") for row in rows], [f"{row['speedup']:.2f}" for row in rows])
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("tokens/s, plain decoding is 1")
    canvas.suptitle(figure.title, x=0.02, ha="left", wrap=True, fontsize=9)
    return canvas


def _legend(canvas: Canvas, columns: int = 2) -> None:
    """Under the axes, where it hides nothing."""
    canvas.legend(loc="outside lower left", ncols=columns)


def _axes(height: float) -> tuple[Canvas, Axes]:
    canvas = Canvas(figsize=(WIDTH, height))
    return canvas, canvas.subplots()


def _column(rows: Iterable[Row], name: str) -> list[float]:
    return [NONE if is_none(row.get(name)) else float(row[name]) for row in rows]


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
