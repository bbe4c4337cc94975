"""Layers that several families share. B batch, L length, M model, H hidden, V vocabulary."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.common.sharding import Component, normal, ones, param


def project(x: jax.Array, w: jax.Array, contract: int = 1) -> jax.Array:
    """x [..., *c] times w [*c, *o] -> [..., *o], in x's dtype, over the last `contract` dimensions of x.

    One product of two matrices: XLA's CPU compiler runs it, and its gradients, up to twice as fast as an einsum with several
    batch or contracted dimensions. Merging the leading dimensions keeps rows where they are; a layout that cuts both
    batch and length would pay for it with an extra exchange.
    """
    lead, inner = x.shape[: x.ndim - contract], w.shape[:contract]
    flat = x.reshape(-1, math.prod(inner)) @ w.astype(x.dtype).reshape(math.prod(inner), -1)
    return flat.reshape(*lead, *w.shape[contract:])


class RmsNorm(nnx.Module):
    """x / rms(x) * scale, no mean and no bias: the layer norm of Lingvo's GShard layers and of T5."""

    def __init__(self, size: int, key: jax.Array, where: Component):
        self.scale = param(key, (size,), ("embed",), ones, where)

    def __call__(self, x_BLM: jax.Array) -> jax.Array:
        x = x_BLM.astype(jnp.promote_types(x_BLM.dtype, jnp.float32))
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        return (x * self.scale[...]).astype(x_BLM.dtype)


class Embedding(nnx.Module):
    """A table [V, M] of unit-variance vectors."""

    def __init__(self, vocab: int, size: int, key: jax.Array, where: Component):
        self.where = where
        self.table = param(key, (vocab, size), ("vocab", "embed"), normal(1.0), where)

    def __call__(self, ids_BL: jax.Array, dtype: jnp.dtype) -> jax.Array:
        # Looked up with its vectors whole, however they are stored: else the gradient's cut spreads to the activations.
        table_VM = self.where.shard(self.table[...].astype(dtype), "act_vocab", None)
        x_BLM = table_VM[ids_BL]
        return self.where.shard(x_BLM, "batch", "length", "act_embed")


class FeedForward(nnx.Module):
    """ReLU(x wi) wo, the dense feed-forward layer of GShard (Figure 3)."""

    def __init__(self, size: int, hidden: int, key: jax.Array, where: Component):
        k1, k2 = jax.random.split(key)
        self.where = where
        self.wi = param(k1, (size, hidden), ("embed", "mlp"), normal(size**-0.5), where)
        self.wo = param(k2, (hidden, size), ("mlp", "embed"), normal(hidden**-0.5), where)

    def __call__(self, x_BLM: jax.Array) -> jax.Array:
        h_BLH = jax.nn.relu(project(x_BLM, self.wi[...]))
        h_BLH = self.where.shard(h_BLH, "batch", "length", "act_mlp")
        y_BLM = project(h_BLH, self.wo[...])
        return self.where.shard(y_BLM, "batch", "length", "act_embed")


def sinusoids(positions_BL: jax.Array, size: int, dtype: jnp.dtype) -> jax.Array:
    """Sinusoidal position encodings [B, L, size] of Vaswani et al. 2017, section 3.5 (sines, then cosines)."""
    rates = np.exp(-np.log(1e4) * np.arange(size // 2) / max(size // 2 - 1, 1))
    angles = positions_BL[..., None].astype(jnp.float32) * jnp.asarray(rates, jnp.float32)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).astype(dtype)


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes each element with probability `rate` and scales the rest up; the identity without a key.

    Draws 8 bits an element, a quarter of the cost of a float; the rate is rounded to a 256th, and the scale is exact for
    what it is rounded to.
    """
    cut = round(rate * 256)
    if key is None or cut == 0:
        return x
    keep = jax.random.bits(key, x.shape, jnp.uint8) >= cut
    return jnp.where(keep, x * (256 / (256 - cut)), 0).astype(x.dtype)


def cross_entropy(logits_BLV: jax.Array, labels_BL: jax.Array, smoothing: float = 0.0) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy per token, in float32: (with label smoothing, without), each [B, L].

    Smoothing moves `smoothing` of the label's mass evenly to the other V - 1 classes, as Lingvo does.
    """
    logits_BLV = logits_BLV.astype(jnp.promote_types(logits_BLV.dtype, jnp.float32))
    vocab = logits_BLV.shape[-1]
    norm_BL = jax.nn.logsumexp(logits_BLV, axis=-1)
    # A masked sum, not a gather: the compiler partitions it over a cut vocabulary without moving the logits.
    hit_BLV = labels_BL[..., None] == jnp.arange(vocab)
    label_BL = jnp.sum(jnp.where(hit_BLV, logits_BLV, 0), axis=-1)
    plain_BL = norm_BL - label_BL
    if not smoothing:
        return plain_BL, plain_BL
    others_BL = (vocab * norm_BL - jnp.sum(logits_BLV, axis=-1)) - plain_BL  # sum of -log p over the other classes
    return (1 - smoothing) * plain_BL + smoothing / (vocab - 1) * others_BL, plain_BL
