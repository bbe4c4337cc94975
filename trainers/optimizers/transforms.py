"""Optimizers built from optax, which act on each layer's and each expert's tensor alone, and the shardings of their state.

Optax sees a stack of layers, or of experts, as one tensor. LAMB's trust ratio, and Adafactor's clipping, parameter scale and
factored statistics, would then mix values of different layers. `per_tensor` maps a transformation over the stacked axes, so
that the update does not depend on the stacking or the layout.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from configs import optimizers as settings
from configs.experiment import Finetuning
from configs.registry import ConfigError
from models.errors import nearest
from models.sharding.params import ParamInfo, param_name
from models.sharding.pipelines import one_f_one_b
from models.sharding.pipelines.gpipe import to_stage_order
from trainers.optimizers import adafactor, adagrad

PyTree = Any


def learning_rate(schedule: settings.Schedule) -> optax.Schedule:
    """Returns the learning rate as a function of the step, which counts from 0."""
    match schedule:
        case settings.InverseSqrt():

            def inverse_sqrt(step):
                t = jnp.asarray(step, jnp.float32) + 1  # the first update has t = 1, as in Adafactor's decay
                ramp = jnp.minimum(1.0, t / max(schedule.warmup, 1))
                return schedule.scale * ramp * jax.lax.rsqrt(jnp.maximum(t, schedule.flat))

            return inverse_sqrt
        case settings.Cosine():
            return optax.warmup_cosine_decay_schedule(
                0.0, schedule.peak, schedule.warmup, schedule.steps, schedule.peak * schedule.floor
            )
        case settings.Linear():
            ramp = optax.linear_schedule(0.0, schedule.peak, schedule.warmup)
            down = optax.linear_schedule(schedule.peak, schedule.peak * schedule.floor, schedule.steps - schedule.warmup)
            return optax.join_schedules([ramp, down], [schedule.warmup])
        case settings.Exponential():
            return optax.warmup_exponential_decay_schedule(
                0.0,
                schedule.peak,
                schedule.warmup,
                schedule.steps - schedule.warmup,
                schedule.floor,
                end_value=schedule.peak * schedule.floor,
            )
        case settings.Constant():
            return optax.constant_schedule(schedule.value)


def make(
    config: settings.Optimizer, infos: PyTree, clip_norm: float = 0.0, finetune: Finetuning = Finetuning()
) -> optax.GradientTransformation:
    """Returns the optimizer of a configuration.

    Args:
      infos: ParamInfos by name. Those that are moved by a fixed step
        (models.sharding.params.param) have no state, and their gradients no part in the norm.
      clip_norm: global norm to which gradients are clipped first; 0 does not clip.
      finetune: how many of the lowest layers get no update, and a factor of the updates of components that start fresh.

    Raises:
      ConfigError: a path that no trained parameter's component has.
    """
    if isinstance(config, settings.ByComponent):
        _check_paths(config, optimized(infos, infos))
    return of_parameters(config, infos, clip_norm, finetune)


def of_parameters(
    config: settings.Optimizer, infos: PyTree, clip_norm: float, finetune: Finetuning
) -> optax.GradientTransformation:
    """Returns what `make` does for some of the parameters; its state is what `make`'s has of them (by_rows.py)."""
    everything, infos = infos, optimized(infos, infos)
    parts = [by_component(config, infos)] if isinstance(config, settings.ByComponent) else rule(config, infos)
    clip = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    frozen = [_without_lowest(infos, finetune.freeze_layers)] if finetune.freeze_layers else []
    head = [_faster(infos, finetune.head_rate, finetune.fresh)] if finetune.head_rate != 1 else []
    # Frozen layers are zeroed before and after, so that they count neither in the clipped norm nor in weight decay.
    tx = optax.chain(*frozen, *clip, *parts, *head, *frozen)
    return _beside_moved(tx, everything, finetune.freeze_layers)


def rule(config: settings.Rule, infos: PyTree) -> list[optax.GradientTransformation]:
    """Returns the transformations of an optimizer, the last of which applies its learning rate."""
    match config:
        case settings.Adafactor():
            parts = [adafactor.transformation(config, infos, per_tensor(adafactor.definition(config), infos))]
        case settings.AdamW():
            parts = [optax.scale_by_adam(config.b1, config.b2, config.eps), decay_matrices(config, infos)]
        case settings.LazyAdam():  # of the rows that it is applied to (trainers/optimizers/by_rows.py)
            parts = [optax.scale_by_adam(config.b1, config.b2, config.eps)]
        case settings.Lamb():
            parts = [
                optax.scale_by_adam(config.b1, config.b2, config.eps),
                decay_matrices(config, infos),
                per_tensor(optax.stateless(trust_ratio), infos),
            ]
        case settings.AdaGrad():
            parts = [adagrad.transformation(config, infos)]
        case settings.Sgd():
            parts = [optax.trace(config.momentum)] if config.momentum else []
    return [*parts, optax.scale_by_learning_rate(learning_rate(config.schedule))]


