"""Contexts under which tests compute a model's loss."""

import jax
import jax.numpy as jnp

from models.protocol import Context

EVALUATION = Context.evaluation()


def training(key: jax.Array | int = 0, step: int = 0) -> Context:
    """Returns the context of a training step, from a key or a seed."""
    return Context(jax.random.key(key) if isinstance(key, int) else key, jnp.asarray(step, jnp.int32), training=True)
