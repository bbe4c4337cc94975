"""Two convolutions on grids. B grids, H rows, W columns, C channels."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts.losses import Loss, Ratio, Totals, per
from models.protocol import Batch, Context, HasOutputs
from models.sharding.component import Component
from models.sharding.params import normal, param, zeros
from tests.toy.conv.config import ToyConvConfig


class Conv(nnx.Module):
    """A 3 x 3 convolution that keeps the grid's size."""

    def __init__(self, inputs: int, outputs: int, key: jax.Array, scope: Component):
        names = ("filter_height", "filter_width", "in_channels", "channels")
        self.scope = scope
        self.filter = param(key, (3, 3, inputs, outputs), names, normal((9 * inputs) ** -0.5), scope)
        self.bias = param(key, (outputs,), ("channels",), zeros, scope)

    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        y_BHWC = jax.lax.conv_general_dilated(
            x_BHWC, self.filter[...].astype(x_BHWC.dtype), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return self.scope.shard(y_BHWC + self.bias[...].astype(y_BHWC.dtype), "batch", "height", "width", "act_channels")


class ToyConv(nnx.Module, HasOutputs):
    """Predicts the next grid; the loss is the squared error of pixels that were seen."""

    coupled = ()

    def __init__(self, c: ToyConvConfig, key: jax.Array, scope: Component):
        k1, k2 = jax.random.split(key)
        self.c, self.scope = c, scope
        self.first = Conv(c.channels, c.hidden, k1, scope / "first")
        self.second = Conv(c.hidden, 1, k2, scope / "second")

    def __call__(self, batch: Batch) -> jax.Array:
        x_BHWC = batch["grid"].astype(self.scope.dtype)
        return self.second(jax.nn.relu(self.first(x_BHWC)))

    def totals(self, batch: Batch) -> Totals:
        return {"pixels": jnp.sum(batch["seen"])}

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        seen_BHW1 = batch["seen"]
        return {"grids": jnp.sum(jnp.any(seen_BHW1 > 0, axis=(1, 2, 3))), "pixels": jnp.sum(seen_BHW1)}

    def loss(self, batch: Batch, context: Context, totals: Totals | None = None) -> Loss:
        totals = self.totals(batch) if totals is None else totals
        error_BHW1 = (self(batch) - batch["next"]) ** 2 * batch["seen"]
        error_BHW1 = error_BHW1.astype(jnp.promote_types(error_BHW1.dtype, jnp.float32))
        # A schedule inside a loss: the error counts fully from the third step on.
        ramp = jnp.minimum(1.0, (context.step + 1) / 3).astype(error_BHW1.dtype) if context.training else 1.0
        total, count = jnp.sum(error_BHW1), jnp.sum(batch["seen"])
        by_column_W = jnp.sum(error_BHW1, axis=(0, 1, 3))
        value = ramp * per(total, totals["pixels"])
        metrics = {"squared_error": Ratio(total, count), "by_column": Ratio(by_column_W, count)}
        return Loss(value, jnp.zeros_like(value), metrics)