def rule_of(config: settings.Optimizer, info: ParamInfo) -> settings.Rule:
    """Returns the optimizer of a parameter."""
    if not isinstance(config, settings.ByComponent):
        return config
    return {"": config.others, **_rules(config)}[_path_of(config, info)]


def _rules(config: settings.ByComponent) -> dict[str, settings.Rule]:
    return {part.path: part.rule for part in config.components}


def _path_of(config: settings.ByComponent, info: ParamInfo) -> str:
    """Returns the path of the component whose optimizer a parameter has; "" for that of all others."""
    place = f"{info.scope.path}."
    return max((path for path in _rules(config) if place.startswith(f"{path}.")), key=len, default="")


def _check_paths(config: settings.ByComponent, infos: PyTree) -> None:
    """Raises ConfigError for a path that no trained parameter's component has."""
    used = {_path_of(config, info) for info in infos.values()}
    for path in _rules(config):
        if path not in used:
            known = {info.scope.path for info in infos.values()}
            raise ConfigError(f"optimizer.components: no trained parameter in {path!r}{nearest(path, known)}")


def by_component(config: settings.ByComponent, infos: PyTree) -> optax.GradientTransformation:
    """Returns the optimizers of components, each for its own parameters; the state is a tuple of theirs, `others` first."""
    rules = {"": config.others, **_rules(config)}
    owned = {path: {name: info for name, info in infos.items() if _path_of(config, info) == path} for path in rules}
    members = [(owned[path], optax.chain(*rule(r, owned[path]))) for path, r in rules.items()]

    def own(tree: Any, names: Any) -> Any:
        return {name: tree[name] for name in names}

    def init(params: Any) -> Any:
        return tuple(tx.init(own(params, names)) for names, tx in members)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        pairs: Any = [
            tx.update(own(updates, names), s, own(params, names)) for (names, tx), s in zip(members, state, strict=True)
        ]
        merged = {name: u for part, _ in pairs for name, u in part.items()}
        return {name: merged[name] for name in updates}, tuple(s for _, s in pairs)

    return optax.GradientTransformation(init, update)


def optimized(infos: PyTree, tree: PyTree) -> PyTree:
    """Returns what a tree of parameters' structure has of those that the optimizer changes (models.sharding.params.param)."""
    return {name: tree[name] for name, info in infos.items() if info.sign_step is None}


def _beside_moved(tx: optax.GradientTransformation, infos: PyTree, freeze_layers: int) -> optax.GradientTransformation:
    """Returns `tx` for the parameters that it changes; those that are moved by a fixed step have no state."""
    moved = {name: info for name, info in infos.items() if info.sign_step is not None}
    if not moved:
        return tx
    frozen = _without_lowest(moved, freeze_layers)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        steps = {name: -info.sign_step * jnp.sign(updates[name]) for name, info in moved.items()}
        steps: Any = frozen.update(steps, optax.EmptyState())[0]
        made: Any = tx.update(optimized(infos, updates), state, optimized(infos, params))
        return made[0] | steps, made[1]

    return optax.GradientTransformation(lambda params: tx.init(optimized(infos, params)), update)


def _faster(infos: PyTree, factor: float, components: Sequence[str]) -> optax.GradientTransformation:
    """Scales the updates of some components."""
    prefixes = tuple(f"{component}." for component in components)

    def scale(info: ParamInfo, u: Any) -> Any:
        return factor * u if info.name.startswith(prefixes) else u

    return optax.stateless(lambda updates, params: jax.tree.map(scale, infos, updates))


def _without_lowest(infos: PyTree, n: int) -> optax.GradientTransformation:
    """Zeroes the updates of the first n layers of every stack."""

    def zero_lowest(info: ParamInfo, u: Any) -> Any:
        if info.axes[:1] != ("layers",):
            return u
        schedule, layers = one_f_one_b.stage_schedule(info), np.arange(len(u))
        layers = to_stage_order(layers, schedule) if schedule else layers
        return jnp.where((layers >= n).reshape(-1, *(1 for _ in u.shape[1:])), u, 0)

    return optax.stateless(lambda updates, params: jax.tree.map(zero_lowest, infos, updates))


def decay_matrices(config: settings.AdamW | settings.Lamb, infos: PyTree) -> optax.GradientTransformation:
    return optax.add_decayed_weights(config.weight_decay, mask=jax.tree.map(lambda info: info.is_matrix, infos))


def trust_ratio(update: Any, param: Any) -> jax.Array:
    """Scales the update of a tensor to the tensor's norm; as it is where either is zero (You et al. 2020).

    As `optax.scale_by_trust_ratio`, which computes each norm twice, since its norms have gradients at zero.
    """
    size, length = jnp.linalg.norm(param), jnp.linalg.norm(update)
    return update * jnp.where((size == 0) | (length == 0), 1.0, size / length)


