"""Attention logits and what is mixed by them, as products of matrices. B batch, L queries, S keys, N heads, G heads of keys and
values, D size of a head.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from models.parts.attention.config import RelativePatches
from models.parts.attention.mask import AttentionMask
from models.parts.layers import soft_cap

Distances = tuple[jax.Array, jax.Array]  # keys [1, K, G, D] and scaled queries [1, K, N, D] of K buckets of relative positions


def masked_logits(
    q_BLND: jax.Array,
    k_BSGD: jax.Array,
    table: jax.Array | Distances | None,
    mask: AttentionMask,
    *,
    limit: float,
    max_distance: int,
    gate_BNL: jax.Array | None = None,
    patches: RelativePatches | None = None,
) -> jax.Array:
    """Returns capped, biased and masked logits [B, N, L, S], in float32 at least.

    Args:
      q_BLND: queries, scaled already.
      table: biases of pairs of positions (`relative_biases`), or vectors of their distances (`relative_scores`), or None.
      limit: of `soft_cap`.
      gate_BNL: a factor of the biases of each query, or None.
    """
    logits_BNLS = scores(q_BLND, k_BSGD)
    if isinstance(table, tuple):
        logits_BNLS, table = logits_BNLS + relative_scores(q_BLND, k_BSGD, table, mask, max_distance), None
    logits_BNLS = soft_cap(logits_BNLS.astype(jnp.promote_types(q_BLND.dtype, jnp.float32)), limit)
    if table is not None:
        biases = relative_biases(table.astype(logits_BNLS.dtype), mask, max_distance, patches)
        logits_BNLS += biases if gate_BNL is None else gate_BNL.astype(logits_BNLS.dtype)[..., None] * biases
    # A row with no key at all (padding) becomes uniform, not NaN: -1e9 is finite.
    logits_BNLS = logits_BNLS + jnp.where(mask.matrix(), 0.0, -1e9).astype(logits_BNLS.dtype)[:, None]
    return checkpoint_name(logits_BNLS, "scores")


def scores(q_BLND: jax.Array, k_BSGD: jax.Array) -> jax.Array:
    """Returns the products of queries and keys [B, N, L, S]; a query head n reads the keys of head n // (N / G)."""
    return product("BGHLD,BGSD->BGHLS", k_BSGD.shape[2], q_BLND.swapaxes(1, 2), k_BSGD.swapaxes(1, 2))


