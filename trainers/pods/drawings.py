"""Drawings of a pod plan as HTML and inline SVG: bars, keys, a timeline with a movable window, a torus of chips.

This needs the standard library only. All text from a plan is escaped here; colours are classes of page.css.
"""

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainers.programs.units import seconds

Segment = tuple[str, float, str, str]  # name, value, class, value in words


def esc(value: Any) -> str:
    """Returns text that is safe in an element and in a quoted attribute."""
    return html.escape(str(value), quote=True)


# --- bars and keys ------------------------------------------------------------------------------------------------


def bar(segments: Iterable[Segment], alt: str, *, scale: float | None = None, limit: float | None = None) -> str:
    """Returns a stacked horizontal bar.

    Args:
      scale: the value of the full width; the segments' sum by default.
      limit: a value to mark with a vertical line.
    """
    visible = [s for s in segments if s[1] > 0]
    total = sum(s[1] for s in visible)
    whole = scale or total
    if not whole:
        return ""
    inner = "".join(
        f'<span class="{cls}" style="flex-grow:{value / total:.5f}" title="{esc(f"{name}: {words}")}"></span>'
        for name, value, cls, words in visible
    )
    mark = f'<i class="limit" style="left:{100 * limit / whole:.2f}%"></i>' if limit else ""
    return (
        f'<div class="bar" role="img" aria-label="{esc(alt)}">'
        f'<div class="fill" style="width:{100 * total / whole:.2f}%">{inner}</div>{mark}</div>'
    )


def key(segments: Iterable[tuple[str, str]]) -> str:
    """Returns swatches with names, from (name, class) pairs."""
    items = "".join(f'<li><i class="swatch {cls}"></i>{esc(name)}</li>' for name, cls in segments)
    return f'<ul class="key">{items}</ul>'


def axis_class(mesh: Mapping[str, int], name: str) -> str:
    """Returns the colour of a mesh axis, the same in every picture."""
    return f"axis{list(mesh).index(name) % 6}" if name in mesh else "other"


# --- the timeline -------------------------------------------------------------------------------------------------

# lane: (label, height of a row, rows at most, class)
LANES = {
    "matrix": ("matrix units", 24, 1, "matrix"),
    "vector": ("vector units", 24, 1, "vector"),
    "kernel": ("kernels", 24, 1, "kernel"),
    "wait": ("waits", 12, 1, "communication"),
    "links": ("links", 12, 5, "links"),
    "dma": ("DMA", 8, 4, "memory"),
}
GAP = 10  # between lanes
MANY = 600  # spans; with more, and without named windows, only those around the middle are shown initially
BINS = 240  # of the overview


