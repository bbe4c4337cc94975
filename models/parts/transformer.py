"""The layer of every Transformer here: of encoders, of decoders, and of decoders that attend to a source.

B rows, L positions, S keys, M model, V vocabulary. A stack is a `Block` with a leading axis "layers", run by `scan`. A decoder
that generates passes a cache of keys and values through the same code, so that decoding a token at a time cannot differ from
reading the whole row.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts.attention.config import Latent, LayerVariant, LongRope, RelativeBuckets, RelativePatches, Rotary
from models.parts.attention.latent import LatentAttention
from models.parts.attention.mask import AttentionMask
from models.parts.attention.module import Attention, KeysValues
from models.parts.attention.rotary import Rotation, rotation
from models.parts.kv_cache import LayerCache, Step, from_cache
from models.parts.layers import FeedForward, Norm, add_bias, dropout, multiplied, project, scale_by, soft_cap
from models.parts.losses import Ratio
from models.parts.moe.config import MoeConfig
from models.parts.moe.layer import Moe
from models.parts.transformer_config import BlockConfig
from models.protocol import Context
from models.sharding.component import Component
from models.sharding.params import constant, param, scan

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
    """Settings of a layer that differ within its stack, as arrays that are scanned along with the parameters.

    Attributes:
      window: int32, how many positions a query sees; 0 is all.
      table: int32, which of the rotations its queries and keys have.
    """

    window: jax.Array
    table: jax.Array

    def at(self, layer: int) -> "LayerSettings":
        """Returns the settings of a layer of a group, of which there may be just one."""
        return jax.tree.map(lambda x: x[layer] if x.ndim else x, self)


def layer_settings(c: BlockConfig, layers: jax.Array) -> LayerSettings | None:
    """Returns the settings of these layers of a stack, by number; None where all are alike."""
    if len(c.attention.pattern) < 2:
        return None
    tables = _tables(c)
    pattern = ([v.window for v in c.attention.pattern], [tables.index(_turning(v)) for v in c.attention.pattern])
    return LayerSettings(*(jnp.asarray(column, jnp.int32)[layers % len(c.attention.pattern)] for column in pattern))


def _turning(variant: LayerVariant) -> tuple[bool, float, bool]:
    """Returns what decides how queries and keys are turned."""
    return (variant.rotary, variant.base, variant.scaled) if variant.rotary else (False, 0.0, False)


def _tables(c: BlockConfig) -> list[tuple[bool, float, bool]]:
    """Returns the ways in which layers turn queries and keys."""
    return list(dict.fromkeys(_turning(variant) for variant in c.attention.pattern or (LayerVariant(),)))


def _rotation(c: BlockConfig, positions_BL: jax.Array, reach_BL: jax.Array | None) -> Rotation | None:
    """Returns the rotation of all layers; if they differ, one after the other along a third dimension."""
    if not isinstance(c.positions, Rotary):
        return None
    rotations = []
    for turns, base, scaled in _tables(c):
        scaling = c.positions.scaling if scaled else None
        rotary = dataclasses.replace(c.positions, base=base or c.positions.base, scaling=scaling)
        cos, sin = rotation(positions_BL, c.attention.rotary_dim, rotary, reach_BL)
        rotations.append((cos, sin) if turns else (jnp.ones_like(cos), jnp.zeros_like(sin)))
    if len(rotations) == 1:
        return rotations[0] if _tables(c)[0][0] else None
    return jnp.stack([cos for cos, _ in rotations], axis=2), jnp.stack([sin for _, sin in rotations], axis=2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionInputs:
    """The positions of tokens and what they attend to, the same for all layers but for their settings.

    Attributes:
      mask: which keys a query attends to.
      rotation: of queries and new keys, where positions are rotary; [B, L, tables, D / 2] where layers differ.
      step: that is decoded with caches.
      bias_1NK: a bias of each head for each of K buckets of relative positions, or for each pair of them [1, N, L, S], where
        the layers of a stack share one; or vectors of the buckets [1, K, M] (`Disentangled`).
      real_BL: False for padding, which a mixture routes nowhere; None where there is no mixture.
      source: what a decoder's second attention attends to.
    """

    mask: AttentionMask
    rotation: Rotation | None = None
    step: Step | None = None
    bias_1NK: jax.Array | None = None
    real_BL: jax.Array | None = None
    source: Source | None = None

    def of(self, layer: LayerSettings | None) -> "AttentionInputs":
        """Returns the inputs as a layer of these settings has them."""
        if layer is None:
            return self
        turned = self.rotation
        if turned is not None and turned[0].ndim == 4:
            cos, sin = (jax.lax.dynamic_index_in_dim(x, layer.table, 2, keepdims=False) for x in turned)
            turned = (cos, sin)
        return dataclasses.replace(self, mask=self.mask.within(layer.window), rotation=turned)


def attention_inputs(
    c: BlockConfig, positions_BL: jax.Array, mask: AttentionMask, reach_BL: jax.Array | None = None
) -> AttentionInputs:
    """Returns the inputs of whole rows.

    Args:
      reach_BL: how many positions the example of each will have (positions may be 1); by default those that are in the row.
    """
    if len(c.attention.pattern) == 1:
        mask = mask.within(c.attention.pattern[0].window)
    if reach_BL is None and isinstance(c.positions, Rotary) and isinstance(c.positions.scaling, LongRope):
        reach_BL = _reach(positions_BL, mask.segments_BL)
    return AttentionInputs(mask, _rotation(c, positions_BL, reach_BL))


def _reach(positions_BL: jax.Array, segments_BL: jax.Array) -> jax.Array:
    """Returns how many positions the example of each has, whatever the order of positions."""

    def of_row(positions_L: jax.Array, segments_L: jax.Array) -> jax.Array:
        return jax.ops.segment_max(positions_L, segments_L, len(segments_L) + 1)[segments_L] + 1

    return jax.vmap(of_row)(*jnp.broadcast_arrays(positions_BL, segments_BL))


def norm(c: BlockConfig, scope: Component, size: int = 0) -> Norm:
    """Returns the norm that the configuration describes, of vectors of this size or of the model's."""
    return Norm(size or c.model_dim, scope, kind=c.norm.kind, bias=c.norm.bias, eps=c.norm.eps)


