"""The picture of a reproduction: ours over the paper's for figures that are compared; curves or points with error bars, beside
the paper's figures, for trained ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.reproductions.entry import Entry, Row
from scripts.reproductions.figure import show

AGREES, NEAR, DIFFERS, PAPER = "#1a7f37", "#b8860b", "#c4421a", "0.35"


def draw(path: Path, entry: Entry, rows: Sequence[Row]) -> bool:
    """Draws an entry's rows as an SVG with the same bytes for the same rows; returns whether there was anything to draw."""
    curves = [row for row in rows if row.at is not None]
    points = [row for row in rows if row.error is not None and row.at is None]
    ratios = [row for row in rows if row.deviation is not None]
    if not (curves or points or len(ratios) > 1):
        return False
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": entry.name, "font.size": 8}):
        height = 3.0 if curves else 1.4 + 0.24 * len(points) if points else 0.6 + 0.2 * len(ratios)
        figure = Figure(figsize=(6, height), layout="constrained")
        if curves:
            _curves(figure.add_subplot(), entry, curves)
        elif points:
            _points(figure, entry, points)
        else:
            _ratios(figure.add_subplot(), ratios)
        figure.savefig(path, format="svg", metadata={"Date": None})
    return True


def _curves(axes: Any, entry: Entry, rows: Sequence[Row]) -> None:
    """Draws each series with its standard errors; a series of the paper's figures where rows have them."""
    names = list(dict.fromkeys(row.series for row in rows))
    for name in names:
        of_series = [row for row in rows if row.series == name]
        at, ours = [row.at for row in of_series], [row.ours for row in of_series]
        (line,) = axes.plot(at, ours, marker=".", linewidth=1, label=name)
        axes.errorbar(at, ours, [row.error or 0 for row in of_series], fmt="none", color=line.get_color(), capsize=2)
        if paper := [(row.at, row.paper) for row in of_series if isinstance(row.paper, int | float)]:
            axes.plot(*zip(*paper, strict=True), "x", color=line.get_color(), label=f"{name}, paper")
    axes.set_ylabel(entry.unit)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _points(figure: Any, entry: Entry, rows: Sequence[Row]) -> None:
    """Draws figures, and the differences that claims are about in a panel of their own, each with its standard error."""
    groups = [group for group in ([r for r in rows if not r.sign], [r for r in rows if r.sign]) if group]
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[len(group) + 1 for group in groups])[:, 0]
    for axes, group in zip(panels, groups, strict=True):
        places = range(len(group), 0, -1)
        for row, place in zip(group, places, strict=True):
            color = {True: AGREES, False: DIFFERS, None: "tab:blue"}[row.comes_out]
            axes.errorbar(row.ours, place, xerr=row.error, fmt="o", markersize=4, color=color, capsize=2)
            if row.paper is not None:  # beside the axes: its scale is another model's
                axes.annotate(show(row.paper), (1.02, place), xycoords=("axes fraction", "data"), color=PAPER, va="center")
        if group[0].sign:
            axes.axvline(0, color="0.8", linewidth=1, zorder=0)
        axes.set_yticks(list(places), [row.label for row in group])
        axes.set_ylim(0.4, len(group) + 0.6)
        axes.set_xlabel("difference" if group[0].sign else entry.unit)
        if any(row.paper is not None for row in group):
            axes.annotate("paper", (1.02, len(group) + 0.6), xycoords=("axes fraction", "data"), color=PAPER, va="bottom")


def _ratios(axes: Any, rows: Sequence[Row]) -> None:
    """Draws ours over the paper's figure for each row that has both: what is the same, what is near, and what is neither."""
    ratios = [1 + (row.deviation or 0.0) for row in rows]
    places = range(len(rows), 0, -1)
    axes.axvline(1, color="0.8", linewidth=1, zorder=0)
    colors = [AGREES if row.same else NEAR if row.near else DIFFERS for row in rows]
    axes.scatter(ratios, places, s=18, color=colors)
    axes.set_yticks(list(places), [row.label for row in rows])
    axes.set_xlabel("ours / paper")
    if max(ratios) > 3 or min(ratios) < 1 / 3:
        axes.set_xscale("log")
    else:
        axes.set_xlim(min(0.85, min(ratios) - 0.05), max(1.15, max(ratios) + 0.05))