def timeline(spans: Sequence[Mapping[str, Any]], windows: Sequence[Mapping[str, Any]] = ()) -> str:
    """Returns lanes of spans over time: a window of them, and an overview of all; page.js moves the window.

    Args:
      windows: {label, start, end} of intervals to look at; the first is shown initially.
    """
    spans = sorted((s for s in spans if s["lane"] in LANES), key=lambda s: s["start"])
    if not spans:
        return ""
    zero = spans[0]["start"]
    total = 1e6 * (max(s["end"] for s in spans) - zero) or 1.0
    named = [(w["label"], 1e6 * (w["start"] - zero), 1e6 * (w["end"] - zero)) for w in windows]
    named = [(label, max(a, 0.0), min(b, total)) for label, a, b in named if max(a, 0.0) < min(b, total)]
    named.append(("all", 0.0, total))
    label, start, end = named[0] if len(named) > 1 or len(spans) <= MANY else ("middle", *_middle(spans, zero))
    shapes, labels, top = [], [], 0
    for lane, (words, height, most, cls) in LANES.items():
        own = [s for s in spans if s["lane"] == lane]
        if not own:
            continue
        placed, used = rows(own, most)
        shapes += [
            f'<rect class="{cls}" x="{1e6 * (s["start"] - zero):.1f}" y="{top + row * height}" '
            f'width="{max(1e6 * (s["end"] - s["start"]), 0.1):.1f}" height="{height - 1}"><title>{_title(s)}</title></rect>'
            for s, row in zip(own, placed, strict=True)
        ]
        labels.append(f'<span style="top:{top}px;height:{used * height}px">{words}</span>')
        top += used * height + GAP
    bands = "".join(
        f"M{1e6 * (s['start'] - zero):.1f} 0V{top}H{1e6 * (s['end'] - zero):.1f}V0z" for s in spans if s["lane"] == "wait"
    )
    buttons = "".join(f'<button type="button" data-window="{a:.1f} {b:.1f}">{esc(name)}</button>' for name, a, b in named)
    alt = (
        f"Modelled timeline: {len(spans)} spans in {len(labels)} lanes over {seconds(total / 1e6)}; "
        f"shown is {label}, from {start / 1e3:.2f} to {end / 1e3:.2f} ms."
    )
    return (
        f'<div class="controls" hidden>{buttons}<span><button type="button" data-zoom="0.5" aria-label="zoom in">+</button>'
        '<button type="button" data-zoom="2" aria-label="zoom out">−</button>'
        '<button type="button" data-move="-0.5" aria-label="earlier">←</button>'
        '<button type="button" data-move="0.5" aria-label="later">→</button></span></div>'
        f'<div class="timeline" id="timeline" data-total="{total:.1f}" data-start="{start:.1f}" data-end="{end:.1f}" '
        f'data-height="{top}" data-label="{esc(label)}"><div class="lanes" style="height:{top}px">{"".join(labels)}</div>'
        f'<div class="plot" style="height:{top + 20}px"><div class="ticks">{ticks(start, end)}</div>'
        f'<svg class="spans" role="img" aria-label="{esc(alt)}" viewBox="{start:.1f} 0 {end - start:.1f} {top}" '
        f'preserveAspectRatio="none" style="height:{top}px"><path class="band" d="{bands}"/>{"".join(shapes)}</svg></div>'
        f'<div class="lanes small">overview</div>{_overview(spans, zero, total, start, end)}</div>'
        f'<p class="note" id="shown" aria-live="polite">Shown: {esc(label)}, {start / 1e3:.2f} to {end / 1e3:.2f} ms of '
        f'{total / 1e3:.2f} ms.</p><p class="note detail" id="detail"></p>'
    )


