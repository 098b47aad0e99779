"""Trees and timelines drawn with matplotlib. Trees grow from left to right, one line for every leaf, so that they fit a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from entmtp_calib.report.figure import Figure, Row
from entmtp_calib.report.palette import INK, MUTED, SERIES, WIDTH, depth_colours, short

_LINE, _LEVEL = 0.23, 0.66  # inches for a leaf and for a level
_MOST_NODES = 20  # more would make a figure that no page holds
_STEPS = (0.02, 0.05, 0.1, 0.2, 0.4)  # shares from which the next shade is taken


def draw_trees(figure: Figure) -> Canvas:
    """One panel a tree, nodes with rank and share, darker where they are accepted more often; of a large tree the best nodes."""
    labels = figure.facts["drawn"]
    whole = [[row for row in figure.rows if row["tree"] == label] for label in labels]
    parts = [best_nodes(rows, _MOST_NODES) for rows in whole]
    places = [leaf_lines(rows) for rows in parts]
    heights = [
        max(place.values()) + (2.4 if rows == every else 3.4) for place, rows, every in zip(places, parts, whole, strict=True)
    ]
    deepest = max(row["depth"] for row in figure.rows)
    canvas = Canvas(figsize=(max(WIDTH, _LEVEL * (deepest + 1)), _LINE * sum(heights) + 0.2))
    grid = canvas.subplots(len(parts), 1, squeeze=False, height_ratios=heights).ravel()
    for axes, label, rows, place, every in zip(grid, labels, parts, places, whole, strict=True):
        _tree(axes, rows, place)
        some = "" if rows == every else f"\n{len(rows)} of its {len(every)} nodes, those accepted most"
        axes.set_title(f"{short(label, 32)}, {rows[0]['steps']} steps{some}", loc="left")
        axes.set_xlim(-0.35, deepest + 0.45)
        axes.set_ylim(max(place.values()) + 0.7, -0.7)
        axes.set_axis_off()
    return canvas


def best_nodes(rows: Sequence[Row], most: int) -> list[Row]:
    """The nodes of one tree that are accepted most, in their order; a parent is never accepted less than its children, so they
    are a tree again."""
    ranked = sorted(rows, key=lambda row: (-row["accepted"], row["depth"], row["node"]))[:most]
    kept = {row["node"] for row in ranked}
    return [row for row in rows if row["node"] in kept]


def leaf_lines(rows: Sequence[Row]) -> dict[str, float]:
    """The line on which each node stands: a line for every leaf, a node beside its first child.

    Args:
        rows: of one tree, `node` as ranks joined by dots.

    Returns:
        Lines by node; the root is "".
    """
    nodes = sorted(tuple(map(int, row["node"].split("."))) for row in rows)
    inner = {node[:-1] for node in nodes}
    lines: dict[str, float] = {"": 0.0}
    line = -1
    for node in nodes:  # depth first: ranks in lexicographic order
        line += node not in inner
        lines[".".join(map(str, node))] = float(line if node not in inner else line + 1)
    return lines


def _tree(axes: Axes, rows: Sequence[Row], place: dict[str, float]) -> None:
    axes.plot([0], [0], marker="s", color=INK, markersize=5)
    for row in rows:
        x, y = row["depth"], place[row["node"]]
        above = place[row["node"].rpartition(".")[0]]
        axes.plot([x - 1, x - 0.5, x - 0.5, x], [above, above, y, y], color=MUTED, linewidth=0.8, zorder=1)
        shade = sum(row["accepted"] >= step for step in _STEPS)
        axes.text(x, y, f"{row['rank']}: {_percent(row['accepted'])}", ha="center", va="center", fontsize=8.5,
                  color=depth_colours(shade)[1],
                  bbox={"boxstyle": "round,pad=0.18", "facecolor": depth_colours(shade)[0], "edgecolor": MUTED,
                        "linewidth": 0.6})  # fmt: skip


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def draw_timeline(figure: Figure) -> Canvas:
    """Above what every step verified, in the middle the signal, below what the steps of the main policy brought."""
    facts = figure.facts
    high = 1.2 if facts["dynamic"] else 0.4 + 0.25 * len(facts["trees"])
    canvas = Canvas(figsize=(WIDTH, 3.6 + high))
    above, middle, below = canvas.subplots(3, 1, sharex=True, height_ratios=(high, 1.2, 1.2))
    main = [row for row in figure.rows if row["policy"] == facts["main"]]
    positions = [row["position"] for row in main]
    if facts["dynamic"]:
        levels = [list(map(int, row["by_depth"].split())) for row in main]
        _stacked(above, positions, levels)
        above.set_ylabel("verified\nnodes")
        above.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    else:
        _chosen(above, figure.rows, facts)
    middle.plot(positions, [row["signal"] for row in main], color=MUTED, marker=".", markersize=3, linewidth=0.8)
    middle.set_ylabel(facts["signal"].replace("_", "\n", 1).replace("_", " "))
    deepest = max([*(row["accepted"] for row in main), 1])
    _stacked(below, positions, [[int(depth <= row["accepted"]) for depth in range(1, deepest + 1)] for row in main])
    below.plot(positions, [0] * len(main), "|", color=INK, markersize=5)
    below.set_ylabel("accepted\ndrafts")
    below.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    below.set_xlabel("position in the text (tokens)")
    canvas.align_ylabels()
    handles, labels = above.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside upper left", ncols=4 if facts["dynamic"] else 2)
    return canvas


def _stacked(axes: Axes, positions: Sequence[int], levels: Sequence[Sequence[int]]) -> None:
    """Bars of as many nodes as there are at each depth, in the colours of the text's tokens."""
    for depth, counts in enumerate(zip(*levels, strict=True), 1):
        under = [sum(own[: depth - 1]) for own in levels]
        axes.bar(positions, counts, bottom=under, width=0.85, color=depth_colours(depth)[0], edgecolor=MUTED, linewidth=0.15,
                 label=f"depth {depth}")  # fmt: skip


def _chosen(axes: Axes, rows: Sequence[Row], facts: Mapping[str, Any]) -> None:
    """Which tree of the bank every policy took."""
    for number, name in enumerate(dict.fromkeys(row["policy"] for row in rows)):
        own = [row for row in rows if row["policy"] == name]
        colour, width = ((SERIES[3], 1.0), (SERIES[0], 2.5))[number % 2]
        label = name if name == facts["main"] else f"{name} (not recommended)"
        trees = [facts["trees"].index(row["tree"]) for row in own]
        axes.step([row["position"] for row in own], trees, where="post", color=colour, marker="os"[number % 2],
                  markersize=1.5 + width, linewidth=width, zorder=3 - number, label=label)  # fmt: skip
    axes.set_yticks(range(len(facts["trees"])), list(map(short, facts["trees"])))
    axes.set_ylim(-0.5, len(facts["trees"]) - 0.5)
    axes.set_ylabel("tree")
