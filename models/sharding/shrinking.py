"""The same layout on fewer devices, for a run that goes on when machines do not come back. Plain data, no JAX.

A mesh axis shrinks if rows are cut over it, and beside rows only weights, which are gathered where they are used: copies of the
model, or shards of it in FSDP. Axes of tensor, pipeline and expert parallelism, and those that cut positions or pictures, stay:
with fewer of them a device would have to hold more of a layer than the layout was chosen for.

A size becomes one of its own divisors where that makes the number of devices. Whatever the layout divided (rows, routing groups,
microbatches, weights) is then divided still, so that the smaller layout fits wherever the given one does. Otherwise it becomes
any smaller size that divides the rows, as 3 of 4, and weights that it does not divide are padded: such a layout may not fit.
Optimizer steps are the same, to the rounding of sums: the global batch and its order depend on no mesh.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from models.sharding.layout import AXES, PADDABLE, ROWS, Layout

# Weights' logical names but for "expert" and "layers": they are gathered where they are used, if no activation is cut as well.
_GATHERED = frozenset(itertools.takewhile(lambda name: name != "batch", AXES)) - {"expert", "layers"}


def shrinking_axes(layout: Layout) -> tuple[str, ...]:
    """Returns the mesh axes that may become smaller, in the mesh's order."""
    names: dict[str, set[str]] = {axis: set() for axis, _ in layout.mesh}
    for table in (layout.rules, *(table for _, table in layout.components)):
        for name, axes in table:
            for axis in axes:
                names[axis].add(name)
    return tuple(axis for axis, cut in names.items() if cut & set(ROWS) and cut <= {*ROWS, *_GATHERED})


def on_fewer_devices(layout: Layout, rows: int) -> dict[int, Layout]:
    """Returns the layout by the number of devices that it can be cut over, ascending; the last is the given one.

    Of several meshes of a number one of divisors is taken, if there is one, and then that whose axes that vary slowest are the
    smallest: slices shrink before all.

    Args:
      rows: of a batch, or of a microbatch.
    """
    largest = dict(layout.mesh)
    best: dict[int, tuple[bool, list[int]]] = {}
    for mesh in _meshes(layout, rows):
        key = _divides(mesh, largest), [*reversed(mesh.values())]
        devices = math.prod(mesh.values())
        best[devices] = max(key, best.get(devices, key))
    return {devices: _resized(layout, sizes[::-1]) for devices, (_, sizes) in sorted(best.items())}


def surely_fits(small: Layout, layout: Layout) -> bool:
    """Returns whether a layout of `on_fewer_devices` fits wherever the given one does: all its sizes are divisors."""
    return _divides(dict(small.mesh), dict(layout.mesh))


def _divides(sizes: dict[str, int], largest: dict[str, int]) -> bool:
    return all(largest[axis] % size == 0 for axis, size in sizes.items())


def _meshes(layout: Layout, rows: int) -> Iterator[dict[str, int]]:
    """Yields meshes of at most the layout's sizes: of divisors, and others that divide the rows."""
    may, largest = shrinking_axes(layout), dict(layout.mesh)
    cuts = {axes for table in (layout.rules, *(t for _, t in layout.components)) for name, axes in table if name == "batch"}
    choices = [range(1, size + 1) if axis in may else (size,) for axis, size in layout.mesh]
    for sizes in itertools.product(*choices):
        mesh = dict(zip(largest, sizes, strict=True))
        if _divides(mesh, largest) or all(rows % math.prod(mesh[axis] for axis in axes) == 0 for axes in cuts):
            yield mesh


def _resized(layout: Layout, sizes: list[int]) -> Layout:
    """Returns the layout with these sizes of its mesh; weights that an axis without a divisor cuts are padded."""
    mesh = tuple((axis, size) for (axis, _), size in zip(layout.mesh, sizes, strict=True))
    if mesh == layout.mesh:
        return layout
    uneven = {axis for axis, size in mesh if dict(layout.mesh)[axis] % size}
    tables = (layout.rules, layout.optimizer, *(table for _, table in layout.components))
    padded = {name for table in tables for name, axes in table if name in PADDABLE and uneven & {*axes}}
    return dataclasses.replace(layout, mesh=mesh, pad=tuple(sorted({*layout.pad, *padded})) if padded else layout.pad)
