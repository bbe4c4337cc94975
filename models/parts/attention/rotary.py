"""Rotary position embeddings (RoFormer, arXiv 2104.09864). B batch, L positions, N heads, D size of a head."""

import jax
import jax.numpy as jnp
import numpy as np

from models.sharding.component import Component

Rotation = tuple[jax.Array, jax.Array]  # cosines and sines, [B, L, D / 2] each


def rotation(positions_BL: jax.Array, head_size: int, base: float) -> Rotation:
    """Returns cosines and sines of rotary position embeddings (RoFormer, arXiv 2104.09864, section 3.2.2), float32."""
    rates = base ** (-np.arange(0, head_size, 2) / head_size)
    angles = positions_BL[..., None].astype(jnp.float32) * jnp.asarray(rates, jnp.float32)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BLND: jax.Array, rotation: Rotation | None, where: Component) -> jax.Array:
    """Returns x with dimension i turned against dimension i + D/2 by its position's angle (LLaMA's halves); x without any.

    TPUs take halves apart, and put them together, by passes through memory: there (-b, a) is a product with a matrix of signs,
    just as exact, which is fused with what surrounds it.
    """
    if rotation is None:
        return x_BLND
    cos, sin = (part[:, :, None, :] for part in rotation)
    if where.on_tpu:
        turn_DD = np.kron([[0, 1], [-1, 0]], np.eye(cos.shape[-1]))
        cos, sin = (jnp.concatenate([part, part], axis=-1) for part in (cos, sin))
        turned_BLND = x_BLND @ jnp.asarray(turn_DD, x_BLND.dtype)
        return (x_BLND * cos + turned_BLND * sin).astype(x_BLND.dtype)
    a, b = jnp.split(x_BLND.astype(cos.dtype), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x_BLND.dtype)
