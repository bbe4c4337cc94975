"""Convolutions along time: [B, T, C], as products of shifted frames.

A shift of frames that a layout cuts is an exchange with the neighbouring shard, which the partitioner finds by itself; and one
product for all taps is what CPUs are fast with. What is padding must be zero before every one of them, or results would depend
on it.

B batch, T frames, C channels, O output channels, K taps.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.sharding.component import Component
from models.sharding.params import normal, param, zeros


class Conv1d(nnx.Module):
    """A convolution of odd size; output i is centred on frame i * stride, and what is outside counts as 0.

    Args:
      names: logical names of the filter's input and output channels.
      act: logical name of the output's channels.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        key: jax.Array,
        scope: Component,
        *,
        size: int = 3,
        stride: int = 1,
        names: tuple[str, str] = ("in_channels", "embed"),
        act: str | None = "act_embed",
    ):
        self.scope, self.stride, self.act = scope, stride, act
        axes = ("filter_width", *names)
        self.filter = param(key, (size, inputs, outputs), axes, normal((size * inputs) ** -0.5), scope)
        self.bias = param(key, (outputs,), (names[1],), zeros, scope)

    def __call__(self, x_BTC: jax.Array) -> jax.Array:
        """Returns [B, T / stride, O]."""
        filter_kCO = self.filter[...].astype(x_BTC.dtype)
        y_BTO = convolve(x_BTC, filter_kCO, self.scope, self.act, stride=self.stride, before=(len(filter_kCO) - 1) // 2)
        return self.scope.shard(y_BTO + self.bias[...].astype(x_BTC.dtype), "batch", "length", self.act)


def convolve(
    x_BTC: jax.Array, filter_kCO: jax.Array, scope: Component, act: str | None, *, stride: int = 1, before: int = 0
) -> jax.Array:
    """Returns a convolution [B, T / stride, O]: output i begins `before` frames ahead of frame i * stride.

    Args:
      act: logical name of the output's channels.
    """
    size, inputs, outputs = filter_kCO.shape
    length = -(-x_BTC.shape[1] // stride) * stride
    padded = jnp.pad(x_BTC, ((0, 0), (before, size + length - x_BTC.shape[1]), (0, 0)))
    taps = [padded[:, tap : tap + length : stride] for tap in range(size)]
    x_BTX = scope.shard(jnp.concatenate(taps, axis=-1), "batch", "length", None)
    return scope.shard(x_BTX @ filter_kCO.reshape(size * inputs, outputs), "batch", "length", act)


def masked(x_BTC: jax.Array, segments_BT: jax.Array) -> jax.Array:
    """Returns frames with those of padding, segment 0, set to zero."""
    return jnp.where((segments_BT > 0)[..., None], x_BTC, 0)


def places(segments_BT: jax.Array) -> jax.Array:
    """Returns the place of each frame in its own segment, int32 [B, T]; a segment is one stretch of frames."""
    index_1T = jnp.arange(segments_BT.shape[1], dtype=jnp.int32)[None]
    begins_BT = segments_BT != jnp.pad(segments_BT, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return index_1T - jax.lax.cummax(jnp.where(begins_BT, index_1T, 0), axis=1)
