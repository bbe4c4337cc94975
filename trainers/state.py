"""The state of a run: parameters, optimizer state and step; its form between steps, and the names of its arrays."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding

from models.sharding.padding import resized
from models.sharding.params import param_name
from models.sharding.pipelines.schedule import Schedule

PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """A run's state: arrays, or in a Plan their shapes or shardings.

    `step` counts batches seen; `skipped` counts those whose update was not finite and was left out. `params` are arrays by
    dotted name. Between steps they and their optimizer state have the form in which the step takes them: layers in the order of
    stages (models.sharding.pipelines.one_f_one_b.stage_schedule), and dimensions padded (models.sharding.padding). They are
    stored and evaluated in the model's form.
    """

    step: Any
    skipped: Any
    params: dict[str, Any]
    optimizer: PyTree


def on_device(tree: PyTree) -> PyTree:
    """Returns arrays of a jitted program in the device's memory, where it computes; the host's may have some of them."""
    return jax.device_put(tree, jax.memory.Space.Device)


def in_form(
    tree: PyTree, form: PyTree, own: PyTree, schedules: Mapping[str, Schedule], order: Callable, *, consume: bool = False
) -> PyTree:
    """Returns parameters, or arrays that belong to them under their names, with layers in another order and of other sizes.

    Args:
      form: the arrays' shapes and shardings, as ShapeDtypeStructs; padding is added or cut off.
      own: the same without padding, `form` itself where it is cut off.
      schedules: the schedules of the parameters whose layers move, by name.
      order: (array, schedule) -> array, models.sharding.pipelines.gpipe.
      consume: donates the arrays that move. Arrays that neither move nor change their size are not copied.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree)
    arrays, forms, owns = [x for _, x in leaves], treedef.flatten_up_to(form), treedef.flatten_up_to(own)
    # Scalars are shared by the layers.
    moving = {i: schedules.get(param_name(path)) if x.shape else None for i, (path, x) in enumerate(leaves)}
    moving = {i: s for i, s in moving.items() if s or arrays[i].shape != forms[i].shape}
    if moving:
        donated = tuple(n for n, i in enumerate(moving) if consume and arrays[i].shape == forms[i].shape)
        moves = tuple((s, forms[i], owns[i].sharding) for i, s in moving.items())
        moved = _moving(order, moves, donated)(*(arrays[i] for i in moving))
        for i, x in zip(moving, moved, strict=True):
            arrays[i] = x
    return treedef.unflatten(arrays)


@functools.cache
def _moving(
    order: Callable, moves: tuple[tuple[Schedule | None, jax.ShapeDtypeStruct, NamedSharding], ...], donated: tuple[int, ...]
) -> Callable:
    """Returns a program that gives arrays other orders and forms; cached, because a run stores and evaluates many times.

    All arrays are moved in one program: many small programs in flight can deadlock simulated devices.
    """

    def move(x: jax.Array, schedule: Schedule | None, form: jax.ShapeDtypeStruct, own: NamedSharding) -> jax.Array:
        x = order(x, schedule) if schedule else x
        if x.shape == form.shape:
            return x
        # Cut in equal parts on either side: the partitioner copies unequal ones whole to every device before it cuts them anew.
        cut = NamedSharding(own.mesh, own.spec)
        x = jax.lax.with_sharding_constraint(x, cut)
        return jax.lax.with_sharding_constraint(resized(x, form.shape), cut)

    def move_all(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(move(x, *how) for x, how in zip(on_device(arrays), moves, strict=True))

    return jax.jit(move_all, out_shardings=tuple(form.sharding for _, form, _ in moves), donate_argnums=donated)


def unpadded(tree: PyTree, like: PyTree, shardings: PyTree) -> PyTree:
    """Returns arrays of a jitted program without their padding; they stay cut where they lie, now in unequal parts.

    Args:
      like: abstract arrays of the sizes without padding.
    """

    def cut_off(x: jax.Array, own: Any, sharding: NamedSharding) -> jax.Array:
        if x.shape == own.shape:
            return x
        # In the device's memory, wherever the array lies between steps.
        return jax.lax.with_sharding_constraint(resized(x, own.shape), NamedSharding(sharding.mesh, sharding.spec))

    return jax.tree.map(cut_off, tree, like, shardings)


def padded(tree: PyTree, form: PyTree) -> PyTree:
    """Returns arrays of a jitted program filled up with zeros to the shapes of `form`: the inverse of `unpadded`."""
    return jax.tree.map(lambda x, own: x if x.shape == own.shape else resized(x, own.shape), tree, form)


# --- by name -----------------------------------------------------------------------------------------------------


def by_name(state: State) -> dict[str, Any]:
    """Returns a state's arrays by name, the form in which it is stored: no class of ours or Optax's in it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state.optimizer)
    return {
        "step": state.step,
        "skipped": state.skipped,
        **{f"params.{name}": x for name, x in state.params.items()},
        **{_optimizer_name(path): leaf for path, leaf in leaves},
    }


def from_names(like: State, arrays: Mapping[str, Any]) -> State:
    """Returns the inverse of `by_name`, into the structure of `like`."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(like.optimizer)
    optimizer = jax.tree.unflatten(treedef, [arrays[_optimizer_name(path)] for path, _ in leaves])
    params = {name: arrays[f"params.{name}"] for name in like.params}
    return State(arrays["step"], arrays["skipped"], params, optimizer)


def _optimizer_name(path) -> str:
    keys = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", None)))) for k in path]
    return ".".join(["optimizer", *keys])
