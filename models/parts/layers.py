"""Layers that several families share. B batch, L length, M model, H hidden, V vocabulary."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.parts import eight_bits
from models.parts.low_rank import LowRank, MatrixLike, Quantized, frozen_product
from models.parts.transformer_config import Dense
from models.sharding.component import Component
from models.sharding.params import SCALED, normal, ones, param, zeros


def project(x: jax.Array, w: jax.Array | MatrixLike, scope: Component, contract: int = 1, *, dense: bool = False) -> jax.Array:
    """x [..., *c] times w [*c, *o] -> [..., *o], in x's dtype, over the last `contract` dimensions of x.

    One product of two matrices: XLA's CPU compiler runs it, and its gradients, up to twice as fast as a product with several
    batch or contracted dimensions. Where the component's layout cuts positions, the leading dimensions are not merged: what
    is cut in both batch and length has no place in a merged dimension, and would be exchanged. TPUs take the product as it
    is: merged, its gradients are copied into other orders first. With adapters, x W + (x A) B: the sum of the matrices is not
    formed, nor its gradient.

    Args:
      dense: w is a matrix of a layer inside a stack, which `Execution.quantization` speaks of.
    """
    if isinstance(w, LowRank):
        low = project(project(dropout(x, w.rate, w.key), w.a, scope, contract), w.b, scope)
        return project(x, w.base, scope, contract, dense=dense) + (w.scale * low).astype(x.dtype)
    if isinstance(w, Quantized):
        y: jax.Array = frozen_product(x.reshape(*x.shape[: x.ndim - contract], -1), w)
        return y.reshape(*y.shape[:-1], *w.shape[contract:])
    form = scope.execution.quantization if dense else "none"
    w = w.astype(x.dtype if form == "none" else eight_bits.wide(x.dtype))
    if scope.on_tpu:
        return jnp.tensordot(x, w, axes=contract) if form == "none" else _in_8_bits(x, w, form, contract, exact=False)
    lead, inner = x.shape[: x.ndim - contract], math.prod(w.shape[:contract])
    rows = (-1,) if scope.num_shards("length") == scope.num_shards("res_length") == 1 else lead
    x, w_IO = x.reshape(*rows, inner), w.reshape(inner, -1)
    y = x @ w_IO if form == "none" else _in_8_bits(x, w_IO, form, 1)
    return y.reshape(*lead, *w.shape[contract:])


def _in_8_bits(x: jax.Array, w: jax.Array, form: eight_bits.Form, contract: int, *, exact: bool = True) -> jax.Array:
    return checkpoint_name(eight_bits.product(x, w, form, contract, exact=exact), SCALED)  # what remat "dots" keeps


def add_bias(x: jax.Array, bias: nnx.Param | None) -> jax.Array:
    """x + bias in x's dtype, or x where there is none."""
    return x if bias is None else x + bias[...].astype(x.dtype)


def scale_by(x: jax.Array, scale: nnx.Param | None) -> jax.Array:
    """x * scale in x's dtype, or x where there is none."""
    return x if scale is None else x * scale[...].astype(x.dtype)


class Norm(nnx.Module):
    """RMS norm x / rms(x) * scale (Lingvo's layer norm, T5, LLaMA), or layer norm (x - mean) / std * scale; + bias.

    "rms_plus_one" is the first with 1 + scale (Gemma), so that weight decay draws towards 1.
    """

    def __init__(
        self, size: int, scope: Component, *, kind: str = "rms", bias: bool = False, eps: float = 1e-6, axis: str = "embed"
    ):
        key = jax.random.key(0)  # not drawn from
        self.kind, self.eps = kind, eps
        self.scale = param(key, (size,), (axis,), zeros if kind == "rms_plus_one" else ones, scope)
        self.bias = param(key, (size,), (axis,), zeros, scope) if bias else None

    def __call__(self, x_BLM: jax.Array) -> jax.Array:
        x = x_BLM.astype(jnp.promote_types(x_BLM.dtype, jnp.float32))
        if self.kind == "layer":
            x = x - jnp.mean(x, axis=-1, keepdims=True)
        scale = self.scale[...] + 1 if self.kind == "rms_plus_one" else self.scale[...]
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps) * scale
        if self.bias is not None:
            x = x + self.bias[...]
        return x.astype(x_BLM.dtype)