@dataclasses.dataclass(frozen=True)
class Role:
    """The differences of a layer from others of its model.

    Attributes:
      attends_to_source: adds a second attention, whose keys and values are another sequence's.
      moe: the mixture of experts that takes the feed-forward network's place; None keeps it.
      causal: whether the layer is a decoder's, where a token's experts may not depend on later tokens.
      normed: whether attention has a norm.
      source_dim: width of the source's vectors; 0 is the model's.
    """

    attends_to_source: bool = False
    moe: MoeConfig | None = None
    causal: bool = False
    normed: bool = True
    source_dim: int = 0


class Unnormed(nnx.Module):
    """Stands where a layer has no norm, and returns what it is given."""

    def __call__(self, x_BLM: jax.Array) -> jax.Array:
        return x_BLM


class Block(nnx.Module):
    """One layer: attention, attention to a source where there is one, and a feed-forward network or a mixture of experts.

    Each is added to the residual stream, with a norm in the configuration's order.

    Args:
      role: what sets the layer apart from the others of its model.
    """

    def __init__(self, c: BlockConfig, key: jax.Array, scope: Component, role: Role = Role()):
        k1, *key_source, k2 = jax.random.split(key, 3 if role.attends_to_source else 2)
        self.scope, self.order, self.rate, self.hidden_rate = scope, c.norm.order, c.dropout, c.feed_forward.dropout
        self.branch_scale = c.norm.branch_scale
        sandwich = self.order == "sandwich"
        self.attention_norm = norm(c, scope / "attention") if role.normed else Unnormed()
        self.attention_out_norm = norm(c, scope / "attention") if sandwich else None
        self.attention = _attention(c, k1, scope / "attention")
        cross = scope / "cross_attention"
        self.cross_norm = norm(c, cross) if role.attends_to_source else None
        self.cross_attention = _attention(c, key_source[0], cross, role) if role.attends_to_source else None
        inner = scope / ("ffn" if role.moe is None else "moe")
        self.ffn_norm = Unnormed() if self.order == "parallel" else norm(c, inner)
        self.ffn_out_norm = norm(c, inner) if sandwich else None
        self.attention_scale = _layer_scale(c, scope / "attention")
        self.cross_scale = _layer_scale(c, cross) if role.attends_to_source else None
        self.ffn_scale = _layer_scale(c, inner)
        if role.moe is None:
            self.ffn = FeedForward(c.model_dim, c.feed_forward, k2, inner, c.init_scale)
        else:
            self.ffn = Moe(role.moe, c, k2, inner, causal=role.causal)

    @property
    def layers(self) -> "list[Block]":
        """The block itself, as the only layer of a group (models/parts/layer_group.py)."""
        return [self]

    def __call__(
        self,
        x_BLM: jax.Array,
        g: AttentionInputs,
        context: Context,
        cache: LayerCache | None = None,
        layer: LayerSettings | None = None,
    ) -> tuple[jax.Array, tuple[LayerCache | None, Statistics]]:
        """Returns (y_BLM, (the cache with the new keys and values in it, statistics of the mixture))."""
        contexts, g = context.split(6), g.of(layer)
        x_BLM = self.scope.shard(x_BLM, "batch", "res_length", "act_embed")
        if self.order in ("parallel", "parallel_two"):  # PaLM (section 2), GPT-NeoX (section 2.1)
            y_BLM = self.attention_norm(x_BLM)
            # The compiler for TPUs would norm anew within every tile of each product that reads it.
            if self.order == "parallel" and self.scope.on_tpu:
                y_BLM = jax.lax.optimization_barrier(y_BLM)
            z_BLM, new = self._attend(y_BLM, g, contexts[:2], cache)
            y_BLM = y_BLM if self.order == "parallel" else self.ffn_norm(x_BLM)
            f_BLM, statistics = self._feed_forward(y_BLM, g, contexts[2:])
            z_BLM, f_BLM = (multiplied(x, self.branch_scale) for x in (z_BLM.reshape(x_BLM.shape), f_BLM))
            return x_BLM + z_BLM + f_BLM, (new, statistics)
        y_BLM, new = self._attend(self._normed(x_BLM, self.attention_norm), g, contexts[:2], cache)
        x_BLM = self._added(x_BLM, y_BLM.reshape(x_BLM.shape), self.attention_norm, self.attention_out_norm)
        if self.cross_norm is not None:
            y_BLM = self._attend_to_source(self._normed(x_BLM, self.cross_norm), g, contexts[2:4], cache)
            x_BLM, contexts = self._added(x_BLM, y_BLM.reshape(x_BLM.shape), self.cross_norm), contexts[2:]
        y_BLM, statistics = self._feed_forward(self._normed(x_BLM, self.ffn_norm), g, contexts[2:])
        return self._added(x_BLM, y_BLM, self.ffn_norm, self.ffn_out_norm), (new, statistics)

    def _attend(
        self, y_BLM: jax.Array, g: AttentionInputs, contexts: list[Context], cache: LayerCache | None
    ) -> tuple[jax.Array, LayerCache | None]:
        """Returns (the output of self-attention, the cache with the new keys and values in it)."""
        if g.step is not None:
            y_BLM = g.step.by_row(y_BLM)
        kv, new = self.attention.keys_values(y_BLM, g.rotation, hypotheses=g.mask.hypotheses), None
        if g.step is not None and cache is not None:
            new = dataclasses.replace(cache, own=g.step.write(cache.own, kv))
            kv = from_cache(new.own)
        bias_NK = None if g.bias_1NK is None else g.bias_1NK[0]
        z_BLM = self.attention(y_BLM, kv, g.mask, rotation=g.rotation, bias_NK=bias_NK, rate=self.rate, key=contexts[0].key)
        return dropout(scale_by(z_BLM, self.attention_scale), self.rate, contexts[1].key), new

    def _attend_to_source(
        self, y_BLM: jax.Array, g: AttentionInputs, contexts: list[Context], cache: LayerCache | None
    ) -> jax.Array:
        """Returns the output of attention to the source."""
        assert self.cross_attention is not None and g.source is not None
        if g.step is not None and cache is not None and cache.source is not None:
            y_BLM, kv = g.step.by_row(y_BLM), from_cache(cache.source)
        else:
            assert g.source.x_BSM is not None
            kv = self.cross_attention.keys_values(g.source.x_BSM)
        z_BLM = self.cross_attention(y_BLM, kv, g.source.mask, rate=self.rate, key=contexts[0].key)
        return dropout(scale_by(z_BLM, self.cross_scale), self.rate, contexts[1].key)

    def _feed_forward(self, y_BLM: jax.Array, g: AttentionInputs, contexts: list[Context]) -> tuple[jax.Array, Statistics]:
        """Returns (the output of the feed-forward network, statistics of the mixture)."""
        first, second, *_ = contexts
        if isinstance(self.ffn, Moe):
            assert g.real_BL is not None
            y_BLM, statistics = self.ffn(y_BLM, g.real_BL, first)
            return dropout(scale_by(y_BLM, self.ffn_scale), self.rate, second.key), statistics
        if self.hidden_rate:
            y_BLM = self.ffn(y_BLM, self.hidden_rate, first.key)
            return dropout(scale_by(y_BLM, self.ffn_scale), self.rate, second.key), {}
        return dropout(scale_by(self.ffn(y_BLM), self.ffn_scale), self.rate, first.key), {}

    def _normed(self, x_BLM: jax.Array, norm: Norm | Unnormed) -> jax.Array:
        """Returns the input of a sub-layer."""
        return norm(x_BLM) if self.order in ("pre", "sandwich") else x_BLM

    def _added(self, x_BLM: jax.Array, y_BLM: jax.Array, norm: Norm | Unnormed, out_norm: Norm | None = None) -> jax.Array:
        """Returns the residual stream with a sub-layer's output."""
        if self.order in ("pre", "sandwich"):  # GPT-2 (section 2.3); Gemma 2
            return x_BLM + multiplied(y_BLM if out_norm is None else out_norm(y_BLM), self.branch_scale)
        if self.order == "reordered":  # OLMo 2
            return x_BLM + multiplied(norm(y_BLM), self.branch_scale)
        return norm(x_BLM + multiplied(y_BLM, self.branch_scale))  # "post": Vaswani et al. 2017 (section 3.1), BERT


