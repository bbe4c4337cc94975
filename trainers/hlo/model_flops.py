"""Model FLOPs: those that the mathematics of a step needs, however it is computed.

PaLM's definition (arXiv 2204.02311, appendix B): every product of the forward pass, attention in full though half of it is
masked, and for each of its two factors one more in the backward pass, without recomputation. A factor that no trained parameter
has made needs no gradient: a first convolution on pictures counts twice, not three times, and so does a product with a frozen
matrix. Fine-tuning by adapters (LoRA) thus has 4 N and not 6 N, and three times its adapters; a run's program computes neither
a sum of matrices nor its gradient. Frozen lowest layers of a stack count as trained ones. A dense decoder that is trained has
(6 N + 12 L H Q T) a token, with N excluding tables that are only looked up. Of a mixture, N has the experts that a token is sent
to: K of them, or fewer where their slots are fewer than K a token. Slots that stay empty are a cost, not work; `slot_flops`
counts them too. FLOPs are counted in the traced loss, so that no family needs a formula of its own; as in XLA's count, a
convolution does not multiply padding.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

from configs.experiment import Experiment
from data.reading.batches import batch_shapes
from models.protocol import Context
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import with_params
from trainers.hlo import variants
from trainers.plan import make_plan


def model_flops(e: Experiment) -> float:
    """Returns the FLOPs of one training step of the whole batch."""
    return _step(variants.mathematical(e))


def slot_flops(e: Experiment) -> float:
    """Returns the same with all slots of experts' buffers, filled or empty: what any dispatch through buffers multiplies."""
    return _step(variants.with_slots(e))


def _step(e: Experiment) -> float:
    value, trained, given = objective(e)
    jaxpr = jax.make_jaxpr(value)(trained, given).jaxpr
    parameters = len(jax.tree.leaves(trained))
    return count(jaxpr, [i < parameters for i in range(len(jaxpr.invars))], backward=True)[0]


def program_flops(e: Experiment) -> float:
    """Returns the FLOPs of one training step as the experiment computes it, with the recomputation of its `remat`."""
    return products(loss(e, gradient=True))


def loss(e: Experiment, *, gradient: bool = False) -> Any:
    """Returns the jaxpr of an experiment's loss, or of its gradient, for the whole batch on one device; all of it is used."""
    value, *inputs = objective(variants.ordinary(e))
    jaxpr = jax.make_jaxpr(jax.grad(value) if gradient else value)(*inputs).jaxpr
    return dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def objective(e: Experiment) -> tuple[Callable[[Any, Any], jax.Array], Any, Any]:
    """Returns (the loss on one device, abstract trained parameters, the rest of its input).

    The loss is a function of trained parameters by name and of (frozen ones, the whole batch).
    """
    train = dataclasses.replace(e.train, microbatches=1)
    plan = make_plan(dataclasses.replace(e, layout=ONE_DEVICE, train=train), abstract=True)
    context = Context(jax.random.key(0), jnp.zeros((), jnp.int32), training=True)

    def value(trained: Any, given: Any) -> jax.Array:
        frozen, batch = given
        return with_params(plan.model, plan.in_place(trained | frozen, context.key)).loss(batch, context).value

    trained, frozen = plan.split_trained(plan.state.params)
    return value, trained, (frozen, batch_shapes(e.data))


def products(jaxpr: Any) -> float:
    """Returns the FLOPs of all products in a jaxpr, in loops as often as they run; of a conditional, the costliest branch."""
    return count(jaxpr, [False] * len(jaxpr.invars), backward=False)[0]


