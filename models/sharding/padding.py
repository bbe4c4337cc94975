"""Dimensions that their mesh axes do not divide: padded between programs, and cut in unequal parts inside of them.

XLA cuts the arrays inside a program in unequal parts: it pads what each device has, and keeps the padding out of sums, maxima and
products (GSPMD, arXiv 2105.04663, section 4.1). JAX wants those that go in or come out to be cut in equal ones. So what a step
hands to the next is filled up with zeros (`padded_shape`). The step cuts that off first, which moves nothing, and computes with
arrays of the model's own sizes; models, losses and optimizers therefore know nothing of padding. Whatever else goes in or comes
out has its own size, too, and is cut elsewhere (`even`).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

Shape = tuple[int, ...]


def _cuts(sharding: NamedSharding, rank: int) -> list[tuple[str, ...]]:
    """Returns the mesh axes that cut each dimension."""
    entries = [(entry,) if isinstance(entry, str) else entry or () for entry in sharding.spec]
    return entries + [()] * (rank - len(entries))


def _shards(sharding: NamedSharding, axes: tuple[str, ...]) -> int:
    return math.prod(sharding.mesh.shape[axis] for axis in axes)


def padded_shape(shape: Shape, sharding: NamedSharding) -> Shape:
    """Returns a shape with each dimension rounded up to a multiple of its shards."""
    counts = (_shards(sharding, axes) for axes in _cuts(sharding, len(shape)))
    return tuple(-(-size // n) * n for size, n in zip(shape, counts, strict=True))


def resized(x: Any, shape: Shape) -> jax.Array:
    """Returns an array with each dimension cut off, or filled up with zeros, to this size."""
    x = x[tuple(slice(size) for size in shape)]
    return jnp.pad(x, [(0, size - have) for size, have in zip(shape, x.shape, strict=True)])


def even(shape: Shape, sharding: NamedSharding) -> NamedSharding:
    """Returns a sharding in equal parts on the same devices.

    Each mesh axis is taken apart into axes of prime sizes. Those that do not divide their own dimension, behind the others, cut
    the last dimension that they do divide, or none.
    """
    if padded_shape(shape, sharding) == shape:
        return sharding
    mesh, parts = _in_primes(sharding.mesh)
    cuts: list[tuple[str, ...]] = [() for _ in shape]
    moved = []

    def divides(part: str, i: int) -> bool:
        return shape[i] % math.prod(mesh.shape[axis] for axis in (*cuts[i], part)) == 0

    for i, axes in enumerate(_cuts(sharding, len(shape))):
        for part in (part for axis in axes for part in parts[axis]):
            if divides(part, i):
                cuts[i] += (part,)
            else:
                moved.append(part)
    for part in moved:
        if (i := next((i for i in reversed(range(len(shape))) if divides(part, i)), None)) is not None:
            cuts[i] += (part,)
    return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in cuts)), memory_kind=sharding.memory_kind)


@functools.cache
def _in_primes(mesh: Mesh) -> tuple[Mesh, dict[str, list[str]]]:
    """Returns (a mesh of the same devices with axes of prime sizes, their names by those of the axes that they are parts of)."""
    sizes = {axis: _primes(size) for axis, size in mesh.shape.items()}
    parts = {axis: [f"{axis}.{i}" for i in range(len(primes))] for axis, primes in sizes.items()}
    names = [part for axis in parts for part in parts[axis]]
    devices = mesh.devices.reshape([prime for primes in sizes.values() for prime in primes])
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names)), parts


def _primes(n: int) -> tuple[int, ...]:
    """Returns the prime factors of a number, in order."""
    first = next((p for p in range(2, n + 1) if n % p == 0), None)
    return (first, *_primes(n // first)) if first else ()
