"""Adafactor in as few passes over gradients and parameters as its definition allows.

Optax's chain of transformations is the definition; here each tensor is updated by one function. What differs is what a compiler
makes of it: squares are summed over either side of a matrix and never reshaped, roots are taken of factored statistics once and
not for every element, and a tensor's clipping and scale are one number of it. Gradients are read three times (for statistics, for
the size of the update, for the update), parameters twice: nothing of their size is stored in between.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from configs.optimizers import Adafactor
from models.sharding.params import ParamInfo

PyTree = Any
EPS = 1e-30  # added to squared gradients
SMALLEST = 1e-3  # of a tensor's RMS, as a scale of its updates


def decay(config: Adafactor, step: Any) -> jax.Array:
    """Returns the second moments' decay at a step, counted from 0."""
    return jnp.minimum(config.max_decay, 1 - (jnp.asarray(step, jnp.float32) + 1) ** -config.decay_exponent)


def definition(config: Adafactor) -> optax.GradientTransformation:
    """Returns Adafactor for one matrix or vector, from optax: the form of its state, and what `update` is tested against."""
    tensor = [
        optax.scale_by_factored_rms(
            decay_rate=config.decay_exponent,
            min_dim_size_to_factor=config.min_factored,
            decay_rate_fn=lambda step, exponent: decay(config, step),
        ),
        optax.clip_by_block_rms(config.clip),
    ]
    return optax.chain(*tensor, *([optax.scale_by_param_block_rms(SMALLEST)] if config.parameter_scale else []))


def update(config: Adafactor, info: ParamInfo, g: Any, param: Any, state: Any) -> tuple[jax.Array, Any]:
    """Returns (the updates of a stack of tensors, before the learning rate; the new state, of `definition` for each tensor)."""
    second, *tail = state
    beta = decay(config, second.count)
    own = tuple(range(info.stacked, g.ndim))
    if _is_factored(config, info):
        u, second = _factored(info, g, second, beta)
    else:
        v = beta * second.v + (1 - beta) * (jnp.square(g).reshape(second.v.shape) + EPS)
        second = second._replace(v=v.astype(g.dtype))
        u = g * (second.v**-0.5).reshape(g.shape)
    scale = 1 / jnp.maximum(1.0, _rms(u, own) / config.clip)
    if config.parameter_scale:
        scale *= jnp.maximum(_rms(param, own), SMALLEST)
    count = optax.safe_increment(second.count)
    return u * scale, (second._replace(count=count), *tail)


def _is_factored(config: Adafactor, info: ParamInfo) -> bool:
    return info.is_matrix and min(map(math.prod, _sides(info.shape, info))) >= config.min_factored


def _sides(dims: tuple[int, ...], info: ParamInfo) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Splits something of each dimension into that of a matrix's rows and of its columns."""
    split = info.stacked + info.inputs
    return dims[info.stacked : split], dims[split:]


def _factored(info: ParamInfo, g: jax.Array, state: Any, beta: jax.Array) -> tuple[jax.Array, Any]:
    """Returns (updates, new state) of matrices with second moments of their rows and columns."""
    sides = _sides(tuple(range(g.ndim)), info)
    rows, columns = map(math.prod, _sides(g.shape, info))
    short, long = sides if rows <= columns else sides[::-1]  # optax: v_row lacks the longer side, v_col the shorter
    square = jnp.square(g)

    def moments(old: jax.Array, over: tuple[int, ...]) -> jax.Array:
        return (beta * old + (1 - beta) * (jnp.mean(square, over).reshape(old.shape) + EPS)).astype(g.dtype)

    def along(v: jax.Array, over: tuple[int, ...]) -> jax.Array:
        return v.reshape([1 if d in over else size for d, size in enumerate(g.shape)])

    v_row, v_col = moments(state.v_row, long), moments(state.v_col, short)
    roots = (v_row / jnp.mean(v_row, -1, keepdims=True)) ** -0.5, v_col**-0.5
    # Left to itself, the compiler takes a root for every element that it multiplies.
    r, c = jax.lax.optimization_barrier(roots)
    return g * along(r, long) * along(c, short), state._replace(v_row=v_row, v_col=v_col)


def _rms(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sqrt(jnp.mean(jnp.square(x), axes, keepdims=True))


def transformation(config: Adafactor, infos: PyTree, stacked: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns Adafactor for a tree of parameters; `stacked` is `definition` mapped over their tensors, whose state it has."""

    def update_all(updates: Any, state: Any, params: Any = None) -> Any:
        pairs = jax.tree.map(functools.partial(update, config), infos, updates, params, state)
        return tuple(jax.tree.map(lambda _, pair: pair[i], infos, pairs) for i in (0, 1))

    return optax.GradientTransformation(stacked.init, update_all)
