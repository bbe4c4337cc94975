"""Updates of the rows of a parameter that a batch reads, instead of the whole parameter (models.protocol.ReadsRows).

A rule that leaves a row without a gradient as it is (AdaGrad, gradient descent without momentum) gives the same numbers either
way; it is applied by rows where a batch reads fewer rows than the parameter has. `LazyAdam` is defined by rows, and is applied so
or refused. The state of an optimizer, and with it a checkpoint, has the same form either way.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from configs.experiment import Experiment
from configs.optimizers import AdaGrad, LazyAdam, Rule, Sgd
from configs.registry import ConfigError
from models.protocol import Model, ReadsRows, RowReader
from models.sharding.params import ParamInfo
from models.sharding.pipelines import one_f_one_b
from trainers.optimizers.transforms import rule_of

PyTree = Any


def readers(e: Experiment, model: Model, infos: Mapping[str, ParamInfo]) -> dict[str, RowReader]:
    """Returns the readers of the parameters that a step changes by rows, by name.

    Args:
      infos: of the parameters that the run changes.

    Raises:
      ConfigError: a parameter has LazyAdam, and cannot be changed by rows.
    """
    examples = e.data.batch_size
    offered = model.row_readers(examples) if isinstance(model, ReadsRows) else {}
    chosen: dict[str, RowReader] = {}
    for name, info in infos.items():
        rule = rule_of(e.optimizer, info)
        if info.sign_step is not None or not _by_rows(rule):
            continue
        obstacle = _obstacle(e, model, info, offered)
        if isinstance(rule, LazyAdam) and obstacle:
            raise ConfigError(f"optimizer: LazyAdam changes {name!r} by rows, but {obstacle}; the nearest is AdamW")
        if isinstance(rule, LazyAdam) or not (obstacle or _reads_all(info, examples * offered[name].reads)):
            chosen[name] = offered[name]
    return chosen


def _by_rows(rule: Rule) -> bool:
    """Returns whether a rule may be applied to some rows of a parameter alone."""
    return isinstance(rule, AdaGrad | LazyAdam) or (isinstance(rule, Sgd) and not rule.momentum)


def _reads_all(info: ParamInfo, reads: int) -> bool:
    return reads >= math.prod(info.shape[:-1])


def _obstacle(e: Experiment, model: Model, info: ParamInfo, offered: Collection[str]) -> str:
    """Returns why a step cannot change a parameter by rows, or ""."""
    if info.name not in offered:
        return "the model reads it whole"
    if e.train.finetune.freeze_layers:
        return f"train.finetune.freeze_layers={e.train.finetune.freeze_layers} clips gradients by a norm without frozen layers"
    if one_f_one_b.is_used(model):
        return "a pipeline of schedule '1f1b' differentiates by whole parameters"
    if info.spec(extra=info.scope.layout.optimizer) != info.spec():
        return f"layout {e.layout.name!r} cuts the optimizer's state in another way than the parameter"
    return ""


def only(tree: PyTree, names: Collection[str]) -> PyTree:
    """Returns what an optimizer's state has of some parameters, and what it has for all of them."""

    def chosen(x: Any) -> Any:
        return {name: x[name] for name in x if name in names} if isinstance(x, dict) else x

    return jax.tree.map(chosen, tree, is_leaf=lambda x: isinstance(x, dict))


def joined(one: PyTree, other: PyTree) -> PyTree:
    """Returns the state of all parameters from states of some and of others; what is for all of them is that of `one`."""

    def both(a: Any, b: Any) -> Any:
        return a | b if isinstance(a, dict) else a

    return jax.tree.map(both, one, other, is_leaf=lambda x: isinstance(x, dict))


def change(
    reader: RowReader,
    gradient: Any,
    tx: optax.GradientTransformation,
    name: str,
    param: jax.Array,
    state: PyTree,
    shared: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, PyTree]:
    """Returns a parameter and its optimizer's state with the rows changed that a gradient is of.

    Args:
      gradient: of `RowReader.summed`.
      tx: the optimizer of this parameter.
      state: of `tx`; its single numbers stay as they are.
      shared: (whether the step is finite, or nothing is changed; the factor by which gradients are clipped).
    """
    leaves, treedef = jax.tree.flatten(state)
    at = [i for i, x in enumerate(leaves) if x.ndim]

    def update(g_KM: jax.Array, rows: Sequence[jax.Array], shared: Any) -> list[jax.Array]:
        finite, factor, leaves = shared
        leaves = list(leaves)
        for i, x in zip(at, rows[1:], strict=True):
            leaves[i] = x
        updates, state = tx.update({name: factor * g_KM}, treedef.unflatten(leaves), {name: rows[0]})
        changed: Any = optax.apply_updates({name: rows[0]}, updates)
        leaves = jax.tree.leaves(state)
        return [jnp.where(finite, a, b) for a, b in zip([changed[name], *(leaves[i] for i in at)], rows, strict=True)]

    numbers = [None if x.ndim else x for x in leaves]
    param, *arrays = reader.change(gradient, [param, *(leaves[i] for i in at)], (*shared, numbers), update)
    for i, x in zip(at, arrays, strict=True):
        leaves[i] = x
    return param, treedef.unflatten(leaves)
