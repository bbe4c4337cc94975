"""What a model returns to the trainer: sums that add up, whatever a batch is split into."""

import dataclasses

import jax
import jax.numpy as jnp

Totals = dict[str, jax.Array]  # counts of a whole batch, by name, that its losses are divided by


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ratio:
    """A metric as a sum over a count, so that those of a batch's parts add up to the batch's own: both may be vectors."""

    sum: jax.Array
    over: jax.Array

    @property
    def value(self) -> jax.Array:
        return self.sum / jnp.maximum(self.over, 1).astype(self.sum.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Loss:
    """The loss of a batch, or of some of its rows.

    Every term is a sum divided by a count of the whole batch (`Model.totals`), so the parts' losses, gradients and metrics
    are added up, not averaged: microbatches of unequal counts count as they should, and a batch may be split in any way.

    Attributes:
      value: the objective, a scalar of at least float32.
      extra: the auxiliary losses in it.
      metrics: what else there is to tell, by name.
    """

    value: jax.Array
    extra: jax.Array
    metrics: dict[str, Ratio]

    def __add__(self, other: "Loss") -> "Loss":
        metrics = dict(self.metrics)
        for name, ratio in other.metrics.items():
            metrics[name] = jax.tree.map(jnp.add, metrics[name], ratio) if name in metrics else ratio
        return Loss(self.value + other.value, self.extra + other.extra, metrics)


def zero_loss(dtype: jnp.dtype) -> Loss:
    """Returns the loss of a part of a model that adds none."""
    zero = jnp.zeros((), jnp.promote_types(dtype, jnp.float32))
    return Loss(zero, zero, {})


def per(total: jax.Array, count: jax.Array) -> jax.Array:
    """Returns a sum over the rows at hand divided by a count of the whole batch, or by 1 where that is 0."""
    return total / jnp.maximum(count, 1).astype(total.dtype)