def _middle(spans: Sequence[Mapping[str, Any]], zero: float) -> tuple[float, float]:
    """Returns the interval of the middle MANY spans, where forward turns into backward, in microseconds."""
    chosen = spans[(len(spans) - MANY) // 2 :][:MANY]
    return 1e6 * (chosen[0]["start"] - zero), 1e6 * (max(s["end"] for s in chosen) - zero)


def _title(span: Mapping[str, Any]) -> str:
    kind = f" ({span['kind']})" if span.get("kind") else ""
    return esc(f"{span.get('label') or span['lane']}{kind}, {seconds(span['end'] - span['start'])}")


def rows(spans: Sequence[Mapping[str, Any]], most: int) -> tuple[list[int], int]:
    """Returns rows on which spans, sorted by start, do not overlap, and their number; past `most`, the row that is free first."""
    ends: list[float] = []
    placed = []
    for s in spans:
        row = next((i for i, end in enumerate(ends) if end <= s["start"] + 1e-9), len(ends))
        if row == most:
            row = ends.index(min(ends))
        if row == len(ends):
            ends.append(0.0)
        ends[row] = max(ends[row], s["end"])
        placed.append(row)
    return placed, len(ends)


def ticks(start: float, end: float) -> str:
    """Returns vertical lines at round times of a window in microseconds; page.js does the same after a move."""
    rough = (end - start) / 8
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    digits = max(0, 3 - math.floor(math.log10(step) + 1e-9))
    return "".join(
        f'<span style="left:{100 * (i * step - start) / (end - start):.2f}%">{i * step / 1e3:.{digits}f} ms</span>'
        for i in range(math.ceil(start / step), math.floor(end / step) + 1)
        if (i * step - start) / (end - start) < 0.9
    )


def _overview(spans: Sequence[Mapping[str, Any]], zero: float, total: float, start: float, end: float) -> str:
    """Returns a chart of the chip's load over the whole time, computing and waiting, with the window marked."""
    width = total / BINS
    busy = {"matrix": [0.0] * BINS, "communication": [0.0] * BINS}
    for s in spans:
        if s["lane"] not in ("links", "dma"):
            cells = busy["communication" if s["lane"] == "wait" else "matrix"]
            a, b = 1e6 * (s["start"] - zero), 1e6 * (s["end"] - zero)
            for i in range(int(a / width), min(int(b / width) + 1, BINS)):
                cells[i] += max(0.0, min(b, (i + 1) * width) - max(a, i * width)) / width
    base, paths = [0.0] * BINS, []
    for cls, cells in busy.items():
        upper = [min(1.0, low + share) for low, share in zip(base, cells, strict=True)]
        path = "".join(
            f"M{i * width:.1f} {32 - 32 * low:.1f}V{32 - 32 * high:.1f}H{(i + 1) * width:.1f}V{32 - 32 * low:.1f}z"
            for i, (low, high) in enumerate(zip(base, upper, strict=True))
            if high > low
        )
        paths.append(f'<path class="{cls}" d="{path}"/>')
        base = upper
    return (
        '<svg class="overview" id="overview" role="img" aria-label="Modelled time over the whole part: computing, waiting, '
        f'and the window shown" viewBox="0 0 {total:.1f} 32" preserveAspectRatio="none">{"".join(paths)}'
        f'<rect class="brush" x="{start:.1f}" y="0" width="{end - start:.1f}" height="32"/></svg>'
    )


# --- the torus ----------------------------------------------------------------------------------------------------

LETTERS = "xyz"
SIDE = 118.0  # length of the longest side
MOST = 16  # chips drawn along a side
SLANT = (math.sqrt(3) / 2, 0.5)

Point = tuple[float, float]


def parts_of(assigned: str | None, dims: Sequence[int]) -> list[tuple[str, int]]:
    """Parses an assignment: "y4z" on 8x16x16 is [("y", 4), ("z", 16)]."""
    sides = dict(zip(LETTERS, dims, strict=False))
    matches = re.findall(r"([xyz])(\d*)", assigned or "")
    return [(letter, int(n or sides[letter])) for letter, n in matches if letter in sides]


def torus(dims: Sequence[int], wrap: Sequence[bool], mesh: Mapping[str, int], assignment: Mapping[str, str]) -> str:
    """Returns a slice as an isometric box of chips, with the mesh axes along each side; a dashed line closes a ring."""
    shares = {name: parts_of(assignment.get(name), dims) for name in mesh}
    longest = SIDE if max(dims) > 4 else SIDE * 0.7
    side = [max(26.0, longest * d / max(dims)) if d > 1 or max(dims) == 1 else 16.0 for d in dims]
    x, y, z = [*side, 0.0][:3]
    shapes, points = _box(dims, (x, y, z), {name: [axis for axis, _ in parts] for name, parts in shares.items()}, mesh)
    left, bottom, right = _iso(0, y, 0), _iso(x, y, 0), _iso(x, 0, 0)
    edges = ((left, bottom, (-0.5, SLANT[0])), (right, bottom, (0.5, SLANT[0])), (left, _iso(0, y, z), (-1.0, 0.0)))
    descriptions = []
    for letter, n, ring, (a, b, out) in zip(LETTERS, dims, wrap, edges, strict=False):
        if n == 1:
            continue
        along = [(m, k) for m in mesh for axis, k in shares[m] if axis == letter]
        lines, corners = _axis(letter, n, ring, along, mesh, (a, b, out))
        shapes.append(lines)
        points += corners
        names = " and ".join(f"{m} {k} ways" for m, k in along) or "no mesh axis"
        descriptions.append(f"along {letter}, {n} chips{' in a ring' if ring else ''}: {names}")
    low_x, low_y = (min(point[i] for point in points) - 6 for i in (0, 1))
    wide, high = (max(point[i] for point in points) + 6 - low for i, low in ((0, low_x), (1, low_y)))
    alt = f"Torus of {' by '.join(map(str, dims))} chips. {'; '.join(descriptions) or 'One chip, no links'}."
    return (
        f'<svg class="torus" role="img" aria-label="{esc(alt)}" viewBox="{low_x:.0f} {low_y:.0f} {wide:.0f} {high:.0f}" '
        f'style="max-width:{1.3 * wide:.0f}px">{"".join(shapes)}</svg>'
    )


def _iso(x: float, y: float, z: float) -> Point:
    return (x - y) * SLANT[0], (x + y) * SLANT[1] - z


def _box(
    dims: Sequence[int], side: tuple[float, float, float], shares: Mapping[str, list[str]], mesh: Mapping[str, int]
) -> tuple[list[str], list[Point]]:
    """Returns (the visible faces with chips as dots, tinted where a mesh axis takes the whole plane; their corners)."""
    x, y, z = side
    faces = [
        ((0, 0, z), (x, 0, 0), (0, y, 0), "xy"),
        ((0, y, z), (x, 0, 0), (0, 0, -z), "xz"),
        ((x, 0, z), (0, y, 0), (0, 0, -z), "yz"),
    ]
    sides = dict(zip(LETTERS, [*dims, 1], strict=False))
    shapes, points = [], []
    for origin, u, v, letters in faces if z else faces[:1]:

        def at(i: float, j: float, o: Sequence[float] = origin, u: Sequence[float] = u, v: Sequence[float] = v) -> Point:
            return _iso(*(o[k] + i * u[k] + j * v[k] for k in range(3)))

        corners = [at(0, 0), at(1, 0), at(1, 1), at(0, 1)]
        points += corners
        outline = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
        owner = next((name for name, own in shares.items() if set(letters) <= set(own)), None)
        tint = f'<polygon class="tint {axis_class(mesh, owner)}" points="{outline}"/>' if owner else ""
        n, m = (min(sides[letter], MOST) for letter in letters)
        dots = [at((i + 0.5) / n, (j + 0.5) / m) for i in range(n) for j in range(m)]
        gap = min(math.dist(corners[0], corners[1]) / n, math.dist(corners[0], corners[3]) / m)
        path = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in dots)  # one node, however many chips
        shapes += [
            f'<polygon class="face" points="{outline}"/>{tint}',
            f'<path class="chips" stroke-width="{min(0.3 * gap, 8):.1f}" d="{path}"/>',
        ]
    return shapes, points


