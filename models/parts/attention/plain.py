"""Attention as it is defined: the paths that models take (blocks.py, ring.py, splash.py) are tested against it.

B batch, L queries, S keys, N heads, G heads of keys and values, D size of a head.
"""

import jax
import jax.numpy as jnp


def attention(q_BLND: jax.Array, k_BSGD: jax.Array, v_BSGD: jax.Array, mask_BLS: jax.Array) -> jax.Array:
    """Returns softmax(q k / sqrt(D)) v (Vaswani et al. 2017, section 3.2.1), [B, L, N, D].

    Args:
      k_BSGD, v_BSGD: heads of keys and values; each is read by N / G neighbouring heads of queries.
      mask_BLS: True where the query sees the key. One that sees none gets the mean of all values.
    """
    k_BSND, v_BSND = (jnp.repeat(x, q_BLND.shape[2] // x.shape[2], axis=2) for x in (k_BSGD, v_BSGD))
    logits_BNLS = jnp.einsum("BLND,BSND->BNLS", q_BLND, k_BSND) / jnp.sqrt(q_BLND.shape[3])
    probs_BNLS = jax.nn.softmax(jnp.where(mask_BLS[:, None], logits_BNLS, -1e9))
    return jnp.einsum("BNLS,BSND->BLND", probs_BNLS, v_BSND)
