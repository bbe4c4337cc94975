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
        self, inputs: int, outputs: int, key: jax.Array, where: Component, *, size: int = 3, stride: int = 1,
        names: tuple[str, str] = ("in_channels", "embed"), act: str | None = "act_embed",
    ):  # fmt: skip
        self.where, self.stride, self.act = where, stride, act
        axes = ("filter_width", *names)
        self.filter = param(key, (size, inputs, outputs), axes, normal((size * inputs) ** -0.5), where)
        self.bias = param(key, (outputs,), (names[1],), zeros, where)

    def __call__(self, x_BTC: jax.Array) -> jax.Array:
        """Returns [B, T / stride, O]."""
        size, inputs, outputs = self.filter.shape
        reach = (size - 1) // 2
        length = -(-x_BTC.shape[1] // self.stride) * self.stride
        padded = jnp.pad(x_BTC, ((0, 0), (reach, reach + length - x_BTC.shape[1]), (0, 0)))
        taps = [padded[:, tap : tap + length : self.stride] for tap in range(size)]
        x_BTX = self.where.shard(jnp.concatenate(taps, axis=-1), "batch", "length", None)
        y_BTO = x_BTX @ self.filter[...].astype(x_BTC.dtype).reshape(size * inputs, outputs)
        return self.where.shard(y_BTO + self.bias[...].astype(x_BTC.dtype), "batch", "length", self.act)


def masked(x_BTC: jax.Array, segments_BT: jax.Array) -> jax.Array:
    """Returns frames with those of padding, segment 0, set to zero."""
    return jnp.where((segments_BT > 0)[..., None], x_BTC, 0)


def places(segments_BT: jax.Array) -> jax.Array:
    """Returns the place of each frame in its own segment, int32 [B, T]; a segment is one stretch of frames."""
    index_1T = jnp.arange(segments_BT.shape[1], dtype=jnp.int32)[None]
    begins_BT = segments_BT != jnp.pad(segments_BT, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return index_1T - jax.lax.cummax(jnp.where(begins_BT, index_1T, 0), axis=1)