def _axis(
    letter: str, n: int, ring: bool, along: Sequence[tuple[str, int]], mesh: Mapping[str, int], edge: tuple[Point, Point, Point]
) -> tuple[str, list[Point]]:
    """Returns (lines beside a side of the box, one for each mesh axis, from first to last chip; the points that they reach)."""
    a, b, out = edge
    inset = 0.5 / n

    def at(t: float, away: float) -> Point:
        return a[0] + t * (b[0] - a[0]) + away * out[0], a[1] + t * (b[1] - a[1]) + away * out[1]

    def line(t: float, u: float, away: float, cls: str) -> str:
        (p, q), (r, s) = at(t, away), at(u, away)
        return f'<line class="{cls}" x1="{p:.1f}" y1="{q:.1f}" x2="{r:.1f}" y2="{s:.1f}"/>'

    shapes, away, groups = [], 11.0, 1
    for name, k in reversed(along or [("", n)]):  # nearest to the box: the axis that has neighbouring chips
        runs = n // k if groups == 1 else 1  # the first axis is cut into runs of k chips; the others stride over them
        cls = f"along {axis_class(mesh, name)}"
        shapes += [line((i * k * groups + 0.5) / n, ((i + 1) * k * groups - 0.5) / n, away, cls) for i in range(runs)]
        groups, away = groups * k, away + 7.0
    away -= 7.0
    if ring:
        (p, q), (r, s), (t, u), (v, w) = (at(inset, away), at(inset, away + 9), at(1 - inset, away + 9), at(1 - inset, away))
        shapes.append(f'<path class="ring" d="M{p:.1f} {q:.1f}L{r:.1f} {s:.1f}L{t:.1f} {u:.1f}L{v:.1f} {w:.1f}"/>')
        away += 9.0
    words = [f"{letter} · {n}", *(f"{name} {k}" for name, k in along)]
    right = out[0] > 0
    px, py = at(0.5, away + 9)
    py += 5.0 if out[1] else 5.0 - 8.0 * (len(words) - 1)
    anchor = "start" if right else "end"
    lines = "".join(
        f'<tspan x="{px:.1f}" dy="{16 if i else 0}"{"" if i else " class=strong"}>{esc(word)}</tspan>'
        for i, word in enumerate(words)
    )
    shapes.append(f'<text x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}">{lines}</text>')
    reach = max(map(len, words)) * 8.8  # for a wide font
    corners = [at(0, away), at(1, away), (px + reach if right else px - reach, py + 16 * (len(words) - 1) + 4), (px, py - 12)]
    return "".join(shapes), corners