def count(jaxpr: Any, trained: Sequence[bool], *, backward: bool) -> tuple[float, list[bool]]:
    """Returns (FLOPs of a jaxpr's products, which of its outputs depend on a parameter).

    Args:
      trained: which of its inputs depend on a parameter.
      backward: adds each product's share of the backward pass.
    """
    depends = dict(zip(jaxpr.invars, trained, strict=True))
    total = 0.0
    for eqn in jaxpr.eqns:
        operands = [not isinstance(x, Literal) and depends.get(x, False) for x in eqn.invars]
        outputs = [any(operands)] * len(eqn.outvars)
        if eqn.primitive.name in _PRODUCTS:
            total += _PRODUCTS[eqn.primitive.name](eqn) * (1 + backward * sum(operands))
        elif eqn.primitive.name == "cond":
            branches = [count(branch.jaxpr, operands[1:], backward=backward) for branch in eqn.params["branches"]]
            total += max(flops for flops, _ in branches)
            outputs = [any(of_branches) for of_branches in zip(*(of_branch for _, of_branch in branches), strict=True)]
        elif eqn.primitive.name == "scan":
            flops, outputs = _count_scan(eqn, operands, backward=backward)
            total += flops
        else:
            for inner in jaxprs_in_params(eqn.params):
                is_call = len(inner.invars) == len(operands) and len(inner.outvars) == len(outputs)
                given = operands if is_call else [any(operands)] * len(inner.invars)
                flops, results = count(inner, given, backward=backward)
                total += flops
                outputs = results if is_call else outputs
        for variable, value in zip(eqn.outvars, outputs, strict=True):
            depends[variable] = value and jnp.issubdtype(variable.aval.dtype, jnp.inexact)  # whole numbers have no gradient
    return total, [not isinstance(x, Literal) and depends.get(x, False) for x in jaxpr.outvars]


def carry_range(eqn: Any) -> tuple[int, int]:
    """Returns the first operand of a scan that it carries from turn to turn, and the one behind the last.

    Releases of JAX note this under different names; the shapes show it in all of them. Operands are constants, what is carried
    and what turns read, results what is carried and what turns write, and the last of each has an axis more outside than inside.
    """
    inner = eqn.params["jaxpr"].jaxpr

    def alike(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        return sum(x.aval.shape == y.aval.shape for x, y in zip(outside, inside, strict=True))

    end = alike(eqn.invars, inner.invars)
    return end - alike(eqn.outvars, inner.outvars), end


def _count_scan(eqn: Any, operands: list[bool], *, backward: bool) -> tuple[float, list[bool]]:
    """Returns `count` of a scan: what any turn makes of a parameter, the next turns carry on."""
    first, end = carry_range(eqn)
    while True:
        flops, outputs = count(eqn.params["jaxpr"].jaxpr, operands, backward=backward)
        carry = [a or b for a, b in zip(operands[first:end], outputs[: end - first], strict=True)]
        if carry == operands[first:end]:
            return eqn.params["length"] * flops, outputs
        operands = [*operands[:first], *carry, *operands[end:]]


def _dot_flops(eqn: Any) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    return 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(left[d] for d in contracted)


def _convolution_flops(eqn: Any) -> float:
    p, (image, kernel), result = eqn.params, (x.aval.shape for x in eqn.invars), eqn.outvars[0].aval.shape
    of_image, of_kernel, of_result = p["dimension_numbers"]
    total = 2.0 * result[of_result[0]] * result[of_result[1]] * kernel[of_kernel[1]]
    settings = (p["window_strides"], p["padding"], p["lhs_dilation"], p["rhs_dilation"])
    for i, (stride, (low, _), image_dilation, kernel_dilation) in enumerate(zip(*settings, strict=True)):
        end = (image[of_image[2 + i]] - 1) * image_dilation + 1
        starts = np.arange(result[of_result[2 + i]]) * stride - low
        taps = np.arange(kernel[of_kernel[2 + i]]) * kernel_dilation
        places = starts[:, None] + taps
        total *= np.count_nonzero((places >= 0) & (places < end) & (places % image_dilation == 0))
    return float(total)


def _grouped_flops(eqn: Any) -> float:
    """Counts every row once, with the matrix of its own expert."""
    rows, matrices, _ = eqn.invars
    return 2.0 * math.prod(rows.aval.shape) * matrices.aval.shape[-1]


_PRODUCTS = {"dot_general": _dot_flops, "ragged_dot_general": _grouped_flops, "conv_general_dilated": _convolution_flops}
