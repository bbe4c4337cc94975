"""AdaGrad, with a sum for each number or for each row of a matrix, such as an embedding table."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from configs.optimizers import AdaGrad
from models.sharding.params import ParamInfo

PyTree = Any


class AdaGradState(NamedTuple):
    """Sums of squares of gradients, by parameter: of its shape, or without its last dimension where rows have one."""

    squares: Any


def transformation(config: AdaGrad, infos: PyTree) -> optax.GradientTransformation:
    """Returns AdaGrad's scaling. A row whose gradients were all zero has no sum and no update, whatever eps is."""

    def sums_of_rows(info: ParamInfo) -> bool:
        return config.by_row and info.is_matrix

    def init(params: Any) -> AdaGradState:
        def sums(info: ParamInfo, p: Any) -> jax.Array:
            return jnp.full(p.shape[:-1] if sums_of_rows(info) else p.shape, config.initial, p.dtype)

        return AdaGradState(jax.tree.map(sums, infos, params))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        def added(info: ParamInfo, g: jax.Array, s: jax.Array) -> jax.Array:
            return s + (jnp.mean(g * g, axis=-1) if sums_of_rows(info) else g * g)

        def scaled(info: ParamInfo, g: jax.Array, s: jax.Array) -> jax.Array:
            root = jnp.sqrt(s[..., None] if sums_of_rows(info) else s) + config.eps
            return jnp.where(root > 0, g / jnp.where(root > 0, root, 1), 0)

        squares = jax.tree.map(added, infos, updates, state.squares)
        return jax.tree.map(scaled, infos, updates, squares), AdaGradState(squares)

    return optax.GradientTransformation(init, update)
