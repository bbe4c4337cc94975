"""How the axes of a device mesh lie on a pod's torus of chips. Plain data, no JAX.

An assignment gives each mesh axis the torus axes that it lies along, major first: y of 16 chips and z of 16 for one, x of 8 for
the other, in text "yz" and "x". A torus axis may be shared: of 16 chips "y4" are 4; the mesh axis that comes later in the mesh
has the neighbouring chips.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.sharding.layout import LayoutError

LETTERS = "xyz"

Mesh = Sequence[tuple[str, int]]
Assignment = dict[str, tuple[tuple[str, int], ...]]


def assignment(mesh: Mesh, dims: Sequence[int], torus: Sequence[tuple[str, str]] = ()) -> Assignment:
    """Where each mesh axis lies on a torus of these dimensions.

    Args:
      torus: (mesh axis, text) pairs, as a layout has them; without any the axes that come last, which talk most, get whole
        torus axes first, and as few as possible.

    Raises:
      LayoutError: a mesh that does not cover the torus exactly, or axes that do not fit.
    """
    if math.prod(size for _, size in mesh) != math.prod(dims):
        raise LayoutError(
            f"mesh {dict(mesh)} has {math.prod(size for _, size in mesh)} devices, "
            f"but a torus of {'x'.join(map(str, dims))} has {math.prod(dims)} chips"
        )
    if not torus:
        return assignments(mesh, dims)[0]
    sides = dict(zip(LETTERS, dims, strict=False))
    found: Assignment = {name: () for name, _ in mesh}
    for name, text in torus:
        parts = re.findall(r"([xyz])(\d*)", text)
        if name not in found or "".join(a + n for a, n in parts) != text or any(a not in sides for a, _ in parts):
            raise LayoutError(
                f"torus {name}={text!r}: write a mesh axis of {dict(mesh)} and letters of {sides}, as {mesh[0][0]}=y4z"
            )
        found[name] = tuple((axis, int(n) if n else sides[axis]) for axis, n in parts)
    whole = {axis: math.prod(n for parts in found.values() for a, n in parts if a == axis) for axis in sides}
    for name, size in mesh:
        if math.prod(n for _, n in found[name]) != size:
            raise LayoutError(
                f"torus {name}={as_text(found[name], dims)!r} has {math.prod(n for _, n in found[name])} chips, not {size}"
            )
    if whole != sides:
        raise LayoutError(f"torus {dict(torus)} uses {whole} of {sides}")
    return found


def sides(devices: Sequence[Any]) -> tuple[int, ...] | None:
    """Of the torus of one slice of a pod with a device for each chip; None for other devices."""
    places = {tuple(getattr(device, "coords", ())) for device in devices}
    found = tuple(max(along) + 1 for along in zip(*places, strict=True))
    return found if devices[0].platform == "tpu" and len(places) == len(devices) == math.prod(found) else None


def assignments(mesh: Mesh, dims: Sequence[int]) -> list[Assignment]:
    """Every way to lay a mesh along torus axes, the one with fewest shared torus axes first. Raises LayoutError if none."""
    sides = list(zip(LETTERS, dims, strict=False))

    def ways(axes: list[tuple[str, int]], left: tuple[int, ...]) -> list[Assignment]:
        if not axes:
            return [{}]
        *others, (name, size) = axes
        found = []
        for factors in itertools.product(*([f for f in range(1, n + 1) if n % f == 0] for n in left)):
            if math.prod(factors) == size:
                own = tuple((axis, f) for (axis, _), f in zip(sides, factors, strict=True) if f > 1)
                rest = tuple(n // f for n, f in zip(left, factors, strict=True))
                found += [inner | {name: own} for inner in ways(others, rest)]
        return found

    def cost(found: Assignment) -> tuple[int, ...]:
        parts = [part for name, _ in mesh for part in found[name]]
        return (len(parts) - len({axis for axis, _ in parts}), *(len(found[name]) for name, _ in reversed(mesh)))

    found = sorted(ways(list(mesh), tuple(dims)), key=cost)
    if not found:
        raise LayoutError(f"mesh {dict(mesh)} does not lie along the axes of a torus of {'x'.join(map(str, dims))}")
    return found


def as_text(parts: Sequence[tuple[str, int]], dims: Sequence[int]) -> str:
    """("y", 4), ("z", 16) on a torus of 8x16x16 -> "y4z"."""
    sides = dict(zip(LETTERS, dims, strict=False))
    return "".join(axis if n == sides[axis] else f"{axis}{n}" for axis, n in parts)


def positions(mesh: Mesh, dims: Sequence[int], found: Mapping[str, Sequence[tuple[str, int]]]) -> np.ndarray:
    """Indices into the torus's chips, in row-major order of their coordinates, as an array of the mesh's shape."""
    parts = [(name, axis, n) for name, _ in mesh for axis, n in found[name]]
    chips = np.arange(math.prod(dims))
    by_torus = [part for letter in LETTERS for part in parts if part[1] == letter]  # of one torus axis, mesh order
    chips = chips.reshape([n for *_, n in by_torus])
    return chips.transpose([by_torus.index(part) for part in parts]).reshape([size for _, size in mesh])