class Embedding(nnx.Module):
    """A table [V, M] of Gaussian vectors with this standard deviation; `axis` names its rows."""

    def __init__(self, vocab: int, size: int, key: jax.Array, scope: Component, *, std: float = 1.0, axis: str = "vocab"):
        self.scope, self.act_axis = scope, "act_vocab" if axis == "vocab" else None
        self.table = param(key, (vocab, size), (axis, "embed"), normal(std), scope)

    def __call__(self, ids_BL: jax.Array, dtype: jnp.dtype) -> jax.Array:
        # Looked up with its vectors whole, however they are stored, unless a layout cuts "act_table": else the gradient's cut
        # spreads to the activations.
        table_VM = self.scope.shard(self.table[...].astype(dtype), self.act_axis, "act_table")
        x_BLM = table_VM[ids_BL]
        return self.scope.shard(x_BLM, "batch", "res_length", "act_embed")


def add_positions(x_BLM: jax.Array, table: nnx.Param, positions_BL: jax.Array, scope: Component) -> jax.Array:
    """Returns x with the vectors of its positions from a learned table [positions, M], looked up whole as those of tokens are."""
    table_PM = scope.shard(table[...].astype(x_BLM.dtype), None, None)
    return scope.shard(x_BLM + table_PM[positions_BL], "batch", "res_length", "act_embed")


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),  # by the error function: BERT
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),  # GPT-2
    "gelu_sigmoid": lambda x: x * jax.nn.sigmoid(1.702 * x),  # CLIP
    "silu": jax.nn.silu,
}


class FeedForward(nnx.Module):
    """act(x wi) wo (GShard, Figure 3), or gated act(x wg) * (x wi) wo (Shazeer 2020); biases on request."""

    def __init__(self, size: int, c: Dense, key: jax.Array, scope: Component, init_scale: float = 1.0):
        k1, k2, k3 = jax.random.split(key, 3)
        self.scope, self.activation, hidden = scope, c.activation, c.hidden_dim
        up, names = (size, hidden), ("embed", "mlp")
        into, out = normal((init_scale / size) ** 0.5), normal((init_scale / hidden) ** 0.5)
        self.wi = param(k1, up, names, into, scope)
        self.wg = param(k3, up, names, into, scope) if c.gated else None
        self.wo = param(k2, (hidden, size), ("mlp", "embed"), out, scope)
        self.wi_bias = param(k1, (hidden,), ("mlp",), zeros, scope) if c.bias else None
        self.wg_bias = param(k3, (hidden,), ("mlp",), zeros, scope) if c.bias and c.gated else None
        self.wo_bias = param(k2, (size,), ("embed",), zeros, scope) if c.bias else None

    def __call__(self, x_BLM: jax.Array, rate: float = 0.0, key: jax.Array | None = None) -> jax.Array:
        """Returns y_BLM; `rate` is of dropout on the hidden layer."""
        act = ACTIVATIONS[self.activation]
        h_BLH = checkpoint_name(add_bias(project(x_BLM, self.wi[...], self.scope, dense=True), self.wi_bias), "up")
        if self.wg is None:
            h_BLH = act(h_BLH)
        else:
            gate_BLH = checkpoint_name(add_bias(project(x_BLM, self.wg[...], self.scope, dense=True), self.wg_bias), "gate")
            h_BLH = act(gate_BLH) * h_BLH
        h_BLH = dropout(self.scope.shard(h_BLH, "batch", "length", "act_mlp"), rate, key)
        y_BLM = add_bias(project(h_BLH, self.wo[...], self.scope, dense=True), self.wo_bias)
        return checkpoint_name(self.scope.shard(y_BLM, "batch", "res_length", "act_embed"), "ffn_out")


