"""Multi-head attention. B batch, L queries, S keys, M model, N heads, D size of a head."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.common.layers import dropout, project
from models.common.sharding import Component, normal, param

KeysValues = tuple[jax.Array, jax.Array]  # [B, S, N, D] each


class Attention(nnx.Module):
    """Scaled dot-product attention over N heads of size D (N * D need not be M), without biases."""

    def __init__(self, size: int, heads: int, head_size: int, key: jax.Array, where: Component):
        self.where = where
        kq, kk, kv, ko = jax.random.split(key, 4)
        in_shape, in_axes = (size, heads, head_size), ("embed", "heads", "kv")
        self.q = param(kq, in_shape, in_axes, normal(size**-0.5), where)
        self.k = param(kk, in_shape, in_axes, normal(size**-0.5), where)
        self.v = param(kv, in_shape, in_axes, normal(size**-0.5), where)
        self.o = param(
            ko, (heads, head_size, size), ("heads", "kv", "embed"), normal((heads * head_size) ** -0.5), where
        )

    def keys_values(self, y_BSM: jax.Array) -> KeysValues:
        """The keys and values of a sequence, to attend to or to cache."""
        k_BSND = project(y_BSM, self.k[...])
        v_BSND = project(y_BSM, self.v[...])
        names = ("batch", "length", "act_heads", None)
        return self.where.shard(k_BSND, *names), self.where.shard(v_BSND, *names)

    def __call__(
        self, x_BLM: jax.Array, kv: KeysValues, mask_BLS: jax.Array, *, rate: float = 0.0, key: jax.Array | None = None
    ) -> jax.Array:
        """Attends from x to the keys and values where the mask is True; `rate` drops out probabilities."""
        dtype = x_BLM.dtype
        k_BSND, v_BSND = kv
        q_BLND = project(x_BLM, self.q[...])
        q_BLND = self.where.shard(q_BLND, "batch", "length", "act_heads", None) * q_BLND.shape[-1] ** -0.5
        logits_BNLS = jnp.einsum("BLND,BSND->BNLS", q_BLND, k_BSND)
        # Softmax in float32 at least. A row with no key at all (padding) becomes uniform, not NaN: -1e9 is finite.
        logits_BNLS = logits_BNLS.astype(jnp.promote_types(dtype, jnp.float32))
        bias_BLS = jnp.where(mask_BLS, 0.0, -1e9).astype(logits_BNLS.dtype)
        probs_BNLS = jax.nn.softmax(logits_BNLS + bias_BLS[:, None], axis=-1).astype(dtype)
        probs_BNLS = dropout(probs_BNLS, rate, key)
        out_BLND = jnp.einsum("BNLS,BSND->BLND", probs_BNLS, v_BSND)
        out_BLND = self.where.shard(out_BLND, "batch", "length", "act_heads", None)
        y_BLM = project(out_BLND, self.o[...], contract=2)
        return self.where.shard(y_BLM, "batch", "length", "act_embed")


def same_segment(a_BL: jax.Array, b_BS: jax.Array) -> jax.Array:
    """[B, L, S]: True where query and key belong to the same example of a packed row (0 is padding)."""
    return (a_BL[:, :, None] == b_BS[:, None, :]) & (b_BS[:, None, :] > 0)


def causal(length: int) -> jax.Array:
    """[1, L, L]: True where the key is not after the query."""
    return jnp.tril(jnp.ones((1, length, length), bool))
