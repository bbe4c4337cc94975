"""The training step: one jitted function of (state, batch), the same for every family and every layout."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from models.parts.losses import Loss
from models.protocol import Batch, Context
from models.sharding.params import flatten, merge, nest
from models.sharding.pipelines import one_f_one_b
from trainers.chips import Options, compile_with, options_for
from trainers.plan import Plan
from trainers.state import State

Metrics = dict[str, jax.Array]


def gradients(p: Plan, params: Any, batch: Batch, context: Context) -> tuple[Any, Loss]:
    """Returns gradients of the batch's loss for the trained parameters, and the loss, added up over microbatches.

    The loss is a mean over the whole batch, however its rows are spread over microbatches.
    """
    n = p.experiment.train.microbatches
    totals = p.model.totals(batch)
    trained, frozen = p.divide(params)

    def objective(trained: Any, part: Batch, context: Context) -> tuple[jax.Array, Loss]:
        params = nest(flatten(trained) | flatten(frozen))
        loss = merge(p.model, p.merged(params)).loss(part, context, totals)
        return loss.value, loss

    def of_part(part: Batch, context: Context) -> tuple[Any, Loss]:
        if one_f_one_b.is_used(p.model):
            params, pull = jax.vjp(lambda trained: p.merged(nest(flatten(trained) | flatten(frozen))), trained)
            loss, grads = one_f_one_b.loss_and_gradients(p.model, params, part, totals, context)
            return pull(grads)[0], loss
        (_, loss), grads = jax.value_and_grad(objective, has_aux=True)(trained, part, context)
        return grads, loss

    if n == 1:
        return of_part(batch, context)

    def parts(x):  # the microbatch is the inner index, so that rows stay on their devices
        return jnp.moveaxis(x.reshape(x.shape[0] // n, n, *x.shape[1:]), 1, 0)

    features = p.experiment.data.features()

    def accumulate(total, inputs):
        part = {
            k: p.model.where.at(features[k].component).shard(v, "batch", *features[k].axes)
            for k, v in inputs[0].items()
        }
        return jax.tree.map(jnp.add, total, of_part(part, dataclasses.replace(context, key=inputs[1]))), None

    inputs = ({k: parts(v) for k, v in batch.items()}, context.keys(n))
    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_part, jax.tree.map(lambda x: x[0], inputs[0]), context))
    return jax.lax.scan(accumulate, zeros, inputs)[0]


def train_step(p: Plan) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """Returns the jitted step. It donates the state; where loss or gradient is not finite, only the counts change."""
    rate = p.learning_rate()
    seed = p.experiment.train.seed

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, loss = gradients(p, state.params, batch, Context(key, state.step, training=True))
        if p.shardings:  # gradients lie where their parameters do, however the optimizer's state is cut
            grads = jax.lax.with_sharding_constraint(grads, p.divide(p.shardings.params)[0])
        norm = optax.global_norm(grads)
        finite = jnp.isfinite(loss.value) & jnp.isfinite(norm)
        trained, frozen = p.divide(state.params)

        def if_finite(new, old):
            return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

        with jax.named_scope("optimizer"):  # in the compiled program, names what belongs to it
            updates, optimizer = p.tx.update(grads, state.optimizer, trained)
            changed: Any = optax.apply_updates(trained, updates)
            params = nest(flatten(changed) | flatten(frozen))
            new = State(
                step=state.step + 1,
                skipped=state.skipped + ~finite,
                params=if_finite(params, state.params),
                optimizer=if_finite(optimizer, state.optimizer),
            )
        metrics = {name: ratio.value for name, ratio in loss.metrics.items()} | {
            "loss": loss.value,
            "auxiliary_loss": loss.extra,
            "gradient_norm": norm,
            "learning_rate": jnp.asarray(rate(state.step - state.skipped), jnp.float32),
            "skipped": new.skipped,
            **p.model.units(batch),
        }
        return new, metrics

    everywhere = p.replicated()
    return jax.jit(step, donate_argnums=0, out_shardings=(p.shardings, everywhere) if p.mesh else None)


def compile_step(
    p: Plan, batch: dict[str, jax.ShapeDtypeStruct], options: Options | None = None
) -> jax.stages.Compiled:
    """Compiles the step for abstract inputs: what a run executes, and what the tools inspect.

    Args:
      options: of the compiler; by default those that plans of the experiment are made with on such devices.
    """

    def placed(x, sharding):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    state = jax.tree.map(placed, p.state, p.shardings) if p.mesh else p.state
    shardings = p.batch_shardings()
    batch = {k: placed(v, shardings[k]) for k, v in batch.items()}
    if options is None:
        options = options_for(p.experiment, list(p.mesh.devices.flat)) if p.mesh else {}

    def say(line: str) -> None:
        if jax.process_index() == 0:
            print(line, file=sys.stderr, flush=True)

    return compile_with(train_step(p).lower(state, batch), options, say)
