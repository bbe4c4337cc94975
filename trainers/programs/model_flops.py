"""Model FLOPs: those that the mathematics of a step needs, however it is computed.

PaLM's definition (arXiv 2204.02311, appendix B): every product of the forward pass, attention in full though half of it is
masked, times three for the backward pass, without recomputation. A dense decoder has (6 N + 12 L H Q T) a token, with N
excluding tables that are only looked up. FLOPs are counted in the traced loss, so that no family needs a formula of its own.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import core

from configs.experiment import Experiment
from data.reading.batches import batch_shapes
from models.protocol import Context
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import merge
from trainers.plan import make_plan
from trainers.programs import execution


def model_flops(e: Experiment) -> float:
    """Returns the FLOPs of one training step of the whole batch."""
    return 3 * products(loss(execution.mathematical(e)))


def program_flops(e: Experiment) -> float:
    """Returns the FLOPs of one training step as the experiment computes it, with the recomputation of its `remat`."""
    return products(loss(e, gradient=True))


def loss(e: Experiment, *, gradient: bool = False) -> Any:
    """Returns the jaxpr of an experiment's loss, or of its gradient, for the whole batch on one device."""
    value, params, batch = objective(e)
    return jax.make_jaxpr(jax.grad(value) if gradient else value)(params, batch).jaxpr


def objective(e: Experiment) -> tuple[Callable[[Any, Any], jax.Array], Any, Any]:
    """Returns (the loss of parameters and the whole batch on one device, abstract parameters, an abstract batch)."""
    train = dataclasses.replace(e.train, microbatches=1)
    plan = make_plan(dataclasses.replace(execution.ordinary(e), layout=ONE_DEVICE, train=train), abstract=True)
    context = Context(jax.random.key(0), jnp.zeros((), jnp.int32), training=True)

    def value(params: Any, batch: Any) -> jax.Array:
        return merge(plan.model, plan.for_model(params)).loss(batch, context).value

    return value, plan.state.params, batch_shapes(e.data)


def products(jaxpr: Any) -> float:
    """Returns the FLOPs of all products in a jaxpr, in loops as often as they run; of a conditional, the costliest branch."""
    total = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            left = eqn.invars[0].aval.shape
            total += 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(left[d] for d in contracted)
        elif eqn.primitive.name == "conv_general_dilated":
            kernel, numbers = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"]
            total += 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(kernel) / kernel[numbers.rhs_spec[0]]
        elif eqn.primitive.name == "cond":
            total += max(products(branch.jaxpr) for branch in eqn.params["branches"])
        else:
            times = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
            total += times * sum(products(inner) for inner in core.jaxprs_in_params(eqn.params))
    return total
