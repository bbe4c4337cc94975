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
from trainers.optimizers import by_rows
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

    features = {name: (plan.model.scope.at(f.component), f.axes) for name, f in plan.features().items()}
    features |= {name: (plan.infos[name].scope, (None,)) for name in plan.by_rows}

    def accumulate(total, inputs):
        part = {k: features[k][0].shard(v, "batch", *features[k][1]) for k, v in inputs[0].items()}
        return jax.tree.map(jnp.add, total, part_gradients(part, dataclasses.replace(context, key=inputs[1]))), None

    inputs = ({k: parts(v) for k, v in batch.items()}, context.keys(n))
    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(part_gradients, jax.tree.map(lambda x: x[0], inputs[0]), context))
    return jax.lax.scan(accumulate, zeros, inputs)[0]


def train_step(plan: Plan) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """Returns the jitted step. It donates the state; where loss or gradient is not finite, only the counts change."""
    rate = plan.learning_rate()
    seed, clip_norm = plan.experiment.train.seed, plan.experiment.train.clip_norm

    def whole(tree: dict[str, Any]) -> dict[str, Any]:
        """Returns what a tree has of parameters that are changed whole."""
        return {name: x for name, x in tree.items() if name not in plan.by_rows}

    def own_sizes(tree: Any, part: str) -> Any:
        return unpadded(tree, getattr(plan.state, part), getattr(plan.shardings, part)) if plan.shardings else tree

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        params = own_sizes(state.params, "params")
        rows = {name: reader.read(params[name], batch) for name, reader in plan.by_rows.items()}
        values, index = ({name: getattr(read, field) for name, read in rows.items()} for field in ("values", "index"))
        grads, loss = gradients(plan, params | values, batch | index, Context(key, state.step, training=True))
        summed = {name: reader.summed(rows[name], grads[name]) for name, reader in plan.by_rows.items()}
        grads, (trained, frozen) = whole(grads), plan.split_trained(whole(params))
        if plan.shardings:  # gradients are cut as their parameters are, however the optimizer's state is cut
            grads = jax.lax.with_sharding_constraint(grads, {name: plan.shardings.params[name] for name in grads})
        infos = {name: plan.infos[name] for name in grads}
        norm = optax.global_norm((optimized(infos, grads), [jnp.sqrt(squares) for _, squares in summed.values()]))
        finite = jnp.isfinite(loss.value) & jnp.isfinite(norm)

        def if_finite(new, old):
            return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

        with jax.named_scope("optimizer"):  # in the compiled program, names what belongs to it
            # `out_shardings` put it back.
            offloads = plan.experiment.execution.offloads_optimizer
            before = own_sizes(on_device(state.optimizer) if offloads else state.optimizer, "optimizer")
            factor = jnp.ones_like(norm)
            if summed and clip_norm:  # by the norm of all gradients, after which each optimizer finds nothing to clip in its own
                factor = jnp.where(norm < clip_norm, 1, clip_norm / norm)
                grads = jax.tree.map(lambda g: factor * g, grads)
            own = by_rows.only(before, trained)
            updates, optimizer = plan.optimizer_of(trained).update(grads, own, trained)
            changed: Any = optax.apply_updates(trained, updates)
            statistics = {name: x for name, x in loss.statistics.items() if name in plan.statistics}
            changed, optimizer = if_finite((changed | frozen | statistics, optimizer), (whole(params), own))
            for name, (gradient, _) in summed.items():
                reader, tx, own = plan.by_rows[name], plan.optimizer_of((name,)), by_rows.only(before, (name,))
                changed[name], own = by_rows.change(reader, gradient, tx, name, params[name], own, (finite, factor))
                optimizer = by_rows.joined(optimizer, own)
            new = State(
                step=state.step + 1,
                skipped=state.skipped + ~finite,
                params=padded(changed, plan.step_form.params),
                optimizer=padded(optimizer, plan.step_form.optimizer),
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