def relative_scores(
    q_BLND: jax.Array, k_BSGD: jax.Array, distances: Distances, mask: AttentionMask, max_distance: int
) -> jax.Array:
    """Returns the products of queries with the keys of their pairs' distances, and of keys with the queries of these [B, N, L, S]
    (DeBERTa, arXiv 2006.03654, equation 4)."""
    key_1KGD, query_1KND = distances
    buckets, rows = key_1KGD.shape[1], len(q_BLND)
    bucket_BLS = disentangled_buckets(mask.distance(), buckets // 2, max_distance)[:, None]
    # Each query and each key meets all buckets, of which the pairs take theirs.
    query_BNLK = scores(q_BLND, jnp.broadcast_to(key_1KGD, (rows, *key_1KGD.shape[1:])))
    key_BNKS = scores(jnp.broadcast_to(query_1KND, (rows, *query_1KND.shape[1:])), k_BSGD)
    return jnp.take_along_axis(query_BNLK, bucket_BLS, 3) + jnp.take_along_axis(key_BNKS, bucket_BLS, 2)


def mix(probs_BNLS: jax.Array, v_BSGD: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
    """Returns values weighted by probabilities [B, L, N, D], in their own dtype or this one."""
    v_BGSD = v_BSGD.swapaxes(1, 2)
    return product("BGHLS,BGSD->BGHLD", v_BGSD.shape[1], probs_BNLS, v_BGSD, dtype).swapaxes(1, 2)


def product(dimensions: str, groups: int, a: jax.Array, b: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
    """Computes an einsum of arrays with heads in the second place, where GH stands for all of them: H for each of `groups`.

    Heads come before positions, so that XLA's CPU compiler multiplies contiguous matrices: copies included, the other order
    takes half as long again. TPUs choose the order of dimensions in memory themselves.
    """
    inputs, output = dimensions.split("->")
    names = inputs.split(",")
    if max(x.shape[1] for x in (a, b)) == groups:
        return jnp.einsum(dimensions.replace("H", ""), a, b, preferred_element_type=dtype)
    a, b = (x.reshape(x.shape[0], groups, -1, *x.shape[2:]) if "H" in name else x for x, name in zip((a, b), names, strict=True))
    y = jnp.einsum(dimensions, a, b, preferred_element_type=dtype)
    return y.reshape(y.shape[0], -1, *y.shape[3:]) if "H" in output else y


def relative_biases(table: jax.Array, mask: AttentionMask, max_distance: int, patches: RelativePatches | None) -> jax.Array:
    """Returns the biases of pairs of queries and keys, like logits [B, N, L, S] but for dimensions that are 1 or missing.

    Args:
      table: a bias for each of K buckets of relative positions up to `max_distance` [N, K], or of offsets of `patches`; without
        either, the slopes [N, 1] of a bias that falls with the distance (ALiBi); or the biases themselves [N, L, S].
    """
    if table.ndim == 3:
        return table
    if patches is not None:
        return jnp.moveaxis(table.T[patch_buckets(mask, patches)], -1, 1)
    if not max_distance:
        return table[:, :, None] * mask.distance()[:, None]
    buckets_BLS = relative_buckets(mask.distance(), table.shape[1], max_distance, bidirectional=not mask.causal)
    # A product with one-hot buckets, not a gather: TPUs gather single numbers, and add up their gradients, one at a time.
    return jnp.einsum("NK,BLSK->BNLS", table, jax.nn.one_hot(buckets_BLS, table.shape[1], dtype=table.dtype))


def patch_buckets(mask: AttentionMask, patches: RelativePatches) -> jax.Array:
    """Returns the number of each query's and key's offset [B or 1, L, S]: by rows, then by columns, then the three of a class
    token, which has the first place."""
    query_BL1, key_B1S = mask.index_BL[:, :, None], mask.index_BS[:, None, :]
    (from_row, from_column), (to_row, to_column) = (jnp.divmod(place - 1, patches.columns) for place in (query_BL1, key_B1S))
    rows = from_row - to_row + patches.rows - 1
    offset_BLS = rows * (2 * patches.columns - 1) + from_column - to_column + patches.columns - 1
    from_token, to_token = query_BL1 == 0, key_B1S == 0
    of_token_BLS = patches.buckets - jnp.where(from_token & to_token, 1, jnp.where(from_token, 3, 2))
    return jnp.where(from_token | to_token, of_token_BLS, offset_BLS)


def relative_buckets(distance: jax.Array, buckets: int, max_distance: int, *, bidirectional: bool) -> jax.Array:
    """Returns the bucket of each distance key - query: exact up to half the buckets, then logarithmic up to `max_distance`
    (T5, arXiv 1910.10683, section 2.1). Bidirectional attention keeps half of the buckets for keys that come after."""
    after = jnp.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        after = jnp.where(distance > 0, buckets, 0)
        distance = -jnp.abs(distance)
    back = jnp.maximum(-distance, 0)
    exact = buckets // 2
    ratio = jnp.log(jnp.maximum(back, 1) / exact) / np.log(max_distance / exact)
    far = exact + (ratio * (buckets - exact)).astype(distance.dtype)
    return after + jnp.where(back < exact, back, jnp.minimum(far, buckets - 1))


def disentangled_buckets(distance: jax.Array, buckets: int, max_distance: int) -> jax.Array:
    """Returns the bucket of each distance key - query, those of keys before the query last: `buckets` to either side, exact up to
    half of them, then logarithmic (DeBERTa's later releases: rounded up, and beyond `max_distance` until buckets end)."""
    exact, far = buckets // 2, jnp.abs(distance)
    ratio = jnp.log(jnp.maximum(far, exact) / exact) / np.log((max_distance - 1) / exact)
    bucket = jnp.where(far <= exact, far, exact + jnp.ceil(ratio * (exact - 1)).astype(distance.dtype))
    # What is rounded up may have been rounded to more than 1 at the greatest distance that is below.
    bucket = jnp.where(far < max_distance, jnp.minimum(bucket, 2 * exact - 1), bucket)
    return jnp.clip(buckets - jnp.sign(distance) * bucket, 0, 2 * buckets - 1)


def pair_biases(table_NK: jax.Array, length: int, max_distance: int) -> jax.Array:
    """Returns the biases of all pairs of positions [N, L, L] from those of K buckets, of rows whose layers all add them."""
    distance_R = jnp.arange(1 - length, length)
    bucket_RK = jax.nn.one_hot(
        relative_buckets(distance_R, table_NK.shape[1], max_distance, bidirectional=True), table_NK.shape[1], dtype=table_NK.dtype
    )
    return (table_NK @ bucket_RK.T)[:, distances_index(length)]


def distances_index(length: int) -> jax.Array:
    """Returns where each pair of a query and a key finds its distance, int32 [L, L], among those from 1 - L up to L - 1."""
    return (length - 1) - jnp.arange(length)[:, None] + jnp.arange(length)
