"""1F1B and interleaved 1F1B: the loss and gradients of a model whose last stack of layers runs in pipeline stages.

One program for all stages (models/sharding/pipelines/gpipe.py has the idea, models/sharding/pipelines/schedule.py the
ticks). Backward passes are scheduled here, not left to differentiation, so that a stage keeps the inputs of at most 2 v p -
1 chunks, however many microbatches there are; it recomputes the rest. Embedding and loss run inside the ticks, so that no
activation has an axis of microbatches. Where differentiation would add up weight gradients over the data axes at every
tick, each data shard has its own sum here, and they are added after the last tick. Between steps layers are in stage order
(`stage_schedule`), so that no weight is moved.

It runs models that are composed as models.protocol.Staged says. Layers pass arrays [rows, positions, dimensions] to each
other.

p stages, v chunks a stage, m microbatches, D data shards, n layers of a chunk. Arrays of all stages begin [p, D, ...].
"""

import dataclasses
import functools
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jax import lax

from models.parts.losses import Loss, Totals
from models.protocol import Batch, Context, HasPrologue, Model, Staged
from models.sharding.params import ParamInfo, describe, with_params
from models.sharding.pipelines import gpipe
from models.sharding.pipelines.schedule import Schedule

PyTree = Any
Flat = dict[str, jax.Array]  # parameters by dotted name
LayerInputs = tuple[jax.Array, jax.Array]  # what each layer of a chunk has of its own: its key, its number


def is_used(model: Model) -> TypeGuard[Staged]:
    """Returns whether the model's layout asks for a backward pass scheduled here."""
    if not isinstance(model, Staged):
        return False
    pipeline = model.scope.layout.pipeline(model.stack_name)
    return pipeline is not None and pipeline.schedule == "1f1b"


def stage_schedule(info: ParamInfo) -> Schedule | None:
    """Returns the schedule in whose stage order (models.sharding.pipelines.gpipe.to_stage_order) a parameter's layers are kept
    between steps; None if they are in the model's order."""
    for path, pipeline in info.scope.layout.pipelines:
        within = info.axes[:1] == ("layers",) and f"{info.scope.path}.".startswith(f"{path}.")
        if within and pipeline.schedule == "1f1b" and pipeline.chunks > 1:
            return gpipe.schedule_of(info.scope.at(path), pipeline, info.shape[0])
    return None


def loss_and_gradients(model: Staged, params: PyTree, batch: Batch, totals: Totals, context: Context) -> tuple[Loss, PyTree]:
    """Returns the same as jax.value_and_grad of `with_params(model, params).loss`, up to rounding.

    Args:
      model: the model with shapes for parameters, on its mesh.
      params: the parameters of the model by name, in stage order where `stage_schedule` says so; the gradients are like them.
      totals: the totals of the batch that these rows are a part of.
      context: its key draws dropout, in microbatch i as gradient accumulation does in its microbatch i.
    """

    def pipelined(prologue: Batch, context: Context) -> tuple[Loss, PyTree, Batch]:
        run = _Microbatch(model, totals, context)
        loss, grads, d_prologue = OneFOneB.start(run, params, batch, prologue, context).loss_and_gradients(totals)
        return loss, {k: grads[k].astype(v.dtype) for k, v in params.items()}, d_prologue

    if not isinstance(model, HasPrologue):
        loss, grads, _ = pipelined({}, context)
        return loss, grads
    first_context, context = context.split(2)

    def before(params: PyTree) -> tuple[tuple[Batch, jax.Array], Loss]:
        prologue, loss = with_params(model, params).before(batch, first_context, totals)
        return (prologue, loss.value), loss

    (prologue, value), pull, first = jax.vjp(before, params, has_aux=True)
    loss, grads, d_prologue = pipelined(prologue, context)
    (before_grads,) = pull((d_prologue, jnp.ones_like(value)))
    return first + loss, jax.tree.map(jnp.add, grads, before_grads)