def matrix_shape(info: ParamInfo) -> tuple[int, ...]:
    """Returns the shape of one tensor as a matrix between the model dimension and all others; a vector keeps its shape.

    The axis names thus decide which statistics are factored: a query projection (embed, heads, kv) is a matrix
    embed x (heads * kv), for any sizes.
    """
    shape = info.shape[info.stacked :]
    return (math.prod(shape[: info.inputs]), math.prod(shape[info.inputs :])) if info.is_matrix else shape


def per_tensor(tx: optax.GradientTransformation, infos: PyTree) -> optax.GradientTransformation:
    """Returns `tx` mapped over the stacked axes of parameters, so that it sees each tensor alone, as a matrix.

    The state has the structure of the parameters, each leaf replaced by the state of `tx` for it. Scalars of that state, such
    as a step count, are shared by the tensors of a stack.
    """

    def view(info: ParamInfo, x: Any) -> jax.Array:
        return x.reshape(info.shape[: info.stacked] + matrix_shape(info))

    def mapped(info: ParamInfo, f: Any, *in_axes, out_axes) -> Any:
        for _ in range(info.stacked):
            f = jax.vmap(f, in_axes=in_axes, out_axes=out_axes)
        return f

    def state_axes(info: ParamInfo) -> PyTree:
        state = jax.eval_shape(tx.init, jax.ShapeDtypeStruct(matrix_shape(info), info.dtype))
        return jax.tree.map(lambda leaf: 0 if leaf.shape else None, state)

    def init(params: Any) -> Any:
        def init_stack(info: ParamInfo, param: Any) -> Any:
            return mapped(info, tx.init, 0, out_axes=state_axes(info))(view(info, param))

        return jax.tree.map(init_stack, infos, params)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        def update_stack(info: ParamInfo, u: Any, param: Any, s: Any) -> Any:
            axes = state_axes(info)
            pair: Any = mapped(info, tx.update, 0, axes, 0, out_axes=(0, axes))(view(info, u), s, view(info, param))
            return pair[0].reshape(u.shape), pair[1]

        # `state` goes last: tree.map only needs the other trees to be prefixes of its structure.
        pairs = jax.tree.map(update_stack, infos, updates, params, state)
        pick = lambda i: jax.tree.map(lambda _, pair: pair[i], infos, pairs)  # noqa: E731
        return pick(0), pick(1)

    return optax.GradientTransformation(init, update)


def state_specs(state: PyTree, infos: PyTree) -> dict[str, tuple[Any, PartitionSpec]]:
    """Returns (abstract array, PartitionSpec) for every array of an optimizer's state, by path, in the order of its leaves.

    Moments are cut like their parameter, factored statistics and sums of rows like the dimensions that remain; the layout's
    `optimizer` rules override both (ZeRO-1). All other arrays (counts, placeholders) are on every device.
    """
    specs = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        info = infos.get(param_name(path))
        spec = PartitionSpec() if info is None or not leaf.shape else _statistic_spec(info, path[-1], leaf.shape)
        specs[jax.tree_util.keystr(path)] = (leaf, spec)
    return specs


def state_shardings(state: PyTree, infos: PyTree, mesh: Mesh, place: str | None = None) -> PyTree:
    """Returns `state_specs` as a tree of NamedShardings.

    Args:
      place: the kind of memory in which arrays lie, by default the device's own; single numbers lie there in any case.
    """
    specs = state_specs(state, infos).values()
    shardings = [NamedSharding(mesh, spec, memory_kind=place if x.ndim else None) for x, spec in specs]
    return jax.tree.unflatten(jax.tree.structure(state), shardings)


def _statistic_spec(info: ParamInfo, last, shape: tuple[int, ...]) -> PartitionSpec:
    spec = tuple(info.spec(extra=info.scope.layout.optimizer))
    if shape == info.shape:
        return PartitionSpec(*spec)
    if isinstance(last, jax.tree_util.DictKey) and shape == info.shape[:-1]:  # AdaGrad's sums of rows
        return PartitionSpec(*spec[:-1])
    stacked, dims = spec[: info.stacked], spec[info.stacked :]
    own_shape, matrix = shape[info.stacked :], matrix_shape(info)
    sizes = info.shape[info.stacked :]
    split = info.inputs
    # A side of several dimensions stays cut only if nothing but its first, major dimension is cut.
    sides = [
        side[0] if side and not any(side[1:]) and math.prod(size) > 1 else None
        for side, size in ((dims[:split], sizes[:split]), (dims[split:], sizes[split:]))
    ]
    if own_shape == matrix:
        return PartitionSpec(*stacked, *sides[: len(own_shape)])
    rows_first = matrix[0] <= matrix[-1]  # optax: v_row lacks the longer side, v_col the shorter
    if own_shape != (1,):
        is_row = getattr(last, "name", "") == "v_row"
        return PartitionSpec(*stacked, sides[0 if is_row == rows_first else 1])
    return PartitionSpec(*stacked, None)
