"""The layer of every Transformer here: of encoders, of decoders, and of decoders that attend to a source.

B rows, L positions, S keys, M model, V vocabulary. A stack is a `Block` with a leading axis "layers", run by `scan`. A decoder
that generates passes a cache of keys and values through the same code, so that decoding a token at a time cannot differ from
reading the whole row.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts.attention.config import LayerVariant, Rotary
from models.parts.attention.latent import LatentAttention
from models.parts.attention.mask import AttentionMask
from models.parts.attention.module import Attention, KeysValues
from models.parts.attention.rotary import Rotation, rotation
from models.parts.kv_cache import LayerCache, Step, from_cache
from models.parts.layers import FeedForward, Norm, add_bias, dropout, project, soft_cap, split_key
from models.parts.losses import Ratio
from models.parts.moe.config import MoeConfig
from models.parts.moe.layer import Moe
from models.parts.transformer_config import BlockConfig
from models.sharding.component import Component
from models.sharding.params import scan

Key = jax.Array | None  # None: evaluation, nothing random
Statistics = dict[str, Ratio]  # of a mixture's routing; empty for a dense layer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Source:
    """The sequence that a decoder attends to.

    Attributes:
      mask: which of its positions a query attends to.
      x_BSM: its vectors; None where every layer has its keys and values of it in a cache.
    """

    mask: AttentionMask
    x_BSM: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerSettings:
    """In what a layer of a stack differs from others, as numbers that travel with its parameters.

    Attributes:
      window: int32, how many positions a query sees; 0 is all.
      table: int32, which of the geometry's rotations its queries and keys have.
    """

    window: jax.Array
    table: jax.Array

    def at(self, layer: int) -> "LayerSettings":
        """Returns the kind of a layer of a unit, of which there may be just one."""
        return jax.tree.map(lambda x: x[layer] if x.ndim else x, self)


def kinds(c: BlockConfig, layers: jax.Array) -> LayerSettings | None:
    """Returns the kinds of these layers of a stack, by number; None where all are alike."""
    if len(c.kinds) < 2:
        return None
    tables = _tables(c)
    pattern = ([k.window for k in c.kinds], [tables.index(_turning(k)) for k in c.kinds])
    return LayerSettings(*(jnp.asarray(column, jnp.int32)[layers % len(c.kinds)] for column in pattern))


def _turning(kind: LayerVariant) -> tuple[bool, float, bool]:
    """Returns what decides how queries and keys are turned."""
    return (kind.rotary, kind.base, kind.scaled) if kind.rotary else (False, 0.0, False)


def _tables(c: BlockConfig) -> list[tuple[bool, float, bool]]:
    """Returns the ways in which layers turn queries and keys."""
    return list(dict.fromkeys(_turning(kind) for kind in c.kinds or (LayerVariant(),)))


def _rotation(c: BlockConfig, positions_BL: jax.Array, reach_BL: jax.Array | None) -> Rotation | None:
    """Returns the rotation of all layers; if they differ, one after the other along a third dimension."""
    if c.positions != "rotary":
        return None
    rotations = []
    for turns, base, scaled in _tables(c):
        rotary = c.rotary if scaled or c.rotary is None else Rotary(dims=c.rotary.dims)
        cos, sin = rotation(positions_BL, c.head_dim, base or c.rotary_base, rotary, reach_BL)
        rotations.append((cos, sin) if turns else (jnp.ones_like(cos), jnp.zeros_like(sin)))
    if len(rotations) == 1:
        return rotations[0] if _tables(c)[0][0] else None
    return jnp.stack([cos for cos, _ in rotations], axis=2), jnp.stack([sin for _, sin in rotations], axis=2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionInputs:
    """The positions of tokens and what they attend to, the same for all layers but for their kinds.

    Attributes:
      mask: which keys a query attends to.
      rotation: of queries and new keys, where positions are rotary; [B, L, tables, D / 2] where layers differ.
      step: that is decoded with caches.
      bias_1NK: a bias of each head for each of K buckets of relative positions, where the layers of a stack share one.
      real_BL: False for padding, which a mixture routes nowhere; None where there is no mixture.
      source: what a decoder's second attention attends to.
    """

    mask: AttentionMask
    rotation: Rotation | None = None
    step: Step | None = None
    bias_1NK: jax.Array | None = None
    real_BL: jax.Array | None = None
    source: Source | None = None

    def of(self, kind: LayerSettings | None) -> "AttentionInputs":
        """Returns the geometry as a layer of this kind has it."""
        if kind is None:
            return self
        turned = self.rotation
        if turned is not None and turned[0].ndim == 4:
            cos, sin = (jax.lax.dynamic_index_in_dim(x, kind.table, 2, keepdims=False) for x in turned)
            turned = (cos, sin)
        return dataclasses.replace(self, mask=self.mask.within(kind.window), rotation=turned)


def attention_inputs(
    c: BlockConfig, positions_BL: jax.Array, mask: AttentionMask, reach_BL: jax.Array | None = None
) -> AttentionInputs:
    """Returns the geometry of whole rows.

    Args:
      reach_BL: how many positions the example of each will have (positions may be 1); by default those that are in the row.
    """
    if len(c.kinds) == 1:
        mask = mask.within(c.kinds[0].window)
    if reach_BL is None and c.rotary is not None and c.rotary.scaling == "longrope":
        reach_BL = _reach(positions_BL, mask.segments_BL)
    return AttentionInputs(mask, _rotation(c, positions_BL, reach_BL))


def _reach(positions_BL: jax.Array, segments_BL: jax.Array) -> jax.Array:
    """Returns how many positions the example of each has, whatever the order of positions."""

    def of_row(positions_L: jax.Array, segments_L: jax.Array) -> jax.Array:
        return jax.ops.segment_max(positions_L, segments_L, len(segments_L) + 1)[segments_L] + 1

    return jax.vmap(of_row)(*jnp.broadcast_arrays(positions_BL, segments_BL))


def cached_attention_inputs(c: BlockConfig, step: Step) -> AttentionInputs:
    """Returns the geometry of the step that is decoded, B * K rows of one position."""
    return dataclasses.replace(attention_inputs(c, step.positions_BK, step.mask(), step.slots.reach_B1), step=step)


def norm(c: BlockConfig, scope: Component) -> Norm:
    """Returns the norm that the configuration describes."""
    return Norm(c.model_dim, scope, kind=c.norm, bias=c.norm_bias, eps=c.norm_eps)


class Unnormed(nnx.Module):
    """Stands where a layer has no norm, and returns what it is given."""

    def __call__(self, x_BLM: jax.Array) -> jax.Array:
        return x_BLM


class Block(nnx.Module):
    """One layer: attention, attention to a source where there is one, and a feed-forward network or a mixture of experts.

    Each is added to the residual stream, with a norm in the configuration's order.

    Args:
      attends_to_source: adds a second attention, whose keys and values are another sequence's.
      moe: the mixture of experts that takes the feed-forward network's place; None keeps it.
      causal: whether the layer is a decoder's, where a token's experts may not depend on later tokens.
      normed: whether attention has a norm.
    """

    def __init__(
        self,
        c: BlockConfig,
        key: jax.Array,
        scope: Component,
        *,
        attends_to_source: bool = False,
        moe: MoeConfig | None = None,
        causal: bool = False,
        normed: bool = True,
    ):
        k1, *key_source, k2 = jax.random.split(key, 3 if attends_to_source else 2)
        self.scope, self.order, self.rate, self.hidden_rate = scope, c.order, c.dropout, c.hidden_dropout
        sandwich = c.order == "sandwich"
        self.attention_norm = norm(c, scope / "attention") if normed else Unnormed()
        self.attention_out_norm = norm(c, scope / "attention") if sandwich else None
        self.attention = _attention(c, k1, scope / "attention", buckets=c.buckets if c.positions == "relative" else 0)
        cross = scope / "cross_attention"
        self.cross_norm = norm(c, cross) if attends_to_source else None
        self.cross_attention = _attention(c, key_source[0], cross) if attends_to_source else None
        inner = scope / ("ffn" if moe is None else "moe")
        self.ffn_norm = None if c.order == "parallel" else norm(c, inner)
        self.ffn_out_norm = norm(c, inner) if sandwich else None
        settings: dict[str, Any] = dict(activation=c.activation, gated=c.gated, bias=c.ffn_bias, init_scale=c.init_scale)
        if moe is None:
            self.ffn = FeedForward(c.model_dim, c.hidden_dim, k2, inner, **settings)
        else:
            self.ffn = Moe(moe, c.model_dim, c.hidden_dim, k2, inner, causal=causal, **settings)

    @property
    def layers(self) -> "list[Block]":
        """The block itself, as the only layer of a unit (models/parts/layer_group.py)."""
        return [self]

    def __call__(
        self, x_BLM: jax.Array, g: AttentionInputs, cache: LayerCache | None, key: Key, kind: LayerSettings | None = None
    ) -> tuple[jax.Array, tuple[LayerCache | None, Statistics]]:
        """Returns (y_BLM, (the cache with the new keys and values in it, statistics of the mixture))."""
        keys, g = iter(split_key(key, 6)), g.of(kind)
        x_BLM = self.scope.shard(x_BLM, "batch", "res_length", "act_embed")

        def attend(y_BLM: jax.Array) -> tuple[jax.Array, LayerCache | None]:
            if g.step is not None:
                y_BLM = g.step.by_row(y_BLM)
            kv, kept = self.attention.keys_values(y_BLM, g.rotation, hypotheses=g.mask.hypotheses), None
            if g.step is not None and cache is not None:
                kept = dataclasses.replace(cache, own=g.step.write(cache.own, kv))
                kv = from_cache(kept.own)
            bias_NK = None if g.bias_1NK is None else g.bias_1NK[0]
            z_BLM = self.attention(y_BLM, kv, g.mask, rotation=g.rotation, bias_NK=bias_NK, rate=self.rate, key=next(keys))
            return dropout(z_BLM.reshape(x_BLM.shape), self.rate, next(keys)), kept

        def attend_to_source(y_BLM: jax.Array) -> tuple[jax.Array, None]:
            assert self.cross_attention is not None and g.source is not None
            if g.step is not None and cache is not None and cache.source is not None:
                y_BLM, kv = g.step.by_row(y_BLM), from_cache(cache.source)
            else:
                assert g.source.x_BSM is not None
                kv = self.cross_attention.keys_values(g.source.x_BSM)
            z_BLM = self.cross_attention(y_BLM, kv, g.source.mask, rate=self.rate, key=next(keys))
            return dropout(z_BLM.reshape(x_BLM.shape), self.rate, next(keys)), None

        def feed_forward(y_BLM: jax.Array) -> tuple[jax.Array, Statistics]:
            if isinstance(self.ffn, Moe):
                assert g.real_BL is not None
                y_BLM, statistics = self.ffn(y_BLM, g.real_BL, next(keys))
            elif self.hidden_rate:
                y_BLM, statistics = self.ffn(y_BLM, self.hidden_rate, next(keys)), {}
            else:
                y_BLM, statistics = self.ffn(y_BLM), {}
            return dropout(y_BLM, self.rate, next(keys)), statistics

        if self.order == "parallel":  # PaLM (section 2)
            y_BLM = self.attention_norm(x_BLM)
            if self.scope.on_tpu:  # whose compiler would norm anew within every tile of each product that reads it
                y_BLM = jax.lax.optimization_barrier(y_BLM)
            (z_BLM, kept), (f_BLM, statistics) = attend(y_BLM), feed_forward(y_BLM)
            return x_BLM + z_BLM + f_BLM, (kept, statistics)
        x_BLM, kept = self._residual(x_BLM, self.attention_norm, attend, self.attention_out_norm)
        if self.cross_norm is not None:
            x_BLM, _ = self._residual(x_BLM, self.cross_norm, attend_to_source)
        x_BLM, statistics = self._residual(x_BLM, self.ffn_norm, feed_forward, self.ffn_out_norm)
        return x_BLM, (kept, statistics)

    def _residual(
        self,
        x_BLM: jax.Array,
        norm: Norm | Unnormed | None,
        sublayer: Callable[[jax.Array], tuple[jax.Array, Any]],
        out_norm: Norm | None = None,
    ) -> tuple[jax.Array, Any]:
        """Returns (the residual stream after a sub-layer, what else the sub-layer returns)."""
        assert norm is not None
        if self.order in ("pre", "sandwich"):  # GPT-2 (section 2.3); Gemma 2
            y_BLM, other = sublayer(norm(x_BLM))
            return x_BLM + (y_BLM if out_norm is None else out_norm(y_BLM)), other
        if self.order == "reordered":  # OLMo 2
            y_BLM, other = sublayer(x_BLM)
            return x_BLM + norm(y_BLM), other
        y_BLM, other = sublayer(x_BLM)  # "post": Vaswani et al. 2017 (section 3.1), BERT
        return norm(x_BLM + y_BLM), other


def _attention(c: BlockConfig, key: jax.Array, scope: Component, *, buckets: int = 0) -> Attention | LatentAttention:
    if c.latent is not None:
        scalar = dict(scaled=c.attention_scalar, init_scale=c.init_scale)
        return LatentAttention(c.latent, c.model_dim, c.heads, c.head_dim, key, scope, **scalar)
    return Attention(
        c.model_dim,
        c.heads,
        c.head_dim,
        key,
        scope,
        kv_heads=c.kv_heads,
        bias=c.attention_bias,
        out_bias=c.attention_bias if c.output_bias == "same" else c.output_bias == "yes",
        key_bias=c.key_bias,
        qk_norm=c.qk_norm_kind if c.qk_norm else "",
        qk_norm_over=c.qk_norm_over,
        qk_norm_eps=c.norm_eps,
        per_dim_scale=c.per_dim_scale,
        buckets=buckets,
        max_distance=c.max_distance,
        cap=c.logit_cap,
        sinks=c.sinks,
        scaled=(c.attention_scalar or c.head_dim) if c.attention_scale else 0,
        init_scale=c.init_scale,
    )


def run(blocks: Block, x_BLM: jax.Array, g: AttentionInputs, keys: Key, of_layers: LayerSettings | None = None) -> jax.Array:
    """Runs a stack of dense layers; `keys` and their kinds are [layers], the former None outside training."""

    def layer(x_BLM, inputs, g: AttentionInputs):
        block, key, kind = inputs
        return block(x_BLM, g, None, key, kind)[0], None

    return scan(layer, x_BLM, (blocks, keys, of_layers), g, scope=blocks.scope)[0]


def unstacked(modules: Any) -> list[Any]:
    """Returns the modules of a stack, one by one.

    Decoding takes a stack apart once: a loop over it would copy each layer's parameters and cache out of it at every step.
    """
    layers = len(jax.tree.leaves(modules)[0])
    return [jax.tree.map(lambda x, i=i: jax.lax.index_in_dim(x, i, keepdims=False), modules) for i in range(layers)]


@jax.jit
def decoded(
    layer: Any, x_R1M: jax.Array, g: AttentionInputs, cache: Any, kind: LayerSettings | None = None
) -> tuple[jax.Array, Any]:
    """Returns (y_R1M, the cache with the step in it) of a block, or of a unit, at a step that is decoded.

    Layers stand one after the other there (`unstacked`). Because this function is jitted, those that are alike are traced and
    lowered once; the compiler inlines it.
    """
    y_R1M, (cache, _) = layer(x_R1M, g, cache, None, kind)
    return y_R1M, cache


def keys_values(
    stack: Any, c: BlockConfig, x_BLM: jax.Array, g: AttentionInputs, of_layers: LayerSettings | None = None
) -> tuple[jax.Array, list[KeysValues]]:
    """Returns (y_BLM, the keys and values [layers, B, L, G, D] that each layer makes of a row: a cache's beginning).

    Args:
      stack: of blocks, or of units (models/parts/layer_group.py), each of whose layers has an item in the list.
      of_layers: the kinds of layers of the stack.
    """

    def layer(x_BLM, inputs, _):
        unit, kind = inputs
        kept = []
        for i, block in enumerate(unit.layers):
            of_layer = kind and kind.at(i)
            y_BLM = x_BLM if c.order in ("post", "reordered") else block.attention_norm(x_BLM)
            kept.append(block.attention.keys_values(y_BLM, g.of(of_layer).rotation))
            x_BLM, _ = block(x_BLM, g, None, None, of_layer)
        return x_BLM, kept

    return scan(layer, x_BLM, (stack, of_layers))


def logits(
    x_BLM: jax.Array,
    w_MV: jax.Array,
    scope: Component,
    *,
    bias: nnx.Param | None = None,
    cap: float = 0.0,
    positions: str | None = "length",
) -> jax.Array:
    """Returns the output logits [B, L, V] of the last layer's vectors.

    Args:
      scope: the component that owns the matrix: the embedding where it is tied.
      cap: bounds them softly (layers.soft_cap).
      positions: the logical name of the second dimension.
    """
    y_BLV = add_bias(project(x_BLM, w_MV, scope), bias)
    return soft_cap(scope.shard(y_BLV, "batch", positions, "act_vocab"), cap)
