"""The same layout on fewer devices, for a run that goes on when machines do not come back. Plain data, no JAX.

A mesh axis shrinks if rows are cut over it, and beside rows only weights, which are gathered where they are used: copies of the
model, or shards of it in FSDP. Axes of tensor, pipeline and expert parallelism, and those that cut positions or pictures, stay:
with fewer of them a device would have to hold more of a layer than the layout was chosen for.

A size becomes one of its own divisors. Whatever the layout divided (rows, routing groups, microbatches, weights) is then
divided still, so that the smaller layout fits wherever the given one does. Optimizer steps are the same, to the rounding of
sums: the global batch and its order depend on no mesh.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from models.sharding.layout import AXES, ROWS, Layout, LayoutError

# Weights' logical names but for "expert" and "layers": they are gathered where they are used, if no activation is cut as well.
_GATHERED = frozenset(itertools.takewhile(lambda name: name != "batch", AXES)) - {"expert", "layers"}


def shrinking_axes(layout: Layout) -> tuple[str, ...]:
    """Returns the mesh axes that may become smaller, in the mesh's order."""
    names: dict[str, set[str]] = {axis: set() for axis, _ in layout.mesh}
    for _, table in (("", layout.rules), *layout.components):
        for name, axes in table:
            for axis in axes:
                names[axis].add(name)
    return tuple(axis for axis, cut in names.items() if cut & set(ROWS) and cut <= {*ROWS, *_GATHERED})


def shrunk(layout: Layout, devices: int) -> Layout:
    """Returns the layout on so many devices, at most its own; the axes that vary slowest shrink first, and slices before all.

    Raises:
      LayoutError: no smaller mesh has so many devices; the message names the numbers of devices that do.
    """
    meshes = [mesh for mesh in _meshes(layout) if math.prod(size for _, size in mesh) == devices]
    if not meshes:
        mesh = " x ".join(f"{axis} {size}" for axis, size in layout.mesh)
        axes = " and ".join(shrinking_axes(layout)) or "no axis"
        raise LayoutError(
            f"layout {layout.name!r} of {mesh} cannot be cut over {devices} devices: of its axes {axes} may shrink, to a divisor "
            f"of its size, which makes {', '.join(map(str, numbers_of_devices(layout)))} devices"
        )
    mesh = max(meshes, key=lambda mesh: [size for _, size in reversed(mesh)])
    return layout if mesh == layout.mesh else dataclasses.replace(layout, mesh=mesh)


def numbers_of_devices(layout: Layout) -> list[int]:
    """Returns the numbers of devices for which `shrunk` has a mesh, ascending; the last is the layout's own."""
    return sorted({math.prod(size for _, size in mesh) for mesh in _meshes(layout)})


def _meshes(layout: Layout) -> Iterator[tuple[tuple[str, int], ...]]:
    may = shrinking_axes(layout)
    choices: list[Sequence[int]] = [
        [n for n in range(1, size + 1) if size % n == 0] if axis in may else [size] for axis, size in layout.mesh
    ]
    for sizes in itertools.product(*choices):
        yield tuple((axis, size) for (axis, _), size in zip(layout.mesh, sizes, strict=True))
