"""Assigns the axes of a device mesh to the axes of a pod's torus of chips. Plain data, no JAX.

An assignment gives each mesh axis the torus axes that it lies along, major first: y of 16 chips and z of 16 for one, x of 8 for
the other, in text "yz" and "x". A torus axis may be shared: "y4" is 4 of its 16 chips; the mesh axis that comes later in the
mesh has the neighbouring chips. Where a chip has several devices they are one more axis, "c", after the three of the torus. A
mesh here is that of one slice: between slices is no torus.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.sharding.layout import LayoutError

ON_CHIP = "c"
LETTERS = f"xyz{ON_CHIP}"

Mesh = Sequence[tuple[str, int]]
Assignment = dict[str, tuple[tuple[str, int], ...]]


def assignment(mesh: Mesh, dims: Sequence[int], torus: Sequence[tuple[str, str]] = ()) -> Assignment:
    """Returns the assignment of a mesh to a torus of these dimensions.

    Args:
      dims: of the torus, and the devices of a chip if these are several.
      torus: (mesh axis, text) pairs, as a layout has them; without any, the last mesh axes, which communicate most, get whole
        torus axes first, and as few as possible.

    Raises:
      LayoutError: a mesh that does not cover the torus exactly, or axes that do not fit.
    """
    if math.prod(size for _, size in mesh) != math.prod(dims):
        raise LayoutError(
            f"mesh {dict(mesh)} has {math.prod(size for _, size in mesh)} devices, "
            f"but a torus of {'x'.join(map(str, dims))} has {math.prod(dims)}"
        )
    if not torus:
        return assignments(mesh, dims)[0]
    sides = dict(zip(LETTERS, dims, strict=False))
    assigned = _read(mesh, sides, torus)
    whole = {axis: math.prod(n for parts in assigned.values() for a, n in parts if a == axis) for axis in sides}
    for name, size in mesh:
        if (places := math.prod(n for _, n in assigned[name])) != size:
            raise LayoutError(f"torus {name}={as_text(assigned[name], dims)!r} has {places} places, not {size}")
    if whole != sides:
        raise LayoutError(f"torus {dict(torus)} uses {whole} of {sides}")
    return assigned


def _read(mesh: Mesh, sides: Mapping[str, int], torus: Sequence[tuple[str, str]]) -> Assignment:
    """Returns the assignment that a layout's texts name; raises LayoutError for a text that names no axes."""
    assigned: Assignment = {name: () for name, _ in mesh}
    for name, text in torus:
        parts = re.findall(rf"([{LETTERS}])(\d*)", text)
        if name not in assigned or "".join(a + n for a, n in parts) != text or any(a not in sides for a, _ in parts):
            raise LayoutError(
                f"torus {name}={text!r}: write a mesh axis of {dict(mesh)} and letters of {sides}, as {mesh[0][0]}=y4z"
            )
        assigned[name] = tuple((axis, int(n) if n else sides[axis]) for axis, n in parts)
    return assigned


def place(device: Any) -> tuple[int, ...]:
    """Returns the coordinates of a device's chip, and its number on the chip."""
    return (*getattr(device, "coords", ()), getattr(device, "core_on_chip", 0))


def sides(devices: Sequence[Any]) -> tuple[int, ...] | None:
    """Returns the dimensions of the torus, and the devices of a chip if these are several, where the devices are one slice of a
    pod; else None."""
    places = set(map(place, devices))
    *dims, on_chip = (max(along) + 1 for along in zip(*places, strict=True))
    if devices[0].platform != "tpu" or not len(places) == len(devices) == math.prod(dims) * on_chip:
        return None
    return (*dims, on_chip) if on_chip > 1 else tuple(dims)


def assignments(mesh: Mesh, dims: Sequence[int]) -> list[Assignment]:
    """Returns all assignments, the one with fewest shared torus axes first; raises LayoutError if there is none."""
    sides = list(zip(LETTERS, dims, strict=False))

    def split_over(axes: list[tuple[str, int]], sizes: tuple[int, ...]) -> list[Assignment]:
        if not axes:
            return [{}]
        *outer, (name, size) = axes
        partial = []
        for factors in itertools.product(*([f for f in range(1, n + 1) if n % f == 0] for n in sizes)):
            if math.prod(factors) == size:
                own = tuple((axis, f) for (axis, _), f in zip(sides, factors, strict=True) if f > 1)
                remaining = tuple(n // f for n, f in zip(sizes, factors, strict=True))
                partial += [inner | {name: own} for inner in split_over(outer, remaining)]
        return partial

    def cost(candidate: Assignment) -> tuple[int, ...]:
        parts = [part for name, _ in mesh for part in candidate[name]]
        return (len(parts) - len({axis for axis, _ in parts}), *(len(candidate[name]) for name, _ in reversed(mesh)))

    ordered = sorted(split_over(list(mesh), tuple(dims)), key=cost)
    if not ordered:
        raise LayoutError(f"mesh {dict(mesh)} does not lie along the axes of a torus of {'x'.join(map(str, dims))}")
    return ordered


def as_text(parts: Sequence[tuple[str, int]], dims: Sequence[int]) -> str:
    """Returns an assignment as text: ("y", 4), ("z", 16) on a torus of 8x16x16 is "y4z"."""
    sides = dict(zip(LETTERS, dims, strict=False))
    return "".join(axis if n == sides[axis] else f"{axis}{n}" for axis, n in parts)


def positions(mesh: Mesh, dims: Sequence[int], assigned: Mapping[str, Sequence[tuple[str, int]]]) -> np.ndarray:
    """Returns indices into the torus's places, in row-major order of their coordinates, as an array of the mesh's shape."""
    parts = [(name, axis, n) for name, _ in mesh for axis, n in assigned[name]]
    places = np.arange(math.prod(dims))
    by_torus = [part for letter in LETTERS for part in parts if part[1] == letter]  # within a torus axis in mesh order
    places = places.reshape([n for *_, n in by_torus])
    return places.transpose([by_torus.index(part) for part in parts]).reshape([size for _, size in mesh])