def sinusoids(positions_BL: jax.Array, size: int, dtype: jnp.dtype, *, paper: bool = False) -> jax.Array:
    """Sinusoidal position encodings [B, L, size] of Vaswani et al. 2017, section 3.5: sines, then cosines.

    Args:
      paper: rates are the paper's, 1e4^(-2i / size), and an odd size has one sine more (Marian); otherwise they reach 1e-4
        exactly, and an odd size ends with 0 (tensor2tensor, fairseq).
    """
    if paper:
        rates = 1e4 ** (-2 * np.arange(-(-size // 2)) / size)
    else:
        rates = np.exp(-np.log(1e4) * np.arange(size // 2) / max(size // 2 - 1, 1))
    angles = positions_BL[..., None].astype(jnp.float32) * jnp.asarray(rates, jnp.float32)
    waves = [jnp.sin(angles), jnp.cos(angles[..., : size // 2])]
    if size % 2 and not paper:
        waves.append(jnp.zeros_like(angles[..., :1]))
    return jnp.concatenate(waves, axis=-1).astype(dtype)


def soft_cap(logits: jax.Array, limit: float) -> jax.Array:
    """limit * tanh(logits / limit), which keeps logits within +-limit; 0 does nothing."""
    return limit * jnp.tanh(logits / limit) if limit else logits


def multiplied(x: jax.Array, factor: float) -> jax.Array:
    """Returns x times a factor, in x's dtype; 1 does nothing."""
    return x if factor == 1 else x * jnp.asarray(factor, x.dtype)


def split_key(key: jax.Array | None, n: int) -> list[jax.Array | None]:
    """n keys, or n times None: evaluation draws nothing."""
    return [None] * n if key is None else list(jax.random.split(key, n))


def layer_keys(key: jax.Array | None, layers: int) -> jax.Array | None:
    """[layers] keys of a stack, or None: evaluation draws nothing."""
    return None if key is None else jax.random.split(key, layers)


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes each element with probability `rate` and scales the rest up; the identity without a key.

    The rate is rounded to a 256th, and the scale is exact for what it is rounded to.
    """
    if key is None or _cut(rate) == 0:
        return x
    return dropped(x, rate, draw_seeds(key, x.shape[:-1]))


def _cut(rate: float) -> int:
    return round(rate * 256)


Seeds = tuple[jax.Array, jax.Array]  # uint32: of each row, and one for all


def draw_seeds(key: jax.Array, rows: tuple[int, ...]) -> Seeds:
    """Returns the seeds of rows of any length, for `dropped`."""
    of_rows, of_all = jax.random.split(key)
    return jax.random.bits(of_rows, rows, jnp.uint32), jax.random.bits(of_all, (), jnp.uint32)


def dropped(x: jax.Array, rate: float, seeds: Seeds) -> jax.Array:
    """Returns `dropout` of x as the seeds of its rows draw it: by an element's place in its row, whatever the row's length.

    Each row is a stream of integers of its own, as SplitMix (Steele, Lea and Flood, 2014) makes them: multiples of an odd number,
    from the row's seed on, are mixed by two multiplications (those of C. Wellons' hash-prospector), with the common seed between
    them. JAX's generator, which draws the seeds, takes about 110 operations an element, however few bits are wanted.
    """
    cut = _cut(rate)
    of_rows, of_all = seeds
    bits = of_rows[..., None] + jax.lax.iota(jnp.uint32, x.shape[-1]) * np.uint32(0x9E3779B9)
    bits = (bits ^ (bits >> 16)) * np.uint32(0x21F0AAAD) ^ of_all
    bits = (bits ^ (bits >> 15)) * np.uint32(0xD35A2D97)
    keep = bits >= np.uint32(cut << 24)  # of a product the upper bits are the most random ones
    return jnp.where(keep, x * (256 / (256 - cut)), 0).astype(x.dtype)
