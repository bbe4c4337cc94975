"""The state of a run: parameters, optimizer state and step; the order of its layers, and the names of its arrays."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding

from models.sharding.params import param_name
from models.sharding.pipelines.schedule import Schedule

PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """A run's state: arrays, or in a Plan their shapes or shardings.

    `step` counts batches seen; `skipped` counts those whose update was not finite and was left out. `params` are arrays by
    dotted name. They and their optimizer state have their layers in the order in which the step takes them
    (models.sharding.pipelines.one_f_one_b.stage_schedule).
    """

    step: Any
    skipped: Any
    params: dict[str, Any]
    optimizer: PyTree


def on_device(tree: PyTree) -> PyTree:
    """Returns arrays of a jitted program in the device's memory, where it computes; the host's may have some of them."""
    return jax.device_put(tree, jax.memory.Space.Device)


def reordered(tree: PyTree, schedules: Mapping[str, Schedule], order: Callable, *, consume: bool = False) -> PyTree:
    """Returns parameters, or arrays that belong to them under their names, with layers in another order.

    Args:
      schedules: the schedules of the parameters whose layers move, by name; other arrays are not copied.
      order: (array, schedule) -> array, models.sharding.pipelines.gpipe.
      consume: donates the arrays that move.
    """
    leaves, form = jax.tree_util.tree_flatten_with_path(tree)
    arrays = [x for _, x in leaves]
    # Scalars are shared by the layers.
    moving = {i: s for i, (path, x) in enumerate(leaves) if x.shape and (s := schedules.get(param_name(path)))}
    if moving:
        shardings = tuple(arrays[i].sharding for i in moving)
        moved = _reordering(order, tuple(moving.values()), shardings, consume)(*(arrays[i] for i in moving))
        for i, x in zip(moving, moved, strict=True):
            arrays[i] = x
    return form.unflatten(arrays)


@functools.cache
def _reordering(
    order: Callable, schedules: tuple[Schedule, ...], shardings: tuple[NamedSharding, ...], consume: bool
) -> Callable:
    """Returns `order` as a program for arrays with these shardings; cached, because a run stores and evaluates many times.

    All arrays are reordered in one program: many small programs in flight can deadlock simulated devices.
    """

    def reorder(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(order(x, s) for x, s in zip(on_device(arrays), schedules, strict=True))

    return jax.jit(reorder, out_shardings=shardings, donate_argnums=range(len(schedules)) if consume else ())


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
