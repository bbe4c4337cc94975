"""Layers that several families share. B batch, L length, M model, H hidden, V vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.common.sharding import Component, normal, ones, param


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
        x_BLM = self.table[...].astype(dtype)[ids_BL]
        return self.where.shard(x_BLM, "batch", "length", "act_embed")


class FeedForward(nnx.Module):
    """ReLU(x wi) wo, the dense feed-forward layer of GShard (Figure 3)."""

    def __init__(self, size: int, hidden: int, key: jax.Array, where: Component):
        k1, k2 = jax.random.split(key)
        self.where = where
        self.wi = param(k1, (size, hidden), ("embed", "mlp"), normal(size**-0.5), where)
        self.wo = param(k2, (hidden, size), ("mlp", "embed"), normal(hidden**-0.5), where)

    def __call__(self, x_BLM: jax.Array) -> jax.Array:
        h_BLH = jax.nn.relu(jnp.einsum("BLM,MH->BLH", x_BLM, self.wi[...].astype(x_BLM.dtype)))
        h_BLH = self.where.shard(h_BLH, "batch", "length", "act_mlp")
        y_BLM = jnp.einsum("BLH,HM->BLM", h_BLH, self.wo[...].astype(x_BLM.dtype))
        return self.where.shard(y_BLM, "batch", "length", "act_embed")


def sinusoids(positions_BL: jax.Array, size: int, dtype: jnp.dtype) -> jax.Array:
    """Sinusoidal position encodings [B, L, size] of Vaswani et al. 2017, section 3.5 (sines, then cosines)."""
    rates = np.exp(-np.log(1e4) * np.arange(size // 2) / max(size // 2 - 1, 1))
    angles = positions_BL[..., None].astype(jnp.float32) * jnp.asarray(rates, jnp.float32)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).astype(dtype)


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes each element with probability `rate` and scales the rest up; the identity without a key.

    Draws 16 bits an element, half the cost of a float: the rate is rounded to 1/65536.
    """
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bits(key, x.shape, jnp.uint16) >= round(rate * 65536)
    return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)


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
