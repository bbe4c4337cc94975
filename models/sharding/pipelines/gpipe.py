"""Runs a stack of layers in pipeline stages as one differentiable program (GPipe, or circular with chunks).

The program holds all stages at once, along a leading axis "stage" of its arrays that the layout cuts over devices (GSPMD, arXiv
2105.04663, section 3.3): a tick runs one chunk of every stage, then rolls their outputs to the next, which becomes a
collective-permute. p stages, v chunks, m microbatches, n layers of a chunk. 1F1B, with a backward pass of its own, is
models/sharding/pipelines/one_f_one_b.py.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from models.sharding.component import Component
from models.sharding.layout import Layout, LayoutError, Pipeline, Rules
from models.sharding.pipelines.schedule import Schedule

PyTree = Any


def schedule_of(scope: Component, pipeline: Pipeline, layers: int) -> Schedule:
    """Returns the schedule of a component's pipeline; raises LayoutError if stages and chunks do not divide its layers."""
    p, v = scope.layout.num_shards(stage_axes(scope)), pipeline.chunks
    if layers % (p * v):
        below, above = layers // (p * v) * p * v, -(-layers // (p * v)) * p * v
        fits = [d for d in range(1, layers + 1) if layers % d == 0 and d <= p * v]
        raise LayoutError(
            f"pipeline of {scope.path!r}, layout {scope.layout.name!r}: {layers} layers are not divisible by {p} stages x {v} "
            f"chunks = {p * v}; the nearest that fit are {f'{below} or ' if below else ''}{above} layers, or stages x chunks "
            f"= {fits[-1]}"
        )
    return Schedule(p, v, pipeline.microbatches)


def schedules(scope: Component, infos: Sequence[Any]) -> dict[str, Schedule]:
    """Returns the schedules of all pipelines of a layout by component path; raises LayoutError as `schedule_of`.

    Args:
      scope: any component of the model.
      infos: ParamInfo of its parameters.
    """
    by_path = {}
    for path, settings in scope.layout.pipelines:
        layers = next(info.shape[0] for info in infos if info.name.startswith(f"{path}.") and info.stacked)
        by_path[path] = schedule_of(scope.at(path), settings, layers)
    return by_path


def stage_axes(scope: Component) -> tuple[str, ...]:
    """Returns the mesh axes whose shards are the component's pipeline stages."""
    return scope.layout.resolve(scope.path)["layers"]


def data_axes(scope: Component) -> tuple[str, ...]:
    """Returns the mesh axes over which a component's rows are independent: those of its rows, from the first on, up to one that
    cuts experts, which exchange tokens along it."""
    layout, path = scope.layout, scope.path
    tables = [layout.resolve(path), *(dict(rules) for p, rules in layout.components if p.startswith(f"{path}."))]
    exchanged = {axis for table in tables for name in ("expert", "act_expert") for axis in table.get(name, ())}
    rows = tables[0].get("batch", ())
    return rows[: next((i for i, axis in enumerate(rows) if axis in exchanged), len(rows))]


def inside(scope: Component, axes: tuple[str, ...]) -> Layout:
    """Returns the layout in force inside a stage and a data shard: their axes are array dimensions there and cut nothing."""

    def table(rules: Rules) -> Rules:
        return tuple((name, tuple(a for a in cuts if a not in axes)) for name, cuts in rules if name != "layers")

    layout = scope.layout
    components = tuple((path, table(rules)) for path, rules in layout.components)
    return dataclasses.replace(layout, rules=table(layout.rules), components=components, pipelines=())


def with_layout(tree: PyTree, layout: Layout) -> PyTree:
    """Returns a pytree with its modules copied, each of them under another layout; the arrays are the same."""

    def replace_layout(module: nnx.Module) -> nnx.Module:
        new = copy.copy(module)
        for name, value in vars(module).items():
            if isinstance(value, nnx.Module):
                setattr(new, name, replace_layout(value))
            elif isinstance(value, Component):
                setattr(new, name, dataclasses.replace(value, layout=layout))
        return new

    is_module = lambda x: isinstance(x, nnx.Module)  # noqa: E731
    return jax.tree.map(lambda x: replace_layout(x) if is_module(x) else x, tree, is_leaf=is_module)


