"""Dimensions that their mesh axes do not divide: padded between programs, and cut in unequal parts inside of them.

XLA cuts the arrays inside a program in unequal parts: it pads what each device has, and keeps the padding out of sums, maxima and
products (GSPMD, arXiv 2105.04663, section 4.1). JAX wants those that go in or come out to be cut in equal ones. So what a step
hands to the next is filled up with zeros (`padded_shape`). The step cuts that off first, which moves nothing, and computes with
arrays of the model's own sizes; models, losses and optimizers therefore know nothing of padding. Whatever else goes in or comes
out has its own size, too, and is cut elsewhere (`even`).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

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
    """Returns a sharding in equal parts: mesh axes that do not divide their dimension cut the last one that they do divide beside
    its own axes, or none."""
    cuts = _cuts(sharding, len(shape))
    if padded_shape(shape, sharding) == shape:
        return sharding
    for i, axes in enumerate(cuts):
        if shape[i] % _shards(sharding, axes):
            cuts[i] = ()
            fits = (j for j in reversed(range(len(shape))) if j != i and shape[j] % _shards(sharding, cuts[j] + axes) == 0)
            if (j := next(fits, None)) is not None:
                cuts[j] += axes
    return NamedSharding(sharding.mesh, PartitionSpec(*(axes or None for axes in cuts)), memory_kind=sharding.memory_kind)