def _layer_scale(c: BlockConfig, scope: Component) -> nnx.Param | None:
    if not c.norm.layer_scale:
        return None
    return param(jax.random.key(0), (c.model_dim,), ("embed",), constant(c.norm.layer_scale), scope)


def _attention(c: BlockConfig, key: jax.Array, scope: Component, of_source: Role | None = None) -> Attention | LatentAttention:
    """Returns a layer's attention, to its own positions or to the source that its role speaks of."""
    if isinstance(c.attention, Latent):
        return LatentAttention(c.attention, c.model_dim, key, scope, init_scale=c.init_scale)
    if of_source is not None:
        return Attention(c, key, scope, source_dim=of_source.source_dim)
    own = c.positions if isinstance(c.positions, RelativeBuckets | RelativePatches) else None
    if isinstance(own, RelativeBuckets) and own.shared:
        own = None
    return Attention(c, key, scope, buckets=own)


def run(
    stack: Any, x_BLM: jax.Array, g: AttentionInputs, context: Context, settings: LayerSettings | None = None, times: int = 1
) -> tuple[jax.Array, Statistics]:
    """Runs a stack of layers; returns (y_BLM, statistics of its mixtures, stacked).

    Args:
      stack: of blocks, or of groups (models/parts/layer_group.py).
      context: with a key for each block or group, [layers].
      settings: of layers that differ; of groups [groups, layers of a group].
      times: how often each block is run before the next one, always with its parameters (ALBERT, arXiv 1909.11942, section 3.1).
    """
    scope = stack.layers[0].scope

    def layer(x_BLM, inputs, g: AttentionInputs):
        block, key, of_layer = inputs
        x_BLM, (_, statistics) = block(x_BLM, g, dataclasses.replace(context, key=key), None, of_layer)
        return x_BLM, statistics

    def repeated(x_BLM, inputs, g: AttentionInputs):
        block, key, of_layer = inputs
        again = dataclasses.replace(context, key=key).for_layers(times)

        def once(x_BLM, inputs, g: AttentionInputs):
            return layer(x_BLM, (block, inputs[0], of_layer), g)

        return scan(once, x_BLM, (again.key, again.numbers), g, scope=scope, staged=False)

    if times == 1:
        return scan(layer, x_BLM, (stack, context.key, settings), g, scope=scope)
    # What the inner loop recomputes needs no recomputation around it, but stages are those of the outer one.
    staged = scope.layout.pipeline(scope.path) is not None
    return scan(repeated, x_BLM, (stack, context.key, settings), g, scope=scope if staged else None)