def cut(x: jax.Array, mesh: Any, *axes: Any) -> jax.Array:
    """Constrains leading dimensions to mesh axes; the compiler decides about the others. Returns x itself without a mesh."""
    if mesh is None:
        return x
    others = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - len(axes))
    return jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, PartitionSpec(*axes, *others)))


def map_over_stages(f: Callable, mesh: Any, axes: tuple[str, ...]) -> Callable:
    """Maps f, which acts on one stage's slice of arrays (their first dimension, left out), over all stages.

    If f indexes by a number that differs from stage to stage, the compiler would gather the indexed array; shard_map, manual over
    the stage axes only, makes each device work on its own stage.
    """
    mapped = jax.vmap(f)
    if mesh is None:
        return mapped
    spec = PartitionSpec(axes)
    return jax.shard_map(mapped, mesh=mesh, in_specs=spec, out_specs=spec, axis_names=set(axes), check_vma=False)


def to_stage_order(x: Any, s: Schedule) -> Any:
    """Reorders [layers, ...] of JAX or NumPy from the model's order to stage by stage, in a stage chunk by chunk.

    Cut into stages along the layers, every stage then has its own chunks. With one chunk a stage both orders are the same.
    """
    return x.reshape(s.chunks, s.stages, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def to_layer_order(x: Any, s: Schedule) -> Any:
    """Reorders [layers, ...] back to the model's order, the inverse of `to_stage_order`."""
    return x.reshape(s.stages, s.chunks, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def chunks_of(stacked: PyTree, s: Schedule, mesh: Any, axes: tuple[str, ...]) -> PyTree:
    """Reshapes [layers, ...] in stage order to [stage, chunk, n, ...]; each stage's chunks stay on its devices."""
    return jax.tree.map(lambda x: cut(x.reshape(s.stages, s.chunks, -1, *x.shape[1:]), mesh, axes), stacked)


def stack_of(chunks: PyTree) -> PyTree:
    """Reshapes chunks back to [layers, ...], the inverse of `chunks_of`."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), chunks)


def take(x: jax.Array, index: jax.Array) -> jax.Array:
    """Returns x[index] along the first dimension."""
    return jax.lax.dynamic_index_in_dim(x, index, 0, keepdims=False)


def circular(
    body: Callable, carry: PyTree, stacked: PyTree, rows: PyTree, scope: Component, pipeline: Pipeline
) -> tuple[PyTree, PyTree]:
    """Computes `scan(body, carry, stacked, rows)` in pipeline stages; differentiable.

    Args:
      body: (carry, layer, rows) -> (carry, out), already rematerialised; `out` must be a sum over rows.
      carry: arrays with the batch's rows in front.
      stacked: arrays with the layers in front.
      rows: the inputs of layers for each row, rows in front; a leaf whose first dimension is 1 is the same for all rows.

    Returns:
      (carry, out with the layers in front), as `scan`.

    Raises:
      LayoutError: stages and chunks do not divide the layers.
    """
    layers = jax.tree.leaves(stacked)[0].shape[0]
    run = _Circular(body, scope, schedule_of(scope, pipeline, layers), jax.tree.leaves(carry)[0].shape[0])
    return run(carry, stacked, rows)


class _Circular:
    """A stack in stages: `body` for the chunks of all stages at once, tick by tick."""

    def __init__(self, body: Callable, scope: Component, schedule: Schedule, batch: int):
        self.body, self.scope, self.schedule, self.batch = body, scope, schedule, batch
        self.mesh, self.axes, self.data = scope.mesh, stage_axes(scope), data_axes(scope)
        self.shards, self.stage = scope.layout.num_shards(self.data), jnp.arange(schedule.stages)
        over_shards = jax.vmap(self._chunk, spmd_axis_name=self.data or None)
        self._over_all = jax.vmap(over_shards, spmd_axis_name=self.axes)
        self._pick = map_over_stages(take, self.mesh, self.axes)
        self._add_at = map_over_stages(_add_at, self.mesh, self.axes)

    def __call__(self, carry: PyTree, stacked: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
        """Returns (carry, out with the layers in front)."""
        s = self.schedule
        fresh, rows = jax.tree.map(self._microbatches, (carry, rows))
        # With several chunks a stage, layers travel to their stages here, once a step.
        ordered = jax.tree.map(lambda x: to_stage_order(x, s), with_layout(stacked, inside(self.scope, self.data)))
        weights = jax.tree.map(self._per_shard, chunks_of(ordered, s, self.mesh, self.axes))
        # Keep only each tick's inputs. Re-select the chunk's weights in the backward pass, or every tick would save a copy.
        run = jax.checkpoint(functools.partial(self._run, weights), prevent_cse=False)

        x = jax.tree.map(lambda f: self._place(jnp.zeros((s.stages, *f.shape[1:]), f.dtype)), fresh)
        first = jnp.zeros_like(self.stage)
        _, out = jax.eval_shape(run, first, x, jax.tree.map(lambda r: r[first], rows))
        total = jax.tree.map(lambda o: jnp.zeros((s.stages, s.chunks, *o.shape[1:]), o.dtype), out)
        tick = functools.partial(self._tick, run, fresh, rows)
        (_, total), left = jax.lax.scan(tick, (x, total), jnp.arange(s.ticks))
        out = stack_of(jax.tree.map(lambda o: jnp.sum(o, axis=2), total))
        return jax.tree.map(self._to_batch, left), jax.tree.map(lambda x: to_layer_order(x, s), out)

    def _tick(self, run: Callable, fresh: PyTree, rows: PyTree, state: PyTree, t: jax.Array) -> tuple[PyTree, PyTree]:
        """Runs a chunk of every stage; returns ((the stages' next inputs, the sums of `out`), the last stage's output)."""
        x, total = state
        active, c, i = self.schedule.forward(t, self.stage)
        x = jax.tree.map(lambda x, fresh: self._place(x.at[0].set(jnp.where(c[0] == 0, take(fresh, i[0]), x[0]))), x, fresh)
        y, out = run(c, x, jax.tree.map(lambda r: self._place(r[i]), rows))
        y = jax.tree.map(self._place, y)
        total = jax.tree.map(lambda total, new: self._add_at(total, new, c, active), total, out)
        return (jax.tree.map(lambda y: self._place(jnp.roll(y, 1, axis=0)), y), total), jax.tree.map(lambda y: y[-1], y)

    def _run(self, weights: PyTree, c: jax.Array, x: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
        """Runs each stage's chunk c [p]."""
        return self._over_all(jax.tree.map(lambda w: self._pick(w, c), weights), x, rows)

    def _chunk(self, weights: PyTree, x: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
        """Runs a chunk of one stage and one data shard."""
        return jax.lax.scan(lambda x, layer: self.body(x, layer, rows), x, weights)

    def _place(self, x: jax.Array) -> jax.Array:
        """Constrains an array [p, D, ...] to the devices of its stages and data shards."""
        return cut(x, self.mesh, self.axes, self.data)

    def _microbatches(self, x: jax.Array) -> jax.Array:
        """Splits rows into [m, D, rows, ...]; the microbatch is the minor part of a row's number, so that rows do not move."""
        m = self.schedule.microbatches
        if x.shape[0] != self.batch:
            return jnp.broadcast_to(x, (m, self.shards, *x.shape))
        return cut(jnp.moveaxis(x.reshape(self.shards, -1, m, *x.shape[1:]), 2, 0), self.mesh, None, self.data)

    def _to_batch(self, y: jax.Array) -> jax.Array:
        """Returns the rows of the outputs [t, D, rows, ...] that leave the last stage, in their order."""
        return jnp.moveaxis(y[self.schedule.leaving()], 0, 2).reshape(self.batch, *y.shape[3:])

    def _per_shard(self, w: jax.Array) -> jax.Array:
        """Repeats weights as [p, v, D, n, ...], so that each shard adds up its own gradient until the last tick."""
        w = jnp.broadcast_to(w[:, :, None], (*w.shape[:2], self.shards, *w.shape[2:]))
        return cut(w, self.mesh, self.axes, None, self.data)


def _add_at(total: jax.Array, new: jax.Array, c: jax.Array, active: jax.Array) -> jax.Array:
    """Adds what an active stage returns of its chunk c."""
    return total.at[c].add(jnp.where(active, new, 0))
