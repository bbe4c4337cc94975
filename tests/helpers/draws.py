"""Draws that compile fast. Of a tiny model's initialisation, whose program many tests compile, three quarters of the compilation
are threefry's rounds and the inverse error function, for each parameter.

The fixture `real_draws` brings JAX's own back, for tests of what is drawn.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

REAL = {"normal": jax.random.normal, "split": jax.random.split}
_WEYL, _MIX = np.uint32(0x9E3779B9), np.uint32(0x21F0AAAD)  # as models.parts.layers.dropped


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)  # traced once for each shape
def normal(key: jax.Array, shape: Any = (), dtype: Any = float) -> jax.Array:
    """Returns draws of mean 0 and variance 1, uniform ones, by a hash of each element's number and the key."""
    first, second = jax.random.key_data(key)
    number = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    bits = _mixed((number * _WEYL ^ first) * _MIX + second)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    return ((bits.astype(dtype) * np.float32(2.0**-32) - np.float32(0.5)) * np.float32(12**0.5)).astype(dtype)


@functools.partial(jax.jit, static_argnums=1, inline=True)
def split(key: jax.Array, num: int | tuple[int, ...] = 2) -> jax.Array:
    """Returns keys, as jax.random.split does, by a hash of each one's number."""
    shape = (num,) if isinstance(num, int) else tuple(num)
    number = jnp.arange(1, math.prod(shape) * 2 + 1, dtype=jnp.uint32).reshape(*shape, 2)
    data = _mixed((jax.random.key_data(key) + number * _WEYL) * _MIX)
    return jax.random.wrap_key_data(data) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else data


def _mixed(bits: jax.Array) -> jax.Array:
    return bits ^ bits >> np.uint32(15)


def install() -> None:
    jax.random.normal, jax.random.split = normal, split  # pyright: ignore[reportAttributeAccessIssue]
