"""The Conformer's block (arXiv 2005.08100, section 2): half a feed-forward layer, attention, a convolution, another half, a norm.

Padding never changes a result: it is zero before every convolution, no key of attention, and in no norm's statistics.

B rows, S positions, M model, N heads, D size of a head, K taps.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.conformer import config
from models.conformer.config import ConformerConfig, ConformerLayer
from models.parts.attention import blocks
from models.parts.attention.config import Rotary
from models.parts.attention.logits import distances_index, pair_biases, scores
from models.parts.attention.mask import AttentionMask
from models.parts.attention.module import Attention
from models.parts.attention.rotary import rotate, rotation
from models.parts.convolution_1d import places
from models.parts.layers import FeedForward, Norm, add_bias, dropout, project
from models.parts.losses import Loss, zero_loss
from models.parts.transformer import AttentionInputs, Block
from models.parts.transformer_config import Dense
from models.protocol import Context
from models.sharding.component import Component
from models.sharding.params import normal, ones, param, scan, statistic, zeros

Statistics = dict[str, jax.Array]  # of a batch norm, by the names of its running statistics; empty without one


class ConformerBlock(nnx.Module):
    """One layer: x + FFN / 2, + attention, + convolution, + FFN / 2, and a norm."""

    def __init__(self, c: ConformerConfig, layer: ConformerLayer, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.scope, self.rate = scope, c.dropout
        norm = functools.partial(Norm, c.model_dim, kind="layer", bias=True, eps=c.norm_eps)
        ffn = functools.partial(FeedForward, c.model_dim, Dense(hidden_dim=c.hidden_dim, activation="silu", bias=True))
        self.ffn1_norm, self.ffn1 = norm(scope / "ffn1"), ffn(k1, scope / "ffn1")
        self.attention_norm = norm(scope / "attention")
        self.attention = RelativeAttention(c, layer, k2, scope / "attention")
        self.conv_norm, self.conv = norm(scope / "conv"), ConvolutionModule(c, layer, k3, scope / "conv")
        self.ffn2_norm, self.ffn2 = norm(scope / "ffn2"), ffn(k4, scope / "ffn2")
        self.norm = norm(scope)

    def __call__(self, x_BSM: jax.Array, g: AttentionInputs, context: Context) -> tuple[jax.Array, Statistics]:
        """Returns (y_BSM, the running statistics of a batch norm after this batch)."""
        keys = iter(context.split(6))
        x_BSM = self.scope.shard(x_BSM, "batch", "res_length", "act_embed")
        x_BSM += 0.5 * dropout(self.ffn1(self.ffn1_norm(x_BSM), self.rate, next(keys).key), self.rate, next(keys).key)
        x_BSM += dropout(self.attention.attend(self.attention_norm(x_BSM), g), self.rate, next(keys).key)
        y_BSM, statistics = self.conv(self.conv_norm(x_BSM), g.mask.segments_BL, training=context.training)
        x_BSM += dropout(y_BSM, self.rate, next(keys).key)
        x_BSM += 0.5 * dropout(self.ffn2(self.ffn2_norm(x_BSM), self.rate, next(keys).key), self.rate, next(keys).key)
        return self.norm(x_BSM), {f"conv.inner_norm.{name}": x for name, x in statistics.items()}


def block_of(c: ConformerConfig, key: jax.Array, scope: Component) -> ConformerBlock | Block:
    """Returns the layer that the configuration names."""
    if isinstance(c.layer, ConformerLayer):
        return ConformerBlock(c, c.layer, key, scope)
    return Block(c.transformer, key, scope)


def run_blocks(
    c: ConformerConfig,
    stack: ConformerBlock | Block,
    x_BSM: jax.Array,
    segments_BS: jax.Array,
    context: Context,
    scope: Component,
    bias_NK: jax.Array | None = None,
) -> tuple[jax.Array, Loss]:
    """Runs a stack of blocks; returns (y_BSM, no loss, but the running statistics of batch norms after a training pass).

    Args:
      context: of the stack (Context.for_layers).
      bias_NK: of all layers, for each of K buckets of relative positions.
    """

    def layer(x_BSM, inputs, g: AttentionInputs):
        block, key = inputs
        of_layer = dataclasses.replace(context, key=key)
        return block(x_BSM, g, of_layer) if isinstance(block, ConformerBlock) else (block(x_BSM, g, of_layer)[0], {})

    turns = isinstance(c.layer, ConformerLayer) and c.layer.positions in ("rotary", "rotary_input")
    rotated = rotation(places(segments_BS), c.head_dim, Rotary()) if turns else None
    g = AttentionInputs(AttentionMask.for_rows(segments_BS, segments_BS), rotated)
    if c.buckets is not None and bias_NK is not None:
        bias_NSS = pair_biases(bias_NK, x_BSM.shape[1], c.buckets.max_distance)
        g = dataclasses.replace(g, bias_1NK=scope.shard(bias_NSS, "act_heads", "length", None)[None])
    x_BSM, statistics = scan(layer, x_BSM, (stack, context.key), g, scope=scope)
    zero = zero_loss(x_BSM.dtype)
    return x_BSM, Loss(zero.value, zero.extra, {}, {f"{scope.path}.{name}": x for name, x in statistics.items()})


class RelativeAttention(Attention):
    """Attention within utterances, with Transformer-XL's relative positions (arXiv 1901.02860, section 3.3) where they are asked
    for: logits (q + u) k + (q + v) W r(i - j), r a sinusoid of the distance, u and v vectors of each head. With `NearKeys` they
    are q k + q r(i - j), r a learned vector of the distance."""

    def __init__(self, c: ConformerConfig, layer: ConformerLayer, key: jax.Array, scope: Component):
        super().__init__(c.transformer, key, scope)
        k1, k2 = jax.random.split(jax.random.fold_in(key, 1))
        self.relative, self.turns_input = layer.positions == "relative", layer.positions == "rotary_input"
        near = layer.near
        self.reach = (near.left, near.right) if near else None
        if near:
            rows = (near.left + near.right + 1, c.head_dim)
            self.near_keys = param(k1, rows, ("buckets", "kv"), normal(c.head_dim**-0.5), scope)
        if self.relative:
            shape = (c.model_dim, c.heads, c.head_dim)
            self.distances = param(k1, shape, ("embed", "heads", "kv"), normal(c.model_dim**-0.5), scope)
            self.u = param(k2, shape[1:], ("heads", "kv"), zeros, scope)
            self.v_distance = param(k2, shape[1:], ("heads", "kv"), zeros, scope)

    def attend(self, x_BSM: jax.Array, g: AttentionInputs) -> jax.Array:
        """Returns [B, S, M]."""
        if self.turns_input:
            heads_BSND = x_BSM.reshape(*x_BSM.shape[:2], -1, self.q.shape[-1])
            rotated_BSM = rotate(heads_BSND, g.rotation, self.scope).reshape(x_BSM.shape)
            kv = self.keys_values(rotated_BSM)[0], self.keys_values(x_BSM)[1]  # the other halves are never computed
            return self(rotated_BSM, kv, g.mask)
        kv = self.keys_values(x_BSM, g.rotation)
        if not self.relative and self.reach is None:
            return self(x_BSM, kv, g.mask, rotation=g.rotation)
        q_BSND = self._queries(x_BSM, None, "length")
        if self.reach is not None:
            table, logits = self.near_keys[...].astype(x_BSM.dtype), self._logits_of_near
        else:
            table_RM = jnp.asarray(_distances(x_BSM.shape[1], x_BSM.shape[2]), x_BSM.dtype)
            table, logits = project(table_RM, self.distances[...], self.scope), self._logits
            table = self.scope.shard(table, None, "act_heads", None)
        out_BSND, _ = blocks.attend(logits, q_BSND, *kv, table, g.mask, self.scope)
        out_BSND = checkpoint_name(self.scope.shard(out_BSND, "batch", "length", "act_heads", None), "context")
        y_BSM = add_bias(project(out_BSND, self.o[...], self.scope, contract=2, dense=True), self.o_bias)
        return checkpoint_name(self.scope.shard(y_BSM, "batch", "res_length", "act_embed"), "attention_out")

    def _logits(self, q_BSND: jax.Array, k_BSND: jax.Array, p_RND: jax.Array, mask: AttentionMask) -> jax.Array:
        u_ND, v_ND = (x[...].astype(q_BSND.dtype) * self.scale for x in (self.u, self.v_distance))
        distance_BNSR = jnp.einsum("BSND,RND->BNSR", q_BSND + v_ND, p_RND)
        # Row r of the table is distance S - 1 - r.
        return _summed(scores(q_BSND + u_ND, k_BSND), distance_BNSR, distances_index(k_BSND.shape[1]), mask)

    def _logits_of_near(self, q_BSND: jax.Array, k_BSND: jax.Array, near_RD: jax.Array, mask: AttentionMask) -> jax.Array:
        assert self.reach is not None
        (left, right), size = self.reach, k_BSND.shape[1]
        index_SS = jnp.clip(distances_index(size) - (size - 1), -left, right) + left
        return _summed(scores(q_BSND, k_BSND), jnp.einsum("BSND,RD->BNSR", q_BSND, near_RD), index_SS, mask)


def _summed(content_BNSS: jax.Array, distance_BNSR: jax.Array, index_SS: jax.Array, mask: AttentionMask) -> jax.Array:
    """Returns the logits [B, N, S, S] of contents, and of distances of which `index` says which pair has which, where seen."""
    wide = jnp.promote_types(content_BNSS.dtype, jnp.float32)
    distance_BNSS = jnp.take_along_axis(distance_BNSR.astype(wide), index_SS[None, None], axis=-1)
    logits_BNSS = content_BNSS.astype(wide) + distance_BNSS + jnp.where(mask.matrix(), 0.0, -1e9).astype(wide)[:, None]
    return checkpoint_name(logits_BNSS, "scores")


def _distances(length: int, size: int) -> np.ndarray:
    """Returns the sinusoids [2 S - 1, M] of distances S - 1 down to 1 - S, sines and cosines in turn."""
    rates = np.exp(np.arange(0, size, 2) * -(np.log(10_000.0) / size))
    angles = np.arange(length - 1, -length, -1)[:, None] * rates
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(2 * length - 1, size)


class ConvolutionModule(nnx.Module):
    """A gated linear map, a depthwise convolution in time, a norm, Swish and a linear map (figure 2 of the paper).

    The convolution is a sum of shifted products, of which those with another utterance's frames, or padding, are left out: so
    rows may be packed however far it reaches, and what a layout cuts in time is exchanged with neighbours alone.
    """

    def __init__(self, c: ConformerConfig, layer: ConformerLayer, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.scope, m, std = scope, c.model_dim, c.model_dim**-0.5
        self.value = param(k1, (m, m), ("embed", "mlp"), normal(std), scope)
        self.gate = param(k2, (m, m), ("embed", "mlp"), normal(std), scope)
        self.filter = param(k3, (layer.kernel, m), ("filter_width", "mlp"), normal(layer.kernel**-0.5), scope)
        self.out = param(k4, (m, m), ("mlp", "embed"), normal(std), scope)
        bias = functools.partial(param, k1, (m,), ("mlp",), zeros, scope)
        self.value_bias, self.gate_bias = (bias() if layer.bias else None for _ in range(2))
        # A batch norm would take it off again, and its gradient would be rounding alone.
        self.filter_bias = bias() if layer.bias and isinstance(layer.norm, config.GroupNorm) else None
        self.out_bias = param(k1, (m,), ("embed",), zeros, scope) if layer.bias else None
        self.back = layer.kernel - 1 if layer.causal else layer.kernel // 2
        self.inner_norm = _NORMS[type(layer.norm)](layer.norm, m, scope, c.norm_eps)

    def __call__(self, x_BSM: jax.Array, segments_BS: jax.Array, *, training: bool) -> tuple[jax.Array, Statistics]:
        """Returns (y_BSM, the running statistics of a batch norm after this batch)."""
        value_BSM = checkpoint_name(add_bias(project(x_BSM, self.value[...], self.scope, dense=True), self.value_bias), "up")
        gate_BSM = checkpoint_name(add_bias(project(x_BSM, self.gate[...], self.scope, dense=True), self.gate_bias), "gate")
        h_BSM = self.scope.shard(value_BSM * jax.nn.sigmoid(gate_BSM), "batch", "length", "act_mlp")
        h_BSM = add_bias(depthwise(h_BSM, self.filter[...].astype(h_BSM.dtype), segments_BS, self.back), self.filter_bias)
        h_BSM, statistics = self.inner_norm(h_BSM, segments_BS, training=training)
        h_BSM = self.scope.shard(jax.nn.silu(h_BSM), "batch", "length", "act_mlp")
        y_BSM = add_bias(project(h_BSM, self.out[...], self.scope, dense=True), self.out_bias)
        return checkpoint_name(self.scope.shard(y_BSM, "batch", "res_length", "act_embed"), "ffn_out"), statistics


def depthwise(x_BSM: jax.Array, filter_KM: jax.Array, segments_BS: jax.Array, back: int) -> jax.Array:
    """Returns sum over k of filter[k] x[s + k - back], of frames of the same utterance."""
    taps, length = len(filter_KM), x_BSM.shape[1]
    ahead = taps - 1 - back
    padded = jnp.pad(x_BSM, ((0, 0), (back, ahead), (0, 0)))
    whose = jnp.pad(segments_BS, ((0, 0), (back, ahead)))
    y_BSM = jnp.zeros_like(x_BSM)
    for tap in range(taps):
        same_BS = (whose[:, tap : tap + length] == segments_BS) & (segments_BS > 0)
        y_BSM += jnp.where(same_BS[..., None], padded[:, tap : tap + length], 0) * filter_KM[tap]
    return y_BSM


class GroupNorm(nnx.Module):
    """Normalises groups of channels of each position by themselves: no other position matters. One group is layer norm."""

    def __init__(self, norm: config.GroupNorm, size: int, scope: Component, eps: float):
        key = jax.random.key(0)  # not drawn from
        self.groups, self.eps = norm.groups, eps
        self.scale = param(key, (size,), ("mlp",), ones, scope)
        self.bias = param(key, (size,), ("mlp",), zeros, scope)

    def __call__(self, x_BSM: jax.Array, segments_BS: jax.Array, *, training: bool) -> tuple[jax.Array, Statistics]:
        """Returns (y_BSM, no statistics)."""
        x = x_BSM.astype(jnp.promote_types(x_BSM.dtype, jnp.float32)).reshape(*x_BSM.shape[:2], self.groups, -1)
        x -= jnp.mean(x, axis=-1, keepdims=True)
        x *= jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)
        y = x.reshape(x_BSM.shape) * self.scale[...] + self.bias[...]
        return y.astype(x_BSM.dtype), {}


class BatchNorm(nnx.Module):
    """Normalises each channel over all positions of the whole batch that are no padding (arXiv 1502.03167).

    A training pass uses the batch's own mean and variance, and returns the running statistics that the step keeps; any other pass
    uses the running ones. A layer may run in any order of microbatches and stages, which is why a layout that splits the batch
    is refused (Conformer.coupled).
    """

    def __init__(self, norm: config.BatchNorm, size: int, scope: Component, eps: float):
        key = jax.random.key(0)  # not drawn from
        self.decay, self.eps = norm.decay, eps
        self.scale = param(key, (size,), ("mlp",), ones, scope)
        self.bias = param(key, (size,), ("mlp",), zeros, scope)
        self.mean = statistic((size,), ("mlp",), zeros, scope)
        self.variance = statistic((size,), ("mlp",), ones, scope)

    def __call__(self, x_BSM: jax.Array, segments_BS: jax.Array, *, training: bool) -> tuple[jax.Array, Statistics]:
        """Returns (y_BSM, in training the running statistics after this batch)."""
        x = x_BSM.astype(jnp.promote_types(x_BSM.dtype, jnp.float32))
        mean_M, variance_M, statistics = self.mean[...], self.variance[...], {}
        if training:
            real_BS1 = (segments_BS > 0)[..., None].astype(x.dtype)
            count = jnp.maximum(jnp.sum(real_BS1), 1)
            running = {"mean": mean_M, "variance": variance_M}
            mean_M = jnp.sum(x * real_BS1, axis=(0, 1)) / count
            variance_M = jnp.sum(jnp.square(x - mean_M) * real_BS1, axis=(0, 1)) / count
            of_batch = jax.lax.stop_gradient({"mean": mean_M, "variance": variance_M})
            statistics = {k: self.decay * x + (1 - self.decay) * of_batch[k].astype(x.dtype) for k, x in running.items()}
        y = (x - mean_M) * jax.lax.rsqrt(variance_M + self.eps) * self.scale[...] + self.bias[...]
        return y.astype(x_BSM.dtype), statistics


_NORMS: dict[type, Any] = {config.BatchNorm: BatchNorm, config.GroupNorm: GroupNorm}
