"""The Conformer's block (arXiv 2005.08100, section 2): half a feed-forward layer, attention, a convolution, another half, a norm.

Padding never changes a result: it is zero before every convolution, no key of attention, and in no norm's statistics.

B rows, S positions, M model, N heads, D size of a head, K taps.
"""

import dataclasses
import functools
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.parts.attention import blocks
from models.parts.attention.logits import scores
from models.parts.attention.mask import AttentionMask
from models.parts.attention.module import Attention
from models.parts.attention.rotary import Rotation, rotate, rotation
from models.parts.convolution_1d import places
from models.parts.layers import FeedForward, Norm, add_bias, dropout, project, split_key
from models.sharding.component import Component
from models.sharding.params import normal, ones, param, scan, zeros

Key = jax.Array | None


class BlockSettings(Protocol):
    """What a block is made of (models.conformer.config.ConformerConfig documents the fields)."""

    @property
    def block(self) -> str: ...
    @property
    def model_dim(self) -> int: ...
    @property
    def hidden_dim(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def kernel(self) -> int: ...
    @property
    def conv_norm(self) -> str: ...
    @property
    def groups(self) -> int: ...
    @property
    def conv_bias(self) -> bool: ...
    @property
    def positions(self) -> str: ...
    @property
    def dropout(self) -> float: ...
    @property
    def norm_eps(self) -> float: ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Heard:
    """Which positions are whose, the same for all layers.

    Attributes:
      segments_BS: int32 utterances of a row, from 1; 0 is padding.
      rotation: of queries and keys, where positions are rotary.
    """

    segments_BS: jax.Array
    rotation: Rotation | None = None


def heard(c: BlockSettings, segments_BS: jax.Array) -> Heard:
    """Returns what layers need to know of the positions of rows."""
    turns = c.positions in ("rotary", "rotary_input")
    turned = rotation(places(segments_BS), c.head_dim, 10_000.0) if turns else None
    return Heard(segments_BS, turned)


class ConformerBlock(nnx.Module):
    """One layer: x + FFN / 2, + attention, + convolution, + FFN / 2, and a norm."""

    def __init__(self, c: BlockSettings, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.scope, self.rate = scope, c.dropout
        norm = functools.partial(Norm, c.model_dim, kind="layer", bias=True, eps=c.norm_eps)
        ffn = functools.partial(FeedForward, c.model_dim, c.hidden_dim, activation="silu", bias=True)
        self.ffn1_norm, self.ffn1 = norm(scope / "ffn1"), ffn(k1, scope / "ffn1")
        self.attention_norm = norm(scope / "attention")
        self.attention = RelativeAttention(c, k2, scope / "attention")
        self.conv_norm, self.conv = norm(scope / "conv"), ConvolutionModule(c, k3, scope / "conv")
        self.ffn2_norm, self.ffn2 = norm(scope / "ffn2"), ffn(k4, scope / "ffn2")
        self.norm = norm(scope)

    def __call__(self, x_BSM: jax.Array, heard: Heard, key: Key) -> tuple[jax.Array, jax.Array]:
        """Returns (y_BSM, how far the statistics of a batch norm are from the batch's, a scalar that is 0 without one)."""
        keys = iter(split_key(key, 6))
        x_BSM = self.scope.shard(x_BSM, "batch", "res_length", "act_embed")
        x_BSM += 0.5 * dropout(self.ffn1(self.ffn1_norm(x_BSM), self.rate, next(keys)), self.rate, next(keys))
        x_BSM += dropout(self.attention.attend(self.attention_norm(x_BSM), heard), self.rate, next(keys))
        y_BSM, drift = self.conv(self.conv_norm(x_BSM), heard.segments_BS, training=key is not None)
        x_BSM += dropout(y_BSM, self.rate, next(keys))
        x_BSM += 0.5 * dropout(self.ffn2(self.ffn2_norm(x_BSM), self.rate, next(keys)), self.rate, next(keys))
        return self.norm(x_BSM), drift


class TransformerBlock(nnx.Module):
    """wav2vec 2.0's layer: attention and a feed-forward layer, each x + f(norm(x)), or norm(x + f(x)) (arXiv 2006.11477)."""

    def __init__(self, c: BlockSettings, key: jax.Array, scope: Component):
        k1, k2 = jax.random.split(key)
        self.scope, self.rate, self.norm_first = scope, c.dropout, c.block == "transformer_pre"
        norm = functools.partial(Norm, c.model_dim, kind="layer", bias=True, eps=c.norm_eps)
        self.attention_norm = norm(scope / "attention")
        self.attention = RelativeAttention(c, k1, scope / "attention")
        self.ffn_norm = norm(scope / "ffn")
        self.ffn = FeedForward(c.model_dim, c.hidden_dim, k2, scope / "ffn", activation="gelu", bias=True)

    def __call__(self, x_BSM: jax.Array, heard: Heard, key: Key) -> tuple[jax.Array, jax.Array]:
        """Returns (y_BSM, 0: it has no batch norm)."""
        k1, k2, k3 = split_key(key, 3)
        x_BSM = self.scope.shard(x_BSM, "batch", "res_length", "act_embed")
        parts = (
            (self.attention_norm, lambda x: self.attention.attend(x, heard), k1),
            (self.ffn_norm, lambda x: self.ffn(x, self.rate, k2), k3),
        )
        for norm, part, drop in parts:
            y_BSM = x_BSM + dropout(part(norm(x_BSM) if self.norm_first else x_BSM), self.rate, drop)
            x_BSM = y_BSM if self.norm_first else norm(y_BSM)
        return x_BSM, jnp.zeros((), jnp.promote_types(x_BSM.dtype, jnp.float32))


Block = ConformerBlock | TransformerBlock


def block_of(c: BlockSettings, key: jax.Array, scope: Component) -> Block:
    """Returns the layer that the settings name."""
    return (ConformerBlock if c.block == "conformer" else TransformerBlock)(c, key, scope)


def run_blocks(blocks: Block, x_BSM: jax.Array, heard: Heard, keys: Key, scope: Component) -> tuple[jax.Array, jax.Array]:
    """Runs a stack of blocks, outside training without keys; returns (y_BSM, the drift of all)."""

    def layer(x_BSM, inputs, heard: Heard):
        block, key = inputs
        return block(x_BSM, heard, key)

    x_BSM, drift = scan(layer, x_BSM, (blocks, keys), heard, scope=scope)
    return x_BSM, jnp.sum(drift)


class RelativeAttention(Attention):
    """Attention within utterances, with Transformer-XL's relative positions (arXiv 1901.02860, section 3.3) where they are asked
    for: logits (q + u) k + (q + v) W r(i - j), r a sinusoid of the distance, u and v vectors of each head."""

    def __init__(self, c: BlockSettings, key: jax.Array, scope: Component):
        super().__init__(c.model_dim, c.heads, c.head_dim, key, scope, bias=True)
        k1, k2 = jax.random.split(jax.random.fold_in(key, 1))
        self.relative, self.turns_input = c.positions == "relative", c.positions == "rotary_input"
        if self.relative:
            shape = (c.model_dim, c.heads, c.head_dim)
            self.distances = param(k1, shape, ("embed", "heads", "kv"), normal(c.model_dim**-0.5), scope)
            self.u = param(k2, shape[1:], ("heads", "kv"), zeros, scope)
            self.v_distance = param(k2, shape[1:], ("heads", "kv"), zeros, scope)

    def attend(self, x_BSM: jax.Array, heard: Heard) -> jax.Array:
        """Returns [B, S, M]."""
        mask = AttentionMask.for_rows(heard.segments_BS, heard.segments_BS)
        if self.turns_input:
            heads_BSND = x_BSM.reshape(*x_BSM.shape[:2], -1, self.q.shape[-1])
            turned_BSM = rotate(heads_BSND, heard.rotation, self.scope).reshape(x_BSM.shape)
            kv = self.keys_values(turned_BSM)[0], self.keys_values(x_BSM)[1]  # the other halves are never computed
            return self(turned_BSM, kv, mask)
        kv = self.keys_values(x_BSM, heard.rotation)
        if not self.relative:
            return self(x_BSM, kv, mask, rotation=heard.rotation)
        q_BSND = self._queries(x_BSM, None, "length")
        table_RM = jnp.asarray(_distances(x_BSM.shape[1], x_BSM.shape[2]), x_BSM.dtype)
        p_RND = project(table_RM, self.distances[...], self.scope)
        p_RND = self.scope.shard(p_RND, None, "act_heads", None)
        out_BSND, _ = blocks.attend(self._logits, q_BSND, *kv, p_RND, mask, self.scope)
        out_BSND = checkpoint_name(self.scope.shard(out_BSND, "batch", "length", "act_heads", None), "context")
        y_BSM = add_bias(project(out_BSND, self.o[...], self.scope, contract=2, dense=True), self.o_bias)
        return checkpoint_name(self.scope.shard(y_BSM, "batch", "res_length", "act_embed"), "attention_out")

    def _logits(self, q_BSND: jax.Array, k_BSND: jax.Array, p_RND: jax.Array, mask: AttentionMask) -> jax.Array:
        wide = jnp.promote_types(q_BSND.dtype, jnp.float32)
        u_ND, v_ND = (x[...].astype(q_BSND.dtype) * self.scale for x in (self.u, self.v_distance))
        content_BNSS = scores(q_BSND + u_ND, k_BSND).astype(wide)
        distance_BNSR = jnp.einsum("BSND,RND->BNSR", q_BSND + v_ND, p_RND).astype(wide)
        # Row r of the table is distance S - 1 - r: query i finds that of key j at S - 1 - i + j.
        size = k_BSND.shape[1]
        index_SS = (size - 1) - jnp.arange(size)[:, None] + jnp.arange(size)
        distance_BNSS = jnp.take_along_axis(distance_BNSR, index_SS[None, None], axis=-1)
        logits_BNSS = content_BNSS + distance_BNSS + jnp.where(mask.matrix(), 0.0, -1e9).astype(wide)[:, None]
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

    def __init__(self, c: BlockSettings, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.scope, m, std = scope, c.model_dim, c.model_dim**-0.5
        self.value = param(k1, (m, m), ("embed", "mlp"), normal(std), scope)
        self.gate = param(k2, (m, m), ("embed", "mlp"), normal(std), scope)
        self.filter = param(k3, (c.kernel, m), ("filter_width", "mlp"), normal(c.kernel**-0.5), scope)
        self.out = param(k4, (m, m), ("mlp", "embed"), normal(std), scope)
        bias = functools.partial(param, k1, (m,), ("mlp",), zeros, scope)
        self.value_bias, self.gate_bias = (bias() if c.conv_bias else None for _ in range(2))
        # A batch norm would take it off again, and its gradient would be rounding alone.
        self.filter_bias = bias() if c.conv_bias and c.conv_norm != "batch" else None
        self.out_bias = param(k1, (m,), ("embed",), zeros, scope) if c.conv_bias else None
        kinds = {"batch": BatchNorm, "group": GroupNorm, "layer": GroupNorm}
        self.inner_norm = kinds[c.conv_norm](m, scope, groups=c.groups if c.conv_norm == "group" else 1, eps=c.norm_eps)

    def __call__(self, x_BSM: jax.Array, segments_BS: jax.Array, *, training: bool) -> tuple[jax.Array, jax.Array]:
        """Returns (y_BSM, the drift of a batch norm's statistics)."""
        value_BSM = checkpoint_name(add_bias(project(x_BSM, self.value[...], self.scope, dense=True), self.value_bias), "up")
        gate_BSM = checkpoint_name(add_bias(project(x_BSM, self.gate[...], self.scope, dense=True), self.gate_bias), "gate")
        h_BSM = self.scope.shard(value_BSM * jax.nn.sigmoid(gate_BSM), "batch", "length", "act_mlp")
        h_BSM = add_bias(depthwise(h_BSM, self.filter[...].astype(h_BSM.dtype), segments_BS), self.filter_bias)
        h_BSM, drift = self.inner_norm(h_BSM, segments_BS, training=training)
        h_BSM = self.scope.shard(jax.nn.silu(h_BSM), "batch", "length", "act_mlp")
        y_BSM = add_bias(project(h_BSM, self.out[...], self.scope, dense=True), self.out_bias)
        return checkpoint_name(self.scope.shard(y_BSM, "batch", "res_length", "act_embed"), "ffn_out"), drift


def depthwise(x_BSM: jax.Array, filter_KM: jax.Array, segments_BS: jax.Array) -> jax.Array:
    """Returns sum over k of filter[k] x[s + k - (K - 1) / 2], of frames of the same utterance; an even K reaches further back."""
    taps, length = len(filter_KM), x_BSM.shape[1]
    back, ahead = taps // 2, (taps - 1) // 2
    padded = jnp.pad(x_BSM, ((0, 0), (back, ahead), (0, 0)))
    whose = jnp.pad(segments_BS, ((0, 0), (back, ahead)))
    y_BSM = jnp.zeros_like(x_BSM)
    for tap in range(taps):
        same_BS = (whose[:, tap : tap + length] == segments_BS) & (segments_BS > 0)
        y_BSM += jnp.where(same_BS[..., None], padded[:, tap : tap + length], 0) * filter_KM[tap]
    return y_BSM


class GroupNorm(nnx.Module):
    """Normalises groups of channels of each position by themselves: no other position matters. One group is layer norm."""

    def __init__(self, size: int, scope: Component, *, groups: int, eps: float):
        key = jax.random.key(0)  # not drawn from
        self.groups, self.eps = groups, eps
        self.scale = param(key, (size,), ("mlp",), ones, scope)
        self.bias = param(key, (size,), ("mlp",), zeros, scope)

    def __call__(self, x_BSM: jax.Array, segments_BS: jax.Array, *, training: bool) -> tuple[jax.Array, jax.Array]:
        """Returns (y_BSM, 0)."""
        del segments_BS, training
        x = x_BSM.astype(jnp.promote_types(x_BSM.dtype, jnp.float32)).reshape(*x_BSM.shape[:2], self.groups, -1)
        x -= jnp.mean(x, axis=-1, keepdims=True)
        x *= jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)
        y = x.reshape(x_BSM.shape) * self.scale[...] + self.bias[...]
        return y.astype(x_BSM.dtype), jnp.zeros((), x.dtype)


class BatchNorm(nnx.Module):
    """Normalises each channel over all positions of the whole batch that are no padding (arXiv 1502.03167).

    A training pass uses the batch's own mean and variance; any other pass those that are parameters. A trainer's state is
    parameters and what its optimizer keeps of them, and a layer may run in any order of microbatches and stages, so nothing here
    counts. Instead "drift", half the squared distance of the kept statistics from the batch's, is a part of the loss, whose only
    gradient moves them: they follow as the optimizer's rate lets them. Released models' running statistics are these parameters.
    """

    def __init__(self, size: int, scope: Component, *, groups: int, eps: float):
        del groups
        key = jax.random.key(0)  # not drawn from
        self.eps = eps
        self.scale = param(key, (size,), ("mlp",), ones, scope)
        self.bias = param(key, (size,), ("mlp",), zeros, scope)
        self.mean = param(key, (size,), ("mlp",), zeros, scope)
        self.variance = param(key, (size,), ("mlp",), ones, scope)

    def __call__(self, x_BSM: jax.Array, segments_BS: jax.Array, *, training: bool) -> tuple[jax.Array, jax.Array]:
        """Returns (y_BSM, drift)."""
        x = x_BSM.astype(jnp.promote_types(x_BSM.dtype, jnp.float32))
        mean_M, variance_M, drift = self.mean[...], self.variance[...], jnp.zeros((), x.dtype)
        if training:
            real_BS1 = (segments_BS > 0)[..., None].astype(x.dtype)
            count = jnp.maximum(jnp.sum(real_BS1), 1)
            batch_mean_M = jnp.sum(x * real_BS1, axis=(0, 1)) / count
            batch_variance_M = jnp.sum(jnp.square(x - batch_mean_M) * real_BS1, axis=(0, 1)) / count
            kept = ((mean_M, batch_mean_M), (variance_M, batch_variance_M))
            drift = sum(0.5 * jnp.sum(jnp.square(ours - jax.lax.stop_gradient(new))) for ours, new in kept)
            mean_M, variance_M = batch_mean_M, batch_variance_M
        y = (x - mean_M) * jax.lax.rsqrt(variance_M + self.eps) * self.scale[...] + self.bias[...]
        return y.astype(x_BSM.dtype), jnp.asarray(drift)
