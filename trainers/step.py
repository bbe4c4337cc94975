"""The training step: one jitted function of (state, batch), the same for every family and every layout."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from models.parts.losses import Loss
from models.protocol import Batch, Context
from models.sharding.params import with_params
from models.sharding.pipelines import one_f_one_b
from trainers.optimizers.transforms import optimized
from trainers.plan import Plan
from trainers.runtime.chips import Options, compile_with, options_for
from trainers.state import State, on_device, padded, unpadded

Metrics = dict[str, jax.Array]


def gradients(plan: Plan, params: Any, batch: Batch, context: Context) -> tuple[Any, Loss]:
    """Returns gradients of the batch's loss for the trained parameters, and the loss, added up over microbatches.

    The loss is a mean over the whole batch, however its rows are spread over microbatches.
    """
    n = plan.experiment.train.microbatches
    totals = plan.model.totals(batch)
    trained, frozen = plan.split_trained(params)

    def objective(trained: Any, part: Batch, context: Context) -> tuple[jax.Array, Loss]:
        loss = with_params(plan.model, plan.in_place(trained | frozen, context.key)).loss(part, context, totals)
        return loss.value, loss

    def pipelined(part: Batch, context: Context) -> tuple[Any, Loss]:
        assert one_f_one_b.is_used(plan.model)
        params, pull = jax.vjp(lambda trained: plan.with_adapters(trained | frozen), trained)
        loss, grads = one_f_one_b.loss_and_gradients(plan.model, params, part, totals, context)
        return pull(grads)[0], loss

    differentiated = functools.partial(jax.grad(objective, has_aux=True), trained)
    part_gradients = pipelined if one_f_one_b.is_used(plan.model) else differentiated
    if n == 1:
        return part_gradients(batch, context)

    def parts(x):  # the microbatch is the inner index, so that rows stay on their devices
        return jnp.moveaxis(x.reshape(x.shape[0] // n, n, *x.shape[1:]), 1, 0)

    features = plan.features()

    def accumulate(total, inputs):
        part = {k: plan.model.scope.at(features[k].component).shard(v, "batch", *features[k].axes) for k, v in inputs[0].items()}
        return jax.tree.map(jnp.add, total, part_gradients(part, dataclasses.replace(context, key=inputs[1]))), None

    inputs = ({k: parts(v) for k, v in batch.items()}, context.keys(n))
    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(part_gradients, jax.tree.map(lambda x: x[0], inputs[0]), context))
    return jax.lax.scan(accumulate, zeros, inputs)[0]


def train_step(plan: Plan) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """Returns the jitted step. It donates the state; where loss or gradient is not finite, only the counts change."""
    rate = plan.learning_rate()
    seed = plan.experiment.train.seed

    def own_sizes(tree: Any, part: str) -> Any:
        return unpadded(tree, getattr(plan.state, part), getattr(plan.shardings, part)) if plan.shardings else tree

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        params = own_sizes(state.params, "params")
        grads, loss = gradients(plan, params, batch, Context(key, state.step, training=True))
        if plan.shardings:  # gradients are cut as their parameters are, however the optimizer's state is cut
            grads = jax.lax.with_sharding_constraint(grads, plan.split_trained(plan.shardings.params)[0])
        norm = optax.global_norm(optimized(plan.split_trained(plan.infos)[0], grads))
        finite = jnp.isfinite(loss.value) & jnp.isfinite(norm)
        trained, frozen = plan.split_trained(params)

        def if_finite(new, old):
            return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

        with jax.named_scope("optimizer"):  # in the compiled program, names what belongs to it
            # `out_shardings` put it back.
            offloads = plan.experiment.execution.offloads_optimizer
            before = own_sizes(on_device(state.optimizer) if offloads else state.optimizer, "optimizer")
            updates, optimizer = plan.tx.update(grads, before, trained)
            changed: Any = optax.apply_updates(trained, updates)
            statistics = {name: x for name, x in loss.statistics.items() if name in plan.statistics}
            new = State(
                step=state.step + 1,
                skipped=state.skipped + ~finite,
                params=padded(if_finite(changed | frozen | statistics, params), plan.step_form.params),
                optimizer=padded(if_finite(optimizer, before), plan.step_form.optimizer),
            )
        metrics = {name: ratio.value for name, ratio in loss.metrics.items()} | {
            "loss": loss.value,
            "auxiliary_loss": loss.extra,
            "gradient_norm": norm,
            "learning_rate": jnp.asarray(rate(state.step - state.skipped), jnp.float32),
            "skipped": new.skipped,
            **plan.model.units(batch),
        }
        return new, metrics

    everywhere = plan.replicated()
    return jax.jit(step, donate_argnums=0, out_shardings=(plan.shardings, everywhere) if plan.mesh else None)


def compile_step(plan: Plan, options: Options | None = None) -> jax.stages.Compiled:
    """Compiles the step for abstract inputs: the program that a run executes, and that the tools inspect.

    Args:
      options: compiler options; by default those with which the experiment is planned on such devices.
    """
    if options is None:
        options = options_for(plan.experiment, list(plan.mesh.devices.flat)) if plan.mesh else {}

    def say(line: str) -> None:
        if jax.process_index() == 0:
            print(line, file=sys.stderr, flush=True)

    return compile_with(train_step(plan).lower(plan.step_form, plan.batch_shapes()), options, say)
