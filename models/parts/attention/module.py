"""Multi-head attention. B batch, L queries, S keys, M model, N heads, G heads of keys and values, D size of a head."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.parts.attention import blocks, ring, splash
from models.parts.attention.config import Alibi, Disentangled, GatedBuckets, GroupedQuery, RelativeBuckets, RelativePatches
from models.parts.attention.logits import Distances, masked_logits, mix
from models.parts.attention.mask import AttentionMask
from models.parts.attention.rotary import Rotation, rotate
from models.parts.layers import Norm, add_bias, dropout, project
from models.parts.transformer_config import BlockConfig
from models.sharding.component import Component
from models.sharding.params import normal, ones, param, zeros

KeysValues = tuple[jax.Array, jax.Array]  # [B, S, G, D] each
_GATES = 4  # numbers whose sum makes each of the two gates of a bias, as released


class Attention(nnx.Module):
    """Scaled dot-product attention over N heads of size D (N * D need not be M), with the options of `GroupedQuery`.

    It computes models/parts/attention/plain.py, and what these options add. Where the layout cuts "keys", keys and values go
    round in a ring (ring.py); long rows on TPUs are left to a kernel (splash.py); everything else is blocks.py.

    Args:
      c: the settings of the layer.
      buckets: of relative positions, each with a learned bias per head (T5, section 2.1), where the layer has its own.
      source_dim: width of what keys and values are made of; 0 is that of the queries' input.
    """

    def __init__(
        self,
        c: BlockConfig,
        key: jax.Array,
        scope: Component,
        *,
        buckets: RelativeBuckets | RelativePatches | None = None,
        source_dim: int = 0,
    ):
        a, m = c.attention, c.model_dim
        source_dim = source_dim or m
        assert isinstance(a, GroupedQuery)
        self.scope, self.cap, self.qk_norm_over_all = scope, a.logit_cap, a.qk_norm is not None and a.qk_norm.over == "all"
        # Distances are the layer's own or of a table that layers share.
        self.max_distance: int = getattr(c.positions, "max_distance", 0)
        self.slopes = c.positions.slopes(a.heads) if isinstance(c.positions, Alibi) else None
        self.patches = buckets if isinstance(buckets, RelativePatches) else None
        self.disentangled = isinstance(c.positions, Disentangled)
        self.scale = ((a.scale_dim or a.head_dim) * getattr(c.positions, "products", 1)) ** -0.5
        self.key_shards = ring.num_shards(scope)
        # Fewer heads of keys and values than of queries may be cut differently, or not at all: they have a name of their own.
        kv_axis = "heads" if a.groups == a.heads else "kv_heads"
        self.act_kv_axis = f"act_{kv_axis}"
        kq, kk, kv, ko = jax.random.split(key, 4)
        init, out = normal((c.init_scale / m) ** 0.5), normal((c.init_scale / (a.heads * a.head_dim)) ** 0.5)
        # Logits begin alike in size: what does not scale them has smaller queries.
        init_q = normal((c.init_scale / (m * a.head_dim)) ** 0.5) if a.scale_dim == 1 else init
        queries, keys, outputs = ("embed", "heads", "kv"), ("embed", kv_axis, "kv"), ("heads", "kv", "embed")
        self.q = param(kq, (m, a.heads, a.head_dim), queries, init_q, scope)
        of_source = normal((c.init_scale / source_dim) ** 0.5)
        self.k = param(kk, (source_dim, a.groups, a.head_dim), keys, of_source, scope)
        self.v = param(kv, (source_dim, a.groups, a.head_dim), keys, of_source, scope)
        self.o = param(ko, (a.heads, a.head_dim, m), outputs, out, scope)
        self.q_bias = param(kq, (a.heads, a.head_dim), queries[1:], zeros, scope) if "q" in a.biases else None
        self.k_bias = param(kk, (a.groups, a.head_dim), keys[1:], zeros, scope) if "k" in a.biases else None
        self.v_bias = param(kv, (a.groups, a.head_dim), keys[1:], zeros, scope) if "v" in a.biases else None
        self.o_bias = param(ko, (m,), ("embed",), zeros, scope) if "o" in a.biases else None
        self.q_norm, self.k_norm = self._qk_norm(c, a.heads, "heads"), self._qk_norm(c, a.groups, kv_axis)
        self.per_dim_scale = param(kq, (a.head_dim,), ("kv",), zeros, scope) if a.per_dim_scale else None
        self.relative_bias = param(ko, (a.heads, buckets.buckets), ("heads", "buckets"), zeros, scope) if buckets else None
        self.sinks = param(ko, (a.heads,), ("heads",), zeros, scope) if a.sinks else None
        gated = isinstance(c.positions, GatedBuckets)
        self.gate = param(ko, (a.head_dim, 2 * _GATES), ("kv", "gate"), normal(a.head_dim**-0.5), scope) if gated else None
        self.gate_bias = param(ko, (2 * _GATES,), ("gate",), zeros, scope) if gated else None
        self.gate_scale = param(ko, (a.heads,), ("heads",), ones, scope) if gated else None

    def _qk_norm(self, c: BlockConfig, heads: int, axis: str) -> Norm | None:
        a = c.attention
        if not isinstance(a, GroupedQuery) or a.qk_norm is None:
            return None
        size, axis = (heads * a.head_dim, axis) if self.qk_norm_over_all else (a.head_dim, "kv")
        return Norm(size, self.scope, kind=a.qk_norm.kind, eps=c.norm.eps, axis=axis)

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
        return self._scaled(checkpoint_name(q_BLND, "attention_in"))

    def _scaled(self, q_BLND: jax.Array) -> jax.Array:
        q_BLND = q_BLND * self.scale
        if self.per_dim_scale is not None:
            q_BLND = q_BLND * (jax.nn.softplus(self.per_dim_scale[...]) / np.log(2.0)).astype(q_BLND.dtype)
        return q_BLND

    def _table(
        self, shared_NK: jax.Array | None, rate: float = 0.0, key: jax.Array | None = None
    ) -> jax.Array | Distances | None:
        """Returns what logits have of relative positions (logits.masked_logits), the layer's own or of what layers share; vectors
        are dropped out at this rate."""
        if self.disentangled and shared_NK is not None:
            return self._distances(shared_NK, rate, key)
        if self.slopes is not None:
            return jnp.asarray(self.slopes)[:, None]
        return shared_NK if self.relative_bias is None else self.relative_bias[...]

    def _distances(self, x_KM: jax.Array, rate: float, key: jax.Array | None) -> Distances:
        """Returns the keys and queries of buckets of relative positions, by the projections of tokens."""
        x_1KM = dropout(x_KM, rate, None if key is None else jax.random.fold_in(key, 1))[None]
        k_1KGD = add_bias(project(x_1KM, self.k[...], self.scope, dense=True), self.k_bias)
        q_1KND = add_bias(project(x_1KM, self.q[...], self.scope, dense=True), self.q_bias)
        k_1KGD = self.scope.shard(k_1KGD, None, None, self.act_kv_axis, None)
        q_1KND = self.scope.shard(q_1KND, None, None, "act_heads", None)
        return self._normed(k_1KGD, self.k_norm), self._scaled(self._normed(q_1KND, self.q_norm))

    def _gates(self, x_BLM: jax.Array) -> jax.Array | None:
        """Returns the factor of the biases of relative positions [B, N, L] for each query and head; None where there is none."""
        if self.gate is None or self.gate_bias is None or self.gate_scale is None:
            return None
        x_BLND = x_BLM.reshape(*x_BLM.shape[:2], -1, self.gate.shape[0])
        y_BLNG = add_bias(project(x_BLND, self.gate[...], self.scope), self.gate_bias)
        y_BLNG = self.scope.shard(y_BLNG, "batch", "length", "act_heads", None)
        a_BLN, b_BLN = (jax.nn.sigmoid(jnp.sum(y, axis=-1)) for y in jnp.split(y_BLNG, 2, axis=-1))
        return (a_BLN * (b_BLN * self.gate_scale[...].astype(b_BLN.dtype) - 1) + 2).swapaxes(1, 2)

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
        return jax.nn.softmax(self.biased_logits(q_BLND, kv[0], self._table(None), mask, gate_BNL=self._gates(x_BLM)))

    @property
    def biased_logits(self) -> Callable[..., jax.Array]:
        """Returns `masked_logits` with the layer's settings."""
        return functools.partial(masked_logits, limit=self.cap, max_distance=self.max_distance, patches=self.patches)

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
          bias_NK: a bias of each head for each of K buckets of relative positions, or for each pair of them [N, L, S], where
            layers share one; or the vectors of buckets [K, M] (`Disentangled`).
          rate: of dropout on probabilities.

        Raises:
          LayoutError: positions that the layout's shards do not divide.
        """
        k_BSGD, v_BSGD = kv
        length, res_length = (None, None) if mask.hypotheses else ("length", "res_length")
        q_BLND = self._queries(x_BLM, rotation, length)
        table = self._table(bias_NK, rate, key)
        logits = functools.partial(self.biased_logits, gate_BNL=self._gates(x_BLM))
        dropping = key is not None and rate > 0
        biased = table is not None or self.sinks is not None
        if splash.applies(self.scope, q_BLND, k_BSGD, mask, biased=biased, dropping=dropping):
            out_BLND = splash.attend(q_BLND, k_BSGD, v_BSGD, mask, self.scope, cap=self.cap)  # which names its own context
        else:
            if self.key_shards == 1 or mask.hypotheses:  # the few queries go to all keys
                attend = functools.partial(blocks.attend, logits, scope=self.scope, rate=rate)
            else:
                attend = ring.Ring(logits, mix, self.scope, self.act_kv_axis, rate)
            out_BLND, mass_BNL = attend(q_BLND, k_BSGD, v_BSGD, table, mask, key=key)
            if self.sinks is not None:  # whose logit would have been among those of a softmax: mass / (mass + exp(sink))
                share_BNL = jax.nn.sigmoid(mass_BNL - self.sinks[...][:, None])
                out_BLND = (out_BLND * share_BNL.swapaxes(1, 2)[..., None]).astype(out_BLND.dtype)
            out_BLND = checkpoint_name(out_BLND, "context")
        out_BLND = self.scope.shard(out_BLND, "batch", length, "act_heads", None)
        y_BLM = add_bias(project(out_BLND, self.o[...], self.scope, contract=2, dense=True), self.o_bias)
        return checkpoint_name(self.scope.shard(y_BLM, "batch", res_length, "act_embed"), "attention_out")
