"""What a model returns to the trainer."""

import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Loss:
    """The loss of a batch, in the parts that add up over microbatches.

    The objective is `sum / weight + extra`, `weight` being the model's `loss_weight(batch)`. Gradient accumulation divides
    each microbatch's `sum` by the weight of the whole batch and averages `extra`, so that microbatches of unequal weight
    count as they should.

    Attributes:
      sum: summed over tokens (or examples), a scalar of at least float32.
      extra: auxiliary losses, already weighted; a mean, not a sum.
      sums: metrics to divide by `weight`.
      means: metrics to average as they are; scalars or small vectors.
    """

    sum: jax.Array
    extra: jax.Array
    sums: dict[str, jax.Array]
    means: dict[str, jax.Array]
