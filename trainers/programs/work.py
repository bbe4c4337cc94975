"""How much work a batch is, in the units that its model counts: tokens, images, frames, pixels."""

import jax
import jax.numpy as jnp

from data.reading.batches import batch_shapes
from trainers.plan import Plan


def units(p: Plan) -> tuple[str, ...]:
    """Returns the model's units of work, in its order: the first is the one that throughput is told in."""
    return tuple(per_step(p))


def per_step(p: Plan) -> dict[str, int]:
    """Returns how much work a batch of full rows is, by unit, as the model counts it for its throughput."""
    shapes = batch_shapes(p.experiment.data)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):  # not traced, which would sort the names
        row = {name: jnp.ones((1, *x.shape[1:]), x.dtype) for name, x in shapes.items()}
        return {unit: int(n) * p.experiment.data.batch_size for unit, n in p.model.units(row).items()}