def unstacked(modules: Any) -> list[Any]:
    """Returns the modules of a stack, one by one.

    Decoding takes a stack apart once: a loop over it would copy each layer's parameters and cache out of it at every step.
    """
    layers = len(jax.tree.leaves(modules)[0])
    return [jax.tree.map(lambda x, i=i: jax.lax.index_in_dim(x, i, keepdims=False), modules) for i in range(layers)]


@jax.jit
def decoded(
    layer: Any, x_R1M: jax.Array, g: AttentionInputs, cache: Any, settings: LayerSettings | None = None
) -> tuple[jax.Array, Any]:
    """Returns (y_R1M, the cache with the step in it) of a block, or of a layer group, at a step that is decoded.

    Layers stand one after the other there (`unstacked`). Because this function is jitted, those that are alike are traced and
    lowered once; the compiler inlines it.
    """
    y_R1M, (cache, _) = layer(x_R1M, g, Context.evaluation(), cache, settings)
    return y_R1M, cache


def keys_values(
    stack: Any, c: BlockConfig, x_BLM: jax.Array, g: AttentionInputs, settings: LayerSettings | None = None
) -> tuple[jax.Array, list[KeysValues]]:
    """Returns (y_BLM, the keys and values [layers, B, L, G, D] that each layer makes of a row: a cache's beginning).

    Args:
      stack: of blocks, or of groups (models/parts/layer_group.py), each of whose layers has an item in the list.
      settings: of the stack's layers.
    """

    def layer(x_BLM, inputs, _):
        group, of_group = inputs
        kv = []
        for i, block in enumerate(group.layers):
            of_layer = of_group and of_group.at(i)
            y_BLM = x_BLM if c.norm.order in ("post", "reordered") else block.attention_norm(x_BLM)
            kv.append(block.attention.keys_values(y_BLM, g.of(of_layer).rotation))
            x_BLM, _ = block(x_BLM, g, Context.evaluation(), None, of_layer)
        return x_BLM, kv

    return scan(layer, x_BLM, (stack, settings))


def logits(
    x_BLM: jax.Array,
    w_MV: jax.Array,
    scope: Component,
    *,
    bias: nnx.Param | None = None,
    cap: float = 0.0,
    divisor: float = 1.0,
    positions: str | None = "length",
) -> jax.Array:
    """Returns the output logits [B, L, V] of the last layer's vectors.

    Args:
      scope: the component that owns the matrix: the embedding where it is tied.
      cap: bounds them softly (layers.soft_cap).
      divisor: they are divided by it first.
      positions: the logical name of the second dimension.
    """
    y_BLV = multiplied(add_bias(project(x_BLM, w_MV, scope), bias), 1 / divisor)
    return soft_cap(scope.shard(y_BLV, "batch", positions, "act_vocab"), cap)
