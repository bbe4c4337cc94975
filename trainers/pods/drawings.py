"""The torus of a pod plan as inline SVG: a box of chips, with the mesh axes beside it.

All text from a plan is escaped here; colours are classes of page.css.
"""

import html
import math
import re
from collections.abc import Mapping, Sequence

LETTERS = "xyz"
SIDE = 118.0  # length of the longest side
MOST = 16  # chips drawn along a side
SLANT = (math.sqrt(3) / 2, 0.5)

Point = tuple[float, float]


def axis_class(mesh: Mapping[str, int], name: str) -> str:
    """Returns the colour of a mesh axis, the same in every picture."""
    return f"axis{list(mesh).index(name) % 6}" if name in mesh else "other"


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
        f'<svg class="torus" role="img" aria-label="{html.escape(alt)}" viewBox="{low_x:.0f} {low_y:.0f} {wide:.0f} {high:.0f}" '
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
        f'<tspan x="{px:.1f}" dy="{16 if i else 0}"{"" if i else " class=strong"}>{html.escape(word)}</tspan>'
        for i, word in enumerate(words)
    )
    shapes.append(f'<text x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}">{lines}</text>')
    reach = max(map(len, words)) * 8.8  # for a wide font
    corners = [at(0, away), at(1, away), (px + reach if right else px - reach, py + 16 * (len(words) - 1) + 4), (px, py - 12)]
    return "".join(shapes), corners
