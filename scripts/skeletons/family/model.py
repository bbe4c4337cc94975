"""A residual perceptron that adds neighbouring numbers. B rows, L numbers of a row, M model, H hidden, V vocabulary."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts.layers import Embedding
from models.parts.losses import Loss, Totals, token_loss
from models.protocol import Batch, Context
from models.sharding.component import Component
from models.sharding.params import normal, param, scan, stack_modules

from .config import SkeletonConfig


class Layer(nnx.Module):
    """Computes x + relu(x wi) wo."""

    def __init__(self, c: SkeletonConfig, key: jax.Array, scope: Component):
        k1, k2 = jax.random.split(key)
        self.scope = scope
        self.wi = param(k1, (c.model_dim, c.hidden_dim), ("embed", "mlp"), normal(c.model_dim**-0.5), scope)
        self.wo = param(k2, (c.hidden_dim, c.model_dim), ("mlp", "embed"), normal(c.hidden_dim**-0.5), scope)

    def __call__(self, x_BLM: jax.Array) -> jax.Array:
        h_BLH = self.scope.shard(jax.nn.relu(x_BLM @ self.wi[...].astype(x_BLM.dtype)), "batch", "length", "act_mlp")
        return x_BLM + self.scope.shard(h_BLH @ self.wo[...].astype(x_BLM.dtype), "batch", "res_length", "act_embed")


class Skeleton(nnx.Module):
    """Names the sum of each number and its left neighbour, modulo the vocabulary's size."""

    coupled = ()  # no component compares the rows of a batch with each other

    def __init__(self, c: SkeletonConfig, key: jax.Array, scope: Component):
        k1, k2, k3 = jax.random.split(key, 3)
        self.c, self.scope = c, scope
        self.embedding = Embedding(c.vocab, c.model_dim, k1, scope / "embedding")
        self.layers = stack_modules(lambda key: Layer(c, key, scope / "layers"), k2, c.layers)
        self.classes = param(k3, (c.model_dim, c.vocab), ("embed", "vocab"), normal(c.model_dim**-0.5), scope / "classes")

    def totals(self, batch: Batch) -> Totals:
        """Returns how many numbers the loss is a mean over."""
        return {"numbers": jnp.sum(batch["segments"] > 0)}

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns how much work the batch is; throughput is reported in numbers per second."""
        return {"numbers": jnp.sum(batch["segments"] > 0)}

    def loss(self, batch: Batch, context: Context, totals: Totals | None = None) -> Loss:
        """Returns the cross-entropy of the sums, divided by the totals of the whole batch."""
        del context  # nothing is random, and the loss does not depend on the step
        totals = self.totals(batch) if totals is None else totals
        right_BL = batch["tokens"]
        left_BL = jnp.roll(right_BL, 1, axis=1)
        x_BLM = self.embedding(left_BL, self.scope.dtype) + self.embedding(right_BL, self.scope.dtype)
        x_BLM, _ = scan(lambda x_BLM, layer, rows: (layer(x_BLM), None), x_BLM, self.layers, scope=self.scope / "layers")
        logits_BLV = self.scope.shard(x_BLM @ self.classes[...].astype(x_BLM.dtype), "batch", "length", "act_vocab")
        sums_BL = (left_BL + right_BL) % self.c.vocab
        return token_loss(logits_BLV, sums_BL, batch["segments"] > 0, totals["numbers"])
