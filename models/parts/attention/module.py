"""Multi-head attention. B batch, L queries, S keys, M model, N heads, G heads of keys and values, D size of a head."""

import functools

import jax
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.parts.attention import blocks, ring, splash
from models.parts.attention.logits import masked_logits, mix
from models.parts.attention.mask import AttentionMask
from models.parts.attention.rotary import Rotation, rotate
from models.parts.layers import Norm, add_bias, project
from models.sharding.component import Component
from models.sharding.params import normal, param, zeros

KeysValues = tuple[jax.Array, jax.Array]  # [B, S, G, D] each


class Attention(nnx.Module):
    """Scaled dot-product attention over N heads of size D (N * D need not be M).

    Args:
      kv_heads: G heads of keys and values, each shared by N / G queries; N by default.
      bias: of all four projections.
      out_bias: of the last of them, where it differs.
      key_bias: of keys, where there are biases.
      qk_norm: the kind of norm, scale alone, of queries and keys before rotary positions; "" has none.
      qk_norm_over: what it is taken of: each "head", or "all" of them together.
      qk_norm_eps: is added to its variance.
      per_dim_scale: scales each dimension of the queries by softplus(w) / softplus(0), w learned from 0 (Lingvo).
      buckets: of relative positions up to `max_distance`, each with a learned bias per head (T5, section 2.1); 0 has none.
      scaled: divides the logits by sqrt(D), or by another root; 0 does not (T5).
      sinks: each head has a logit of its own beside those of keys, which takes probability and gives nothing (gpt-oss).
      init_scale: variance of the initial matrices times their inputs.
      cap: limit of the logits, see `layers.soft_cap`.

    It computes models/parts/attention/plain.py, and what these options add. Where the layout cuts "keys", keys and values go
    round in a ring (ring.py); long rows on TPUs are left to a kernel (splash.py); everything else is blocks.py.
    """

    def __init__(
        self,
        size: int,
        heads: int,
        head_size: int,
        key: jax.Array,
        scope: Component,
        *,
        kv_heads: int = 0,
        bias: bool = False,
        out_bias: bool | None = None,
        key_bias: bool = True,
        qk_norm: str = "",
        qk_norm_over: str = "head",
        qk_norm_eps: float = 1e-6,
        per_dim_scale: bool = False,
        buckets: int = 0,
        max_distance: int = 128,
        cap: float = 0.0,
        scaled: float | None = None,
        sinks: bool = False,
        init_scale: float = 1.0,
    ):
        self.scope, self.max_distance, self.cap = scope, max_distance, cap
        scaled = head_size if scaled is None else scaled
        self.scale = scaled**-0.5 if scaled else 1.0
        self.key_shards = ring.num_shards(scope)
        kv_heads = kv_heads or heads
        # Fewer heads of keys and values than of queries may be cut differently, or not at all: they have a name of their own.
        kv_axis = "heads" if kv_heads == heads else "kv_heads"
        self.act_kv_axis = f"act_{kv_axis}"
        kq, kk, kv, ko = jax.random.split(key, 4)
        init = normal((init_scale / size) ** 0.5)
        # Logits begin alike in size: what does not scale them has smaller queries.
        init_q = init if scaled else normal((init_scale / (size * head_size)) ** 0.5)
        self.q = param(kq, (size, heads, head_size), ("embed", "heads", "kv"), init_q, scope)
        self.k = param(kk, (size, kv_heads, head_size), ("embed", kv_axis, "kv"), init, scope)
        self.v = param(kv, (size, kv_heads, head_size), ("embed", kv_axis, "kv"), init, scope)
        self.o = param(
            ko, (heads, head_size, size), ("heads", "kv", "embed"), normal((init_scale / (heads * head_size)) ** 0.5), scope
        )
        self.q_bias = param(kq, (heads, head_size), ("heads", "kv"), zeros, scope) if bias else None
        self.k_bias = param(kk, (kv_heads, head_size), (kv_axis, "kv"), zeros, scope) if bias and key_bias else None
        self.v_bias = param(kv, (kv_heads, head_size), (kv_axis, "kv"), zeros, scope) if bias else None
        self.o_bias = param(ko, (size,), ("embed",), zeros, scope) if (bias if out_bias is None else out_bias) else None
        self.qk_norm_over_all = qk_norm_over == "all"

        def qk(n: int, axis: str) -> Norm | None:
            if not qk_norm:
                return None
            size, axis = (n * head_size, axis) if self.qk_norm_over_all else (head_size, "kv")
            return Norm(size, scope, kind=qk_norm, eps=qk_norm_eps, axis=axis)

        self.q_norm, self.k_norm = qk(heads, "heads"), qk(kv_heads, kv_axis)
        self.per_dim_scale = param(kq, (head_size,), ("kv",), zeros, scope) if per_dim_scale else None
        self.relative_bias = param(ko, (heads, buckets), ("heads", "buckets"), zeros, scope) if buckets else None
        self.sinks = param(ko, (heads,), ("heads",), zeros, scope) if sinks else None

    def keys_values(self, y_BSM: jax.Array, rotation: Rotation | None = None, *, hypotheses: bool = False) -> KeysValues:
        """Returns the keys and values of a sequence, to attend to or to cache; keys are rotated to their positions.

        Args:
          hypotheses: S are continuations of one row and not positions in it, so that no layout cuts them.
        """
        shard, axis = self.scope.shard, self.act_kv_axis
        length, keys = (None, None) if hypotheses else ("length", "keys")
        k_BSGD = add_bias(project(y_BSM, self.k[...], self.scope, dense=True), self.k_bias)
        v_BSGD = add_bias(project(y_BSM, self.v[...], self.scope, dense=True), self.v_bias)
        # Computed where their positions lie; if "keys" are whole, keys and values are gathered, not their inputs.
        k_BSGD, v_BSGD = (shard(x, "batch", length, axis, None) for x in (k_BSGD, v_BSGD))
        k_BSGD = self._normed(k_BSGD, self.k_norm)
        k_BSGD = rotate(k_BSGD, rotation, self.scope)
        k_BSGD, v_BSGD = (shard(x, "batch", keys, axis, None) for x in (k_BSGD, v_BSGD))
        return checkpoint_name(k_BSGD, "attention_in"), checkpoint_name(v_BSGD, "attention_in")

    def _queries(self, x_BLM: jax.Array, rotation: Rotation | None, length: str | None) -> jax.Array:
        q_BLND = add_bias(project(x_BLM, self.q[...], self.scope, dense=True), self.q_bias)
        q_BLND = self.scope.shard(q_BLND, "batch", length, "act_heads", None)
        q_BLND = self._normed(q_BLND, self.q_norm)
        q_BLND = rotate(q_BLND, rotation, self.scope)
        q_BLND = checkpoint_name(q_BLND, "attention_in")
        q_BLND = q_BLND * self.scale
        if self.per_dim_scale is not None:
            q_BLND = q_BLND * (jax.nn.softplus(self.per_dim_scale[...]) / np.log(2.0)).astype(q_BLND.dtype)
        return q_BLND

    def _normed(self, x_BLND: jax.Array, norm: Norm | None) -> jax.Array:
        if norm is None:
            return x_BLND
        if not self.qk_norm_over_all:
            return norm(x_BLND)
        return norm(x_BLND.reshape(*x_BLND.shape[:2], -1)).reshape(x_BLND.shape)

    def probabilities(self, x_BLM: jax.Array, kv: KeysValues, mask: AttentionMask, rotation: Rotation | None = None) -> jax.Array:
        """Returns how much of each key a query takes [B, N, L, S], for pictures of it: a matrix that attention itself avoids.

        Biases that layers share are left out.
        """
        q_BLND = self._queries(x_BLM, rotation, "length")
        table_NK = None if self.relative_bias is None else self.relative_bias[...]
        logits = masked_logits(q_BLND, kv[0], table_NK, mask, limit=self.cap, max_distance=self.max_distance)
        return jax.nn.softmax(logits)

    def __call__(
        self,
        x_BLM: jax.Array,
        kv: KeysValues,
        mask: AttentionMask,
        *,
        rotation: Rotation | None = None,
        bias_NK: jax.Array | None = None,
        rate: float = 0.0,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Attends from x to the keys and values that it sees.

        Args:
          rotation: of the queries, where positions are rotary.
          bias_NK: a bias of each head for each of K buckets of relative positions, where layers share one.
          rate: of dropout on probabilities.

        Raises:
          LayoutError: positions that the layout's shards do not divide.
        """
        k_BSGD, v_BSGD = kv
        length, res_length = (None, None) if mask.hypotheses else ("length", "res_length")
        q_BLND = self._queries(x_BLM, rotation, length)
        table_NK = bias_NK if self.relative_bias is None else self.relative_bias[...]
        logits = functools.partial(masked_logits, limit=self.cap, max_distance=self.max_distance)
        dropping = key is not None and rate > 0
        biased = table_NK is not None or self.sinks is not None
        if splash.applies(self.scope, q_BLND, k_BSGD, mask, biased=biased, dropping=dropping):
            out_BLND = splash.attend(q_BLND, k_BSGD, v_BSGD, mask, self.scope, cap=self.cap)
        else:
            if self.key_shards == 1 or mask.hypotheses:  # the few queries go to all keys
                attend = functools.partial(blocks.attend, logits, scope=self.scope, rate=rate)
            else:
                attend = ring.Ring(logits, mix, self.scope, self.act_kv_axis, rate)
            out_BLND, mass_BNL = attend(q_BLND, k_BSGD, v_BSGD, table_NK, mask, key=key)
            if self.sinks is not None:  # whose logit would have been among those of a softmax: mass / (mass + exp(sink))
                share_BNL = jax.nn.sigmoid(mass_BNL - self.sinks[...][:, None])
                out_BLND = (out_BLND * share_BNL.swapaxes(1, 2)[..., None]).astype(out_BLND.dtype)
        out_BLND = checkpoint_name(self.scope.shard(out_BLND, "batch", length, "act_heads", None), "context")
        y_BLM = add_bias(project(out_BLND, self.o[...], self.scope, contract=2, dense=True), self.o_bias)
        return checkpoint_name(self.scope.shard(y_BLM, "batch", res_length, "act_embed"), "attention_out")
