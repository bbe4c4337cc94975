"""Multi-head attention. B batch, L queries, S keys, M model, N heads, G heads of keys and values, D size of a head."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.parts.attention import ring, splash
from models.parts.attention.mask import Sight
from models.parts.layers import add_bias, dropout, project, soft_cap
from models.sharding.component import Component
from models.sharding.params import normal, param, zeros

BLOCK = 256  # queries

KeysValues = tuple[jax.Array, jax.Array]  # [B, S, G, D] each
Rotation = tuple[jax.Array, jax.Array]  # cosines and sines, [B, L, D / 2] each


class Attention(nnx.Module):
    """Scaled dot-product attention over N heads of size D (N * D need not be M).

    Args:
      kv_heads: G heads of keys and values, each shared by N / G queries; N by default.
      bias: of all four projections.
      per_dim_scale: scales each dimension of the queries by softplus(w) / softplus(0), w learned from 0 (Lingvo).
      buckets: of relative positions up to `max_distance`, each with a learned bias per head (T5, section 2.1); 0 has none.
      cap: limit of the logits, see `layers.soft_cap`.

    Where the layout cuts "keys", keys and values go round in a ring (models/parts/attention/ring.py). Long rows on TPUs are
    left to a kernel (models/parts/attention/splash.py).
    """

    def __init__(
        self, size: int, heads: int, head_size: int, key: jax.Array, where: Component, *,
        kv_heads: int = 0, bias: bool = False, per_dim_scale: bool = False, buckets: int = 0, max_distance: int = 128,
        cap: float = 0.0,
    ):  # fmt: skip
        self.where, self.max_distance, self.cap = where, max_distance, cap
        self.pieces = ring.pieces(where)
        kv_heads = kv_heads or heads
        # Fewer heads of keys and values than of queries may be cut differently, or not at all: they have a name of their own.
        kv_axis = "heads" if kv_heads == heads else "kv_heads"
        self.act_kv_axis = f"act_{kv_axis}"
        kq, kk, kv, ko = jax.random.split(key, 4)
        init = normal(size**-0.5)
        self.q = param(kq, (size, heads, head_size), ("embed", "heads", "kv"), init, where)
        self.k = param(kk, (size, kv_heads, head_size), ("embed", kv_axis, "kv"), init, where)
        self.v = param(kv, (size, kv_heads, head_size), ("embed", kv_axis, "kv"), init, where)
        self.o = param(
            ko, (heads, head_size, size), ("heads", "kv", "embed"), normal((heads * head_size) ** -0.5), where
        )
        self.q_bias = param(kq, (heads, head_size), ("heads", "kv"), zeros, where) if bias else None
        self.k_bias = param(kk, (kv_heads, head_size), (kv_axis, "kv"), zeros, where) if bias else None
        self.v_bias = param(kv, (kv_heads, head_size), (kv_axis, "kv"), zeros, where) if bias else None
        self.o_bias = param(ko, (size,), ("embed",), zeros, where) if bias else None
        self.per_dim_scale = param(kq, (head_size,), ("kv",), zeros, where) if per_dim_scale else None
        self.relative_bias = param(ko, (heads, buckets), ("heads", "buckets"), zeros, where) if buckets else None

    def keys_values(self, y_BSM: jax.Array, rotation: Rotation | None = None) -> KeysValues:
        """The keys and values of a sequence, to attend to or to cache; keys are rotated to their positions."""
        shard, axis = self.where.shard, self.act_kv_axis
        k_BSGD = add_bias(project(y_BSM, self.k[...], self.where), self.k_bias)
        v_BSGD = add_bias(project(y_BSM, self.v[...], self.where), self.v_bias)
        # Computed where their positions lie; what is gathered, if "keys" are whole, is keys and values.
        k_BSGD, v_BSGD = (shard(x, "batch", "length", axis, None) for x in (k_BSGD, v_BSGD))
        k_BSGD = rotate(k_BSGD, rotation, self.where)
        k_BSGD, v_BSGD = (shard(x, "batch", "keys", axis, None) for x in (k_BSGD, v_BSGD))
        return checkpoint_name(k_BSGD, "attention_in"), checkpoint_name(v_BSGD, "attention_in")

    def __call__(
        self, x_BLM: jax.Array, kv: KeysValues, sight: Sight, *,
        rotation: Rotation | None = None, rate: float = 0.0, key: jax.Array | None = None,
    ) -> jax.Array:  # fmt: skip
        """Attends from x to the keys and values that it sees.

        Args:
          rotation: of the queries, where positions are rotary.
          rate: of dropout on probabilities.

        Raises:
          LayoutError: positions that the layout's pieces do not divide.
        """
        k_BSGD, v_BSGD = kv
        q_BLND = add_bias(project(x_BLM, self.q[...], self.where), self.q_bias)
        q_BLND = rotate(self.where.shard(q_BLND, "batch", "length", "act_heads", None), rotation, self.where)
        q_BLND = checkpoint_name(q_BLND, "attention_in")
        q_BLND = q_BLND * q_BLND.shape[-1] ** -0.5
        if self.per_dim_scale is not None:
            q_BLND = q_BLND * (jax.nn.softplus(self.per_dim_scale[...]) / np.log(2.0)).astype(q_BLND.dtype)
        table_NK = None if self.relative_bias is None else self.relative_bias[...]
        logits = functools.partial(_logits, limit=self.cap, max_distance=self.max_distance)
        dropping = key is not None and rate > 0
        if splash.pays(self.where, q_BLND, k_BSGD, sight, biased=table_NK is not None, dropping=dropping):
            out_BLND = splash.attend(q_BLND, k_BSGD, v_BSGD, sight, self.where, cap=self.cap)
        elif self.pieces == 1 or x_BLM.shape[1] == 1:  # a single query goes to all keys
            parts, length, keys = [], q_BLND.shape[1], k_BSGD.shape[1]
            for start, end, seen in self._blocks(length, keys, sight):
                part_BNLS = logits(q_BLND[:, start:end], k_BSGD[:, :seen], table_NK, sight.part(start, end, seen))
                kept_BNLS = None
                if dropping and key is not None:
                    # By query wherever any layout or platform takes blocks, so that all of them draw the same.
                    by_query = functools.partial(_drop_by_query, start=start, length=length)
                    drop = by_query if _comes_in_blocks(length, keys, sight) else dropout
                    kept_BNLS = drop(jnp.ones_like(part_BNLS, x_BLM.dtype), rate, key)
                parts.append(_attend(part_BNLS, v_BSGD[:, :seen], kept_BNLS))
            out_BLND = jnp.concatenate(parts, axis=1)
        else:
            around = ring.Ring(logits, _mix, self.where, self.act_kv_axis, rate)
            out_BLND = around(q_BLND, k_BSGD, v_BSGD, table_NK, sight, key)
        out_BLND = checkpoint_name(self.where.shard(out_BLND, "batch", "length", "act_heads", None), "context")
        y_BLM = add_bias(project(out_BLND, self.o[...], self.where, contract=2), self.o_bias)
        return checkpoint_name(self.where.shard(y_BLM, "batch", "res_length", "act_embed"), "attention_out")

    def _blocks(self, length: int, keys: int, sight: Sight) -> list[tuple[int, int, int]]:
        """(first query, the query after the last, how many keys they see at most) of each part of a row.

        Long causal rows are taken in blocks: the keys after a block's last query are never multiplied, nearly half of them.
        What is no TPU multiplies smaller blocks as fast, so that a row is at least four there.
        Without a mesh rows are whole: that is the mathematics, whose FLOPs are counted (trainers/programs/model_flops.py).
        """
        block = BLOCK if self.where.on_tpu else min(BLOCK, length // 4)
        whole = not _comes_in_blocks(length, keys, sight) or length % block or self.where.pieces("length") > 1
        if whole or self.where.mesh is None:
            return [(0, length, keys)]
        return [(start, start + block, start + block) for start in range(0, length, block)]


def _comes_in_blocks(length: int, keys: int, sight: Sight) -> bool:
    """Whether attention in rows like these is computed in blocks, if layout and platform let it."""
    return length >= BLOCK and length == keys and sight.causal and sight.natural


def _drop_by_query(x_BNLS: jax.Array, rate: float, key: jax.Array, start: int, length: int) -> jax.Array:
    """Dropout of a block of attention whose queries begin at `start` of a row's `length`, the same in blocks of any size.

    Each query of each head has a key of its own, and of the numbers that it draws the first S do not depend on S. This costs
    one number more a query.
    """
    keys_BNL = jax.random.split(key, (*x_BNLS.shape[:2], length))[:, :, start : start + x_BNLS.shape[2]]
    draw = functools.partial(dropout, rate=rate)
    for _ in keys_BNL.shape:
        draw = jax.vmap(draw)
    return draw(x_BNLS, key=keys_BNL)


def _logits(
    q_BLND: jax.Array, k_BSGD: jax.Array, table_NK: jax.Array | None, sight: Sight, *, limit: float, max_distance: int
) -> jax.Array:
    """Capped, biased and masked logits [B, N, L, S], float32 at least; K buckets of relative positions."""
    logits_BNLS = _scores(q_BLND, k_BSGD)
    logits_BNLS = soft_cap(logits_BNLS.astype(jnp.promote_types(q_BLND.dtype, jnp.float32)), limit)
    if table_NK is not None:
        buckets_BLS = relative_buckets(
            sight.distance(), table_NK.shape[1], max_distance, bidirectional=not sight.causal
        )
        # A product with one-hot buckets, not a gather: TPUs gather single numbers, and add up their gradients, one at a time.
        bucket_BLSK = jax.nn.one_hot(buckets_BLS, table_NK.shape[1], dtype=logits_BNLS.dtype)
        logits_BNLS += jnp.einsum("NK,BLSK->BNLS", table_NK.astype(logits_BNLS.dtype), bucket_BLSK)
    # A row with no key at all (padding) becomes uniform, not NaN: -1e9 is finite.
    logits_BNLS = logits_BNLS + jnp.where(sight.mask(), 0.0, -1e9).astype(logits_BNLS.dtype)[:, None]
    return checkpoint_name(logits_BNLS, "scores")


@jax.custom_vjp
def _attend(logits_BNLS: jax.Array, v_BSGD: jax.Array, kept_BNLS: jax.Array | None) -> jax.Array:
    """softmax(logits) v, [B, L, N, D] in v's dtype; `kept` are factors of the probabilities, or None.

    Normalised after mixing, where [L, D] numbers are divided and not [L, S]; the gradient's sum over keys is one over D as well
    (FlashAttention, arXiv 2205.14135, appendix B.2). Left to differentiation it takes half as long again on CPUs.
    """
    return _attend_fwd(logits_BNLS, v_BSGD, kept_BNLS)[0]


def _attend_fwd(logits_BNLS: jax.Array, v_BSGD: jax.Array, kept_BNLS: jax.Array | None) -> tuple[jax.Array, Any]:
    v_BGSD, wide = v_BSGD.swapaxes(1, 2), logits_BNLS.dtype
    mass_BNLS = jnp.exp(logits_BNLS - jnp.max(logits_BNLS, axis=-1, keepdims=True))
    total_BNL1 = jnp.sum(mass_BNLS, axis=-1, keepdims=True)
    mass_BNLS = mass_BNLS.astype(v_BSGD.dtype)
    used_BNLS = mass_BNLS if kept_BNLS is None else mass_BNLS * kept_BNLS
    mixed_BNLD = _product("BGHLS,BGSD->BGHLD", v_BGSD.shape[1], used_BNLS, v_BGSD, wide)
    out_BNLD = (mixed_BNLD / total_BNL1).astype(v_BSGD.dtype)
    return out_BNLD.swapaxes(1, 2), (mass_BNLS, total_BNL1, v_BGSD, kept_BNLS, out_BNLD)


def _attend_bwd(saved: Any, grad_BLND: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    mass_BNLS, total_BNL1, v_BGSD, kept_BNLS, out_BNLD = saved
    wide, groups = total_BNL1.dtype, v_BGSD.shape[1]
    grad_BNLD = grad_BLND.swapaxes(1, 2).astype(wide) / total_BNL1
    along_BNL1 = jnp.sum(grad_BNLD * out_BNLD.astype(wide), axis=-1, keepdims=True)
    grad_BNLD = grad_BNLD.astype(v_BGSD.dtype)
    used_BNLS = mass_BNLS if kept_BNLS is None else mass_BNLS * kept_BNLS
    grad_v_BGSD = _product("BGHLS,BGHLD->BGSD", groups, used_BNLS, grad_BNLD)
    grad_BNLS = _product("BGHLD,BGSD->BGHLS", groups, grad_BNLD, v_BGSD, wide)
    if kept_BNLS is not None:
        grad_BNLS *= kept_BNLS.astype(wide)
    return mass_BNLS.astype(wide) * (grad_BNLS - along_BNL1), grad_v_BGSD.swapaxes(1, 2), None


_attend.defvjp(_attend_fwd, _attend_bwd)


def _scores(q_BLND: jax.Array, k_BSGD: jax.Array) -> jax.Array:
    """Products of queries and keys [B, N, L, S]; a query head n reads the keys of head n // (N / G)."""
    return _product("BGHLD,BGSD->BGHLS", k_BSGD.shape[2], q_BLND.swapaxes(1, 2), k_BSGD.swapaxes(1, 2))


