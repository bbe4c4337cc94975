"""One matrix from pixels to classes. B pictures, H rows, W columns, C channels, N classes, 2 classes of a mixed picture."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts.losses import Loss, Ratio, Totals, per
from models.protocol import Batch, Classifies, Context
from models.sharding.component import Component
from models.sharding.params import param, zeros
from tests.toy.linear.config import ToyLinearConfig


class ToyLinear(nnx.Module, Classifies):
    """Names the class of a picture; the loss is the cross-entropy with both classes of a mixed one, in their shares."""

    coupled = ()

    def __init__(self, c: ToyLinearConfig, key: jax.Array, scope: Component):
        self.c, self.scope = c, scope
        names = ("filter_height", "filter_width", "in_channels", "labels")
        self.weight = param(key, (*c.picture, c.labels), names, zeros, scope)

    @property
    def classes(self) -> int:
        return self.c.labels

    def __call__(self, batch: Batch) -> jax.Array:
        x_BHWC = batch["images"].astype(self.scope.dtype)
        return jnp.einsum("bhwc,hwcn->bn", x_BHWC, self.weight[...].astype(x_BHWC.dtype))

    def totals(self, batch: Batch) -> Totals:
        return {"images": jnp.sum(batch["label_weights"])}

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        return {"images": jnp.sum(batch["label_weights"])}

    def loss(self, batch: Batch, context: Context, totals: Totals | None = None) -> Loss:
        totals = self.totals(batch) if totals is None else totals
        log_BN = jax.nn.log_softmax(self(batch).astype(jnp.promote_types(self.scope.dtype, jnp.float32)))
        surprise_B2 = -jnp.take_along_axis(log_BN, batch["labels"], axis=-1)
        total, count = jnp.sum(surprise_B2 * batch["label_weights"]), jnp.sum(batch["label_weights"])
        value = per(total, totals["images"])
        return Loss(value, jnp.zeros_like(value), {"cross_entropy": Ratio(total, count)})
