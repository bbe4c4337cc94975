"""Losses: what a model returns to the trainer, sums that add up whatever a batch is split into; and cross-entropy.

B batch, L length, V classes.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from models.parts.numbers import nearest_divisor
from models.sharding.component import Component
from models.sharding.layout import LayoutError

Totals = dict[str, jax.Array]  # counts of a whole batch, by name, that its losses are divided by


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ratio:
    """A metric as a sum over a count, so that those of a batch's parts add up to the batch's own: both may be vectors."""

    sum: jax.Array
    over: jax.Array

    @property
    def value(self) -> jax.Array:
        return self.sum / jnp.maximum(self.over, 1).astype(self.sum.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Loss:
    """The loss of a batch, or of some of its rows.

    Every term is a sum divided by a count of the whole batch (`Model.totals`), so the parts' losses, gradients and metrics
    are added up, not averaged: microbatches of unequal counts count as they should, and a batch may be split in any way.

    Attributes:
      value: the objective, a scalar of at least float32.
      extra: the auxiliary losses in it.
      metrics: further values to log, by name.
      statistics: new values of running statistics, by the names that they have among the parameters; no sums, which is why
        a model that has any takes the whole batch at once (Model.coupled).
    """

    value: jax.Array
    extra: jax.Array
    metrics: dict[str, Ratio]
    statistics: dict[str, jax.Array] = dataclasses.field(default_factory=dict[str, jax.Array])

    def __add__(self, other: "Loss") -> "Loss":
        metrics = dict(self.metrics)
        for name, ratio in other.metrics.items():
            metrics[name] = jax.tree.map(jnp.add, metrics[name], ratio) if name in metrics else ratio
        return Loss(self.value + other.value, self.extra + other.extra, metrics, self.statistics | other.statistics)


def zero_loss(dtype: jnp.dtype) -> Loss:
    """Returns the loss of a part of a model that adds none."""
    zero = jnp.zeros((), jnp.promote_types(dtype, jnp.float32))
    return Loss(zero, zero, {})


def per(total: jax.Array, count: jax.Array) -> jax.Array:
    """Returns a sum over the rows at hand divided by a count of the whole batch, or by 1 where that is 0."""
    return total / jnp.maximum(count, 1).astype(total.dtype)


def token_loss(
    logits_BLV: jax.Array,
    targets_BL: jax.Array,
    used_BL: jax.Array,
    total: jax.Array,
    smoothing: float = 0.0,
    z_weight: float = 0.0,
    soft_BLV: jax.Array | None = None,
) -> Loss:
    """Returns the cross-entropy of tokens, as a mean over the whole batch's, and how often the target is the likeliest token.

    Args:
      logits_BLV: predictions of any number of positions.
      targets_BL: int32 classes.
      used_BL: bool, False for positions that do not count; or int32 weights.
      total: how many positions of the whole batch count, or the sum of their weights.
      smoothing: mass moved from the target to all other classes, in the loss alone.
      z_weight: of an auxiliary loss, log(sum of exp logits)^2, which keeps logits small (T5X: 1e-4).
      soft_BLV: mass that each class has of the target's in the loss alone, such as a teacher gives it; the target has the rest.
    """
    smooth_BL, plain_BL, norm_BL = _with_log_sum(logits_BLV, targets_BL, smoothing)
    if soft_BLV is not None:
        soft_BLV = soft_BLV.astype(norm_BL.dtype)
        mass_BL = jnp.sum(soft_BLV, axis=-1)
        soft_BL = mass_BL * norm_BL - jnp.sum(soft_BLV * logits_BLV.astype(norm_BL.dtype), axis=-1)
        smooth_BL = (1 - mass_BL) * smooth_BL + soft_BL
    weight_BL = used_BL.astype(plain_BL.dtype)
    hit_BL = is_top_1(logits_BLV, targets_BL) * weight_BL
    n = jnp.sum(used_BL)
    metrics = {"cross_entropy": Ratio(jnp.sum(plain_BL * weight_BL), n), "accuracy": Ratio(jnp.sum(hit_BL), n)}
    value = per(jnp.sum(smooth_BL * weight_BL), total)
    if not z_weight:
        return Loss(value, jnp.zeros_like(value), metrics)
    z = jnp.sum(norm_BL**2 * weight_BL)
    extra = z_weight * per(z, total)
    return Loss(value + extra, extra, metrics | {"z_loss": Ratio(z, n)})


def token_loss_in_chunks(
    logits: Callable[[jax.Array], jax.Array],
    x_BLM: jax.Array,
    targets_BL: jax.Array,
    used_BL: jax.Array,
    total: jax.Array,
    smoothing: float,
    scope: Component,
    z_weight: float = 0.0,
    soft_BLV: jax.Array | None = None,
) -> Loss:
    """Returns `token_loss` of the logits of x, which exist for a part of the positions at a time.

    Args:
      logits: computes the logits [B, L', V] of some positions of x; the backward pass computes them again.
      scope: the component whose execution says into how many chunks positions are divided.

    Raises:
      LayoutError: chunks that do not divide the positions.
    """
    n = scope.execution.loss_chunks
    if n == 1:
        return token_loss(logits(x_BLM), targets_BL, used_BL, total, smoothing, z_weight, soft_BLV)

    def add_chunk(_: None, chunk: tuple[jax.Array, ...]) -> tuple[None, Loss]:
        x_BLM, targets_BL, used_BL, *soft = chunk
        return None, token_loss(logits(x_BLM), targets_BL, used_BL, total, smoothing, z_weight, *soft)

    chunks = _chunks(n, x_BLM, targets_BL, used_BL, *(() if soft_BLV is None else (soft_BLV,)))
    _, losses = jax.lax.scan(jax.checkpoint(add_chunk, prevent_cse=False), None, chunks)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), losses)


def log_probabilities(
    logits: Callable[[jax.Array], jax.Array], x_BLM: jax.Array, targets_BL: jax.Array, scope: Component
) -> jax.Array:
    """Returns the log-probability of each target [B, L]; logits exist for a part of the positions at a time, as in
    `token_loss_in_chunks`."""
    n = scope.execution.loss_chunks
    if n == 1:
        return -cross_entropy(logits(x_BLM), targets_BL)[1]

    def of_chunk(_: None, chunk: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        return None, -cross_entropy(logits(chunk[0]), chunk[1])[1]

    _, logp = jax.lax.scan(jax.checkpoint(of_chunk, prevent_cse=False), None, _chunks(n, x_BLM, targets_BL))
    return jnp.moveaxis(logp, 0, 1).reshape(targets_BL.shape)


def _chunks(n: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Returns arrays [B, L, ...] in n parts of their positions, [n, B, L / n, ...]; raises LayoutError."""
    length = arrays[0].shape[1]
    if length % n:
        best = nearest_divisor(length, n)
        raise LayoutError(f"loss_chunks={n} does not divide the {length} positions of a row; nearest is {best}")
    return tuple(jnp.moveaxis(a.reshape(a.shape[0], n, -1, *a.shape[2:]), 1, 0) for a in arrays)


def cross_entropy(logits_BLV: jax.Array, labels_BL: jax.Array, smoothing: float = 0.0) -> tuple[jax.Array, jax.Array]:
    """Returns the cross-entropy of each token, in float32 at least: (with label smoothing, without), each [B, L].

    Smoothing moves `smoothing` of the label's mass evenly to the other V - 1 classes, as Lingvo does. A label that is no class
    (-1) has no mass.
    """
    smooth_BL, plain_BL, _ = _with_log_sum(logits_BLV, labels_BL, smoothing)
    return smooth_BL, plain_BL


def _with_log_sum(logits_BLV: jax.Array, labels_BL: jax.Array, smoothing: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns `cross_entropy`, and the log of the sum of the exponentials [B, L], which it needs anyway."""
    return _cross_entropy(smoothing, logits_BLV, labels_BL)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cross_entropy(smoothing: float, logits_BLV: jax.Array, labels_BL: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return _cross_entropy_fwd(smoothing, logits_BLV, labels_BL)[0]


def _cross_entropy_fwd(smoothing: float, logits_BLV: jax.Array, labels_BL: jax.Array) -> tuple[Any, Any]:
    x_BLV = logits_BLV.astype(jnp.promote_types(logits_BLV.dtype, jnp.float32))
    norm_BL = jax.nn.logsumexp(x_BLV, axis=-1)
    plain_BL = norm_BL - _label_logit(x_BLV, labels_BL)
    smooth_BL = plain_BL
    if smoothing:
        vocab = x_BLV.shape[-1]
        others_BL = (vocab * norm_BL - jnp.sum(x_BLV, axis=-1)) - plain_BL  # sum of -log p over the other classes
        smooth_BL = (1 - smoothing) * plain_BL + smoothing / (vocab - 1) * others_BL
    return (smooth_BL, plain_BL, norm_BL), (logits_BLV, labels_BL, norm_BL)


def _cross_entropy_bwd(smoothing: float, kept: Any, grads: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
    """Computes the gradient in one pass over the logits, and probabilities again: differentiation would keep them."""
    logits_BLV, labels_BL, norm_BL = kept
    smooth_BL1, plain_BL1, norm_BL1 = (grad[..., None] for grad in grads)
    other = smoothing / (logits_BLV.shape[-1] - 1)  # mass of each class but the label
    probs_BLV = jnp.exp(logits_BLV.astype(norm_BL.dtype) - norm_BL[..., None])
    label_BL1 = (1 - smoothing - other) * smooth_BL1 + plain_BL1
    grad_BLV = (smooth_BL1 + plain_BL1 + norm_BL1) * probs_BLV - jnp.where(_hits(logits_BLV, labels_BL), label_BL1, 0)
    if smoothing:
        grad_BLV -= other * smooth_BL1
    return grad_BLV.astype(logits_BLV.dtype), None


_cross_entropy.defvjp(_cross_entropy_fwd, _cross_entropy_bwd)


def _hits(logits_BLV: jax.Array, labels_BL: jax.Array) -> jax.Array:
    """Returns a mask [B, L, V], True at the label.

    The compiler partitions it over a cut vocabulary as it lies; for a gather it would move the logits.
    """
    return labels_BL[..., None] == jnp.arange(logits_BLV.shape[-1])


def _label_logit(logits_BLV: jax.Array, labels_BL: jax.Array) -> jax.Array:
    """Returns the label's logit [B, L], 0 for a label that is no class."""
    return jnp.sum(jnp.where(_hits(logits_BLV, labels_BL), logits_BLV, 0), axis=-1)


def is_top_1(logits_BLV: jax.Array, labels_BL: jax.Array) -> jax.Array:
    """Returns whether the label is the likeliest class [B, L]: the one that `jnp.argmax` finds, the first of equals.

    Counts the classes that come before it, which XLA's CPU compiler does in one pass; it computes argmax, a reduction of pairs,
    an element at a time.
    """
    label_BL1 = _label_logit(logits_BLV, labels_BL)[..., None]
    earlier_BLV = jnp.arange(logits_BLV.shape[-1]) < labels_BL[..., None]
    before_BLV = (logits_BLV > label_BL1) | ((logits_BLV == label_BL1) & earlier_BLV)
    return jnp.sum(before_BLV, axis=-1, dtype=jnp.float32) == 0