def _mix(probs_BNLS: jax.Array, v_BSGD: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
    """Values weighted by probabilities [B, L, N, D], in their own dtype or this one."""
    v_BGSD = v_BSGD.swapaxes(1, 2)
    return _product("BGHLS,BGSD->BGHLD", v_BGSD.shape[1], probs_BNLS, v_BGSD, dtype).swapaxes(1, 2)


def _product(dimensions: str, groups: int, a: jax.Array, b: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
    """An einsum of arrays with heads in the second place, where GH stands for all of them: H for each of `groups`.

    Heads come before positions, so that XLA's CPU compiler multiplies matrices that lie in one piece: with the copies that this
    takes, the other way takes half as long again. TPUs choose themselves how arrays lie.
    """
    inputs, output = dimensions.split("->")
    names = inputs.split(",")
    if max(x.shape[1] for x in (a, b)) == groups:
        return jnp.einsum(dimensions.replace("H", ""), a, b, preferred_element_type=dtype)
    a, b = (
        x.reshape(x.shape[0], groups, -1, *x.shape[2:]) if "H" in name else x
        for x, name in zip((a, b), names, strict=True)
    )
    y = jnp.einsum(dimensions, a, b, preferred_element_type=dtype)
    return y.reshape(y.shape[0], -1, *y.shape[3:]) if "H" in output else y


def rotation(positions_BL: jax.Array, head_size: int, base: float) -> Rotation:
    """Cosines and sines of rotary position embeddings (RoFormer, arXiv 2104.09864, section 3.2.2), float32."""
    rates = base ** (-np.arange(0, head_size, 2) / head_size)
    angles = positions_BL[..., None].astype(jnp.float32) * jnp.asarray(rates, jnp.float32)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BLND: jax.Array, rotation: Rotation | None, where: Component) -> jax.Array:
    """x with dimension i turned against dimension i + D/2 by its position's angle (LLaMA's halves); x without any.

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


def relative_buckets(distance: jax.Array, buckets: int, max_distance: int, *, bidirectional: bool) -> jax.Array:
    """The bucket of each distance key - query: exact up to half the buckets, then logarithmic up to `max_distance`
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