@dataclasses.dataclass(frozen=True)
class OneFOneB:
    """A batch in the pipeline: the arrays that all ticks read, and the computations of a tick.

    In a tick stages exchange as little as possible: each computes the numbers of the first and the last stage
    (`schedule.forward(t, 0)`, not element 0 of all stages' numbers), and selects whether new values are for it (`x.at[0].set`
    would be a sum over all).

    Attributes:
      run: the model's functions, mapped over all stages and data shards.
      batch: inputs by microbatch, [m, D, rows, ...].
      prologue: the arrays that `HasPrologue.before` computed for each row, also by microbatch.
      keys_m: a key for each microbatch.
      chunks: parameters of the stack, [p, v, n, ...].
      outer: all other parameters.
    """

    run: "_Microbatch"
    batch: Batch
    prologue: Batch
    keys_m: jax.Array
    chunks: Flat
    outer: Flat

    @classmethod
    def start(cls, run: "_Microbatch", flat: Flat, batch: Batch, prologue: Batch, context: Context) -> "OneFOneB":
        """Splits a batch into microbatches, and a model's parameters into those of the stack and the others."""
        s, mesh = run.schedule, run.mesh

        def parts(x: jax.Array) -> jax.Array:
            """Splits rows into [m, D, rows, ...]; in a data shard the microbatch is the inner index, so that rows do not move."""
            return gpipe.cut(jnp.moveaxis(x.reshape(run.shards, -1, s.microbatches, *x.shape[1:]), 2, 0), mesh, None, run.data)

        batch, prologue = {k: parts(v) for k, v in batch.items()}, {k: parts(v) for k, v in prologue.items()}
        stack = gpipe.chunks_of({k: v for k, v in flat.items() if k in run.stack}, s, mesh, run.axes)
        outer = {k: v for k, v in flat.items() if k not in run.stack}
        return cls(run, batch, prologue, context.keys(s.microbatches), stack, outer)

    # --- a tick ---

    def forward(self, carry: "_Forward", t: jax.Array) -> tuple["_Forward", PyTree]:
        """Runs a tick's forward passes; returns the state after them, and the last stage's outputs."""
        run, s = self.run, self.run.schedule
        active, c, i = s.forward(t, self._stage)
        works, c_first, i_first = s.forward(t, 0)
        enters = works & (c_first == 0)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self._entering())
        new = lax.cond(enters, lambda: run.enter(self.outer, *self._for_first(i_first)), lambda: zeros)
        x = self._put_at(0, enters, carry.x, new)
        stash = jax.tree.map(lambda r, x: lax.dynamic_update_index_in_dim(r, x, t % s.ring, 1), carry.stash, x)
        weights_p, part, keys = self._for_stages(c, i)
        y, loss = run.through(weights_p, x, part, keys)
        loss = jax.tree.map(lambda total, new: total + jnp.where(_like(active, new), new, 0), carry.loss, loss)
        return _Forward(self._roll(y, 1), stash, loss), jax.tree.map(lambda y: y[-1], y)

    def loss(self, carry: "_Backward", y: PyTree, t: jax.Array) -> tuple["_Backward", PyTree]:
        """Computes the loss of the microbatch that leaves the last stage, if one does: (state, gradient of y)."""
        s = self.run.schedule
        active, c, i = s.forward(t, s.stages - 1)

        def leave() -> tuple[Loss, Flat, PyTree]:
            (_, loss), (d_outer, dy) = self.run.leave(self.outer, y, {k: gpipe.take(v, i) for k, v in self.batch.items()})
            return (*jax.tree.map(jnp.add, (carry.loss, carry.outer), (loss, d_outer)), dy)

        unchanged = carry.loss, carry.outer, jax.tree.map(jnp.zeros_like, y)
        loss, d_outer, dy = lax.cond(active & (c == s.chunks - 1), leave, lambda: unchanged)
        return dataclasses.replace(carry, loss=loss, outer=d_outer), dy

    def backward(self, carry: "_Backward", stash: PyTree, dy_last: PyTree, t: jax.Array) -> "_Backward":
        """Runs a tick's backward passes; returns the state after them."""
        run, s = self.run, self.run.schedule
        pick, put = gpipe.map_over_stages(gpipe.take, run.mesh, run.axes), gpipe.map_over_stages(_add_at, run.mesh, run.axes)
        active, c, i = s.backward(t, self._stage)
        works, c_first, i_first = s.backward(t, 0)
        ends = works & (c_first == 0)
        _, c_last, _ = s.backward(t, s.stages - 1)
        dy = self._put_at(s.stages - 1, c_last == s.chunks - 1, carry.dy, dy_last)
        dy = run.place(jax.tree.map(lambda dy: jnp.where(_like(active, dy), dy, 0), dy))
        x = run.place(jax.tree.map(lambda r: pick(r, s.slot(c, i, self._stage)), stash))
        weights_p, part, keys = self._for_stages(c, i)
        d_chunk, dx = run.through_back(weights_p, x, part, keys, dy, active)
        d_chunks = {k: run.place_sum(k, put(g, c, d_chunk[k])) for k, g in carry.chunks.items()}
        dx_first = jax.tree.map(lambda dx: dx[0], dx)

        def begin() -> tuple[Flat, Batch]:
            d_outer, d_prologue = run.enter_back(self.outer, *self._for_first(i_first), dx_first)
            d_outer = jax.tree.map(jnp.add, carry.outer, d_outer)
            return d_outer, {k: g.at[i_first].set(d_prologue[k]) for k, g in carry.prologue.items()}

        d_outer, d_prologue = lax.cond(ends, begin, lambda: (carry.outer, carry.prologue))
        return _Backward(self._roll(dx, -1), d_chunks, d_outer, d_prologue, carry.loss)

    # --- all ticks ---

    def loss_and_gradients(self, totals: Totals) -> tuple[Loss, Flat, Batch]:
        """Returns (loss, gradients of the parameters, gradients of the prologue's arrays): three scans from zeros, then sums."""
        s = self.run.schedule

        def warm(carry: _Forward, t: jax.Array) -> tuple[_Forward, None]:
            return self.forward(carry, t)[0], None

        def steady(carry: tuple[_Forward, _Backward], t: jax.Array) -> tuple[tuple[_Forward, _Backward], None]:
            f, y = self.forward(carry[0], t)
            b, dy = self.loss(carry[1], y, t)
            return (f, self.backward(b, f.stash, dy, t)), None

        def cool(carry: _Backward, t: jax.Array) -> tuple[_Backward, None]:
            zeros = jax.tree.map(lambda dy: jnp.zeros(dy.shape[1:], dy.dtype), carry.dy)
            return self.backward(carry, f.stash, zeros, t), None

        f, b = self._zeros()
        # Ticks depend on the totals, whose sum is never below 0: otherwise XLA's CPU devices could start the collectives of both
        # in different orders, and deadlock.
        ticks = jnp.arange(s.ticks + s.lead) + jnp.minimum(sum(totals.values()), 0)
        f, _ = lax.scan(warm, f, ticks[: s.lead])
        (f, b), _ = lax.scan(steady, (f, b), ticks[s.lead : s.ticks])
        b, _ = lax.scan(cool, b, ticks[s.ticks :])

        # Sums over data shards, once.
        grads = gpipe.stack_of({k: jnp.sum(g, axis=2) for k, g in b.chunks.items()})
        grads |= {k: jnp.sum(g, axis=0) for k, g in b.outer.items()}
        passing = jax.tree.map(lambda x: jnp.sum(x, axis=(0, 1)), f.loss)
        d_prologue = {k: jnp.moveaxis(g, 0, 2).reshape(-1, *g.shape[3:]) for k, g in b.prologue.items()}
        return passing + jax.tree.map(lambda x: jnp.sum(x, axis=0), b.loss), grads, d_prologue

    def _zeros(self) -> tuple["_Forward", "_Backward"]:
        """Returns the state before the first tick."""
        run, s = self.run, self.run.schedule
        x = jax.tree.map(lambda x: jnp.zeros((s.stages, *x.shape), x.dtype), self._entering())
        stash = jax.tree.map(
            lambda x: gpipe.cut(jnp.zeros((s.stages, s.ring, *x.shape[1:]), x.dtype), run.mesh, run.axes, None, run.data), x
        )
        at = jnp.zeros(s.stages, int)
        part = jax.tree.map(lambda v: v[0], self.batch)

        def shapes() -> tuple[Loss, Loss, PyTree, Flat]:
            weights_p, part_p, keys = self._for_stages(at, at)
            (_, leaving), (d_outer, _) = run.leave(self.outer, jax.tree.map(lambda x: x[0], x), part)
            d_chunk, _ = run.through_back(weights_p, x, part_p, keys, x, at == 0)
            return run.through(weights_p, x, part_p, keys)[1], leaving, d_chunk, d_outer

        zeros = jax.tree.map(lambda z: jnp.zeros(z.shape, z.dtype), jax.eval_shape(shapes))
        passing, leaving, d_chunk, d_outer = zeros
        sums = {k: jnp.broadcast_to(g[:, None], (s.stages, s.chunks, *g.shape[1:])) for k, g in d_chunk.items()}
        sums = {k: run.place_sum(k, g) for k, g in sums.items()}
        d_outer = {k: run.place_outer(k, g) for k, g in d_outer.items()}
        d_prologue = jax.tree.map(jnp.zeros_like, self.prologue)
        return _Forward(run.place(x), stash, passing), _Backward(run.place(x), sums, d_outer, d_prologue, leaving)

    # --- the inputs and outputs of a tick ---

    @property
    def _stage(self) -> jax.Array:
        return jnp.arange(self.run.schedule.stages)

    def _entering(self) -> PyTree:
        """Returns the shapes of the first stage's inputs."""
        return jax.eval_shape(lambda: self.run.enter(self.outer, *self._for_first(jnp.array(0))))

    def _for_first(self, i: jax.Array) -> tuple[Batch, Batch, jax.Array]:
        """Returns microbatch i as the first stage reads it: (the prologue's arrays, inputs, keys)."""
        part = {k: gpipe.take(v, i) for k, v in self.batch.items()}
        return {k: gpipe.take(v, i) for k, v in self.prologue.items()}, part, self.run.keys(self.keys_m[i])

    def _for_stages(self, c: jax.Array, i: jax.Array) -> tuple[PyTree, Batch, LayerInputs]:
        """Returns (weights, inputs, keys) of each stage's chunk c [p] and microbatch i [p]."""
        run = self.run
        pick = gpipe.map_over_stages(gpipe.take, run.mesh, run.axes)
        # Cut over stages and data shards only: the residual stream's cut would have to be undone in every layer.
        part = {k: gpipe.cut(v[i], run.mesh, run.axes, run.data, *(None,) * (v.ndim - 2)) for k, v in self.batch.items()}
        keys = jax.vmap(run.layer_keys)(self.keys_m[i], c, self._stage)
        return {k: pick(w, c) for k, w in self.chunks.items()}, part, keys

    def _put_at(self, number: int, condition: jax.Array, xs: PyTree, new: PyTree) -> PyTree:
        """Returns the stages' arrays, with those of one stage replaced by new ones if the condition holds."""
        chosen = condition & (self._stage == number)
        return self.run.place(jax.tree.map(lambda x, new: jnp.where(_like(chosen, x), new[None], x), xs, new))

    def _roll(self, tree: PyTree, shift: int) -> PyTree:
        """Shifts the stages' arrays to their neighbours, on the devices that read them."""
        return self.run.place(jax.tree.map(lambda x: jnp.roll(x, shift, axis=0), self.run.place(tree)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Forward:
    """The state of the forward passes from tick to tick: inputs [p, D, ...] of all stages, those kept [p, ring, D, ...] for the
    backward passes, and the layers' share of the loss [p, D]."""

    x: PyTree
    stash: PyTree
    loss: Loss


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Backward:
    """The state of the backward passes: gradients of all stages' outputs [p, D, ...]; sums of gradients of chunks
    [p, v, D, n, ...], of the other parameters [D, ...], and of the prologue's arrays [m, D, ...]; losses [D]."""

    dy: PyTree
    chunks: dict[str, jax.Array]
    outer: dict[str, jax.Array]
    prologue: Batch
    loss: Loss


class _Microbatch:
    """The model's own functions for a microbatch, mapped over all data shards and stages.

    The data axes are explicit dimensions here, so the model inside has a layout without them.
    """

    def __init__(self, model: Staged, totals: Totals, context: Context):
        scope = model.scope / model.stack_name
        layout, pipeline = scope.layout, scope.layout.pipeline(scope.path)
        assert pipeline is not None
        self.mesh, self.axes, self.data = scope.mesh, gpipe.stage_axes(scope), gpipe.data_axes(scope)
        self.shards = layout.num_shards(self.data)
        inner_scope = dataclasses.replace(model.scope, layout=gpipe.inside(scope, self.data))
        make: Any = type(model)
        inner: Any = jax.eval_shape(lambda key: make(model.c, key, inner_scope), jax.random.key(0))
        infos = {info.name: info for info in describe(inner)}
        self.stack = {k: v for k, v in infos.items() if k.startswith(f"{model.stack_name}.")}
        self._infos, self._layers = infos, next(iter(self.stack.values())).shape[0]
        self.schedule = gpipe.schedule_of(scope, pipeline, self._layers)
        self._inner, self._totals, self._context = inner, totals, context
        over_shards = functools.partial(jax.vmap, spmd_axis_name=self.data or None)
        over_stages = functools.partial(jax.vmap, spmd_axis_name=self.axes)
        self.enter = over_shards(self._enter, (None, 0, 0, 0))
        self.enter_back = over_shards(self._enter_back, (None, 0, 0, 0, 0))
        self.through = over_stages(over_shards(self._through, (None, 0, 0, 0)))
        self.through_back = over_stages(over_shards(self._through_back, (None, 0, 0, 0, 0, None)))
        self.leave = over_shards(jax.value_and_grad(self._leave, argnums=(0, 1), has_aux=True), (None, 0, 0))

    # --- of one microbatch, one data shard and one stage ---

    def _with_key(self, key: jax.Array | None, layers: jax.Array | None = None) -> Context:
        return dataclasses.replace(self._context, key=key, layers=layers)

    def _outer(self, outer: Flat) -> Any:
        """Returns the model with its parameters outside of the stack; the others are shapes."""
        missing = {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in self.stack.items()}
        return with_params(self._inner, outer | missing)

    def _residual(self, x: PyTree) -> PyTree:
        """Cuts arrays as between layers, so that their gradient, which an end of the pipeline reads, is cut in the same way."""
        scope = self._inner.scope / self._inner.stack_name
        return jax.tree.map(lambda x: scope.shard(x, "batch", "res_length", "act_embed"), x)

    def _enter(self, outer: Flat, prologue: Batch, part: Batch, key: jax.Array) -> PyTree:
        """Returns the input of the first layer."""
        return self._residual(self._outer(outer).embed(part | prologue, self._with_key(key).split(2)[0]))

    def _enter_back(self, outer: Flat, prologue: Batch, part: Batch, key: jax.Array, dx: PyTree) -> tuple[Flat, Batch]:
        """Returns the gradients of parameters and prologue from those of the first layer's input."""
        return jax.vjp(lambda outer, prologue: self._enter(outer, prologue, part, key), outer, prologue)[1](dx)

    def _through(self, chunk: Flat, x: PyTree, part: Batch, keys_n: LayerInputs) -> tuple[PyTree, Loss]:
        """Returns (the output of a chunk of layers, the losses that they add)."""
        name = self._inner.stack_name
        blocks = with_params(getattr(self._inner, name), {k.removeprefix(f"{name}."): v for k, v in chunk.items()})
        return self._inner.apply_layers(blocks, x, part, self._with_key(*keys_n), self._totals)

    def _through_back(
        self, chunk: Flat, x: PyTree, part: Batch, keys_n: LayerInputs, dy: PyTree, active: jax.Array
    ) -> tuple[Flat, PyTree]:
        """Returns the gradients of a chunk's parameters and input from those of its output, and of its losses if it is active."""

        def values(chunk: Flat, x: PyTree) -> tuple[PyTree, jax.Array]:
            y, loss = self._through(chunk, x, part, keys_n)
            return y, loss.value

        (_, value), pull = jax.vjp(values, chunk, x)
        return pull((dy, active.astype(value.dtype)))

    def _leave(self, outer: Flat, y: PyTree, part: Batch) -> tuple[jax.Array, Loss]:
        """Returns the loss of the last layer's output, as its value and whole."""
        loss = self._outer(outer).head_loss(self._residual(y), part, self._with_key(None), self._totals)
        return loss.value, loss

    # --- of all ---

    def place(self, tree: PyTree) -> PyTree:
        """Constrains arrays [p, D, ...] to the devices of their stages and data shards."""
        return jax.tree.map(lambda x: gpipe.cut(x, self.mesh, self.axes, self.data), tree)

    def keys(self, key: jax.Array) -> jax.Array:
        """Returns keys [D], one for each data shard of a microbatch."""
        return key[None] if self.shards == 1 else jax.random.split(key, self.shards)

    def layer_keys(self, key: jax.Array, chunk: jax.Array, stage: jax.Array) -> LayerInputs:
        """Returns (keys, numbers) [D, n] of the layers of a chunk."""
        s = self.schedule
        all_keys = jax.vmap(lambda key: self._with_key(key).split(2)[1].keys(self._layers))(self.keys(key))
        numbers = jnp.broadcast_to(jnp.arange(self._layers, dtype=jnp.int32), all_keys.shape)
        chosen = [x.reshape(self.shards, s.chunks, s.stages, -1)[:, chunk, stage] for x in (all_keys, numbers)]
        return chosen[0], chosen[1]

    def place_sum(self, name: str, x: jax.Array) -> jax.Array:
        """Constrains gradient sums [p, v, D, n, ...] of a stack's parameter to its cut, each data shard's to its own devices."""
        return gpipe.cut(x, self.mesh, self.axes, None, self.data, None, *self._infos[name].spec()[1:])

    def place_outer(self, name: str, x: jax.Array) -> jax.Array:
        """Constrains gradient sums [D, ...] of any other parameter in the same way."""
        return gpipe.cut(x, self.mesh, self.data, *self._infos[name].spec())


def _like(active: jax.Array, x: jax.Array) -> jax.Array:
    """Reshapes [p] to [p, 1, ...], to be broadcast against x."""
    return active.reshape(-1, *(1,) * (x.ndim - 1))


def _add_at(total: jax.Array, index: jax.Array, x: jax.Array) -> jax.Array:
    return total.at[index].add(x.astype(total.dtype))
