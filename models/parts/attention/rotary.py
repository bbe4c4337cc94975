"""Rotary position embeddings (RoFormer, arXiv 2104.09864). B batch, L positions, N heads, D size of a head."""

import jax
import jax.numpy as jnp
import numpy as np

from models.parts.attention.config import LongRope, Rotary
from models.sharding.component import Component

Rotation = tuple[jax.Array, jax.Array]  # cosines and sines, [B, L, D / 2] each


def rotation(positions_BL: jax.Array, head_size: int, c: Rotary, reach_BL: jax.Array | None = None) -> Rotation:
    """Returns cosines and sines of rotary position embeddings (RoFormer, arXiv 2104.09864, section 3.2.2), float32.

    Args:
      c: base and scaling of the rates. Of fewer dimensions than a head has, the result has fewer too.
      reach_BL: how many positions the example of each will have, where rates depend on it ("longrope"); positions may be 1.
    """
    if isinstance(c.scaling, LongRope):
        assert reach_BL is not None
        tables = (jnp.asarray(c.rates(head_size, long=long), jnp.float32) for long in (True, False))
        rates = jnp.where((reach_BL > c.scaling.original)[..., None], *tables)
    else:
        rates = jnp.asarray(np.array(c.rates(head_size)), jnp.float32)
    angles = positions_BL[..., None].astype(jnp.float32) * rates
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return (cos, sin) if c.amplitude == 1 else (cos * c.amplitude, sin * c.amplitude)


def rotate(x_BLND: jax.Array, rotation: Rotation | None, scope: Component) -> jax.Array:
    """Returns x with dimension i turned against dimension i + D/2 by its position's angle (LLaMA's halves); x without any.

    Of a rotation of fewer dimensions than a head has, those behind stay as they are.

    TPUs take halves apart, and put them together, by passes through memory: there (-b, a) is a product with a matrix of signs,
    just as exact, which is fused with what surrounds it.
    """
    if rotation is None:
        return x_BLND
    cos, sin = (part[:, :, None, :] for part in rotation)
    if (turned := 2 * cos.shape[-1]) < x_BLND.shape[-1]:
        head_BLND = rotate(x_BLND[..., :turned], rotation, scope)
        return jnp.concatenate([head_BLND, x_BLND[..., turned:]], axis=-1)
    if scope.on_tpu:
        turn_DD = np.kron([[0, 1], [-1, 0]], np.eye(cos.shape[-1]))
        cos, sin = (jnp.concatenate([part, part], axis=-1) for part in (cos, sin))
        turned_BLND = x_BLND @ jnp.asarray(turn_DD, x_BLND.dtype)
        return (x_BLND * cos + turned_BLND * sin).astype(x_BLND.dtype)
    a, b = jnp.split(x_BLND.astype(cos.dtype), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x_BLND.dtype)
