"""The scan over stacked layers, by JAX or by a loop that does not fill its stacks with zeroes before it writes them.

`jax.lax.scan` writes what is kept of each layer for the backward pass, and the gradients of stacked weights, over zeroes; XLA
removes these from some programs alone. Where a layer's products are short, as in mixtures on many chips, they take up to 8 % of a
step (modelled; docs/LOG.md). `layer_scan` is the switch between both, which tests/models/sharding/test_stacks.py finds equal in
values and gradients.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import float0
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

PyTree = Any
Arrays = list[Any]


def _floating(x: Any) -> bool:
    """Returns whether an array has gradients; those of whole numbers and keys are of type float0, which can be in no loop."""
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _with_float0(cotangents: Arrays, like: Arrays) -> Arrays:
    """Returns a cotangent for each value: the given ones belong to the floating-point values, in order."""
    left = iter(cotangents)
    return [next(left) if _floating(x) else np.zeros(x.shape, float0) for x in like]


def _without_float0(cotangents: Arrays) -> Arrays:
    return [x for x in cotangents if x.dtype != float0]


def _slice(stacked: PyTree) -> PyTree:
    """Returns the shapes of what a scan over stacked arrays reads in each step."""
    return jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], stacked))


def unfilled_scan(step: Callable, carry: PyTree, inputs: PyTree, *, reverse: bool = False) -> tuple[PyTree, PyTree]:
    """`jax.lax.scan` of `step(carry, slice) -> (carry, out)` into stacks that hold anything before; it has no derivative."""
    n = jax.tree.leaves(inputs)[0].shape[0]
    _, out = jax.eval_shape(step, carry, _slice(inputs))
    stacks = jax.tree.map(lambda x: jax.lax.empty((n, *x.shape), x.dtype), out)

    def put(state: tuple, inputs: PyTree):
        i, carry, stacks = state
        carry, out = step(carry, inputs)
        stacks = jax.tree.map(lambda stack, x: jax.lax.dynamic_update_index_in_dim(stack, x, i, 0), stacks, out)
        return (i + (-1 if reverse else 1), carry, stacks), None

    first = jnp.int32(n - 1 if reverse else 0)
    return jax.lax.scan(put, (first, carry, stacks), inputs, reverse=reverse)[0][1:]


def layer_scan(
    body: Callable, carry: PyTree, stacked: PyTree, rows: PyTree, *, recomputes: bool = False, unroll: int | bool = 1
) -> tuple[PyTree, PyTree]:
    """Returns `jax.lax.scan` of `body(carry, slice, rows) -> (carry, out)` over stacked layers.

    Args:
      recomputes: by `recomputing_scan`, for a body under `jax.checkpoint`; it unrolls nothing.
    """
    if recomputes:
        return recomputing_scan(body, carry, stacked, rows)
    return jax.lax.scan(lambda carry, layer: body(carry, layer, rows), carry, stacked, unroll=unroll)


def recomputing_scan(body: Callable, carry: PyTree, stacked: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
    """`jax.lax.scan` of `body(carry, slice, rows) -> (carry, out)`, which can be differentiated once, in reverse.

    Args:
      body: a function under `jax.checkpoint`; what its policy keeps of a layer is stacked for the backward pass.
      carry: arrays that each layer changes.
      stacked: arrays with a leading layer axis.
      rows: what all layers read. It is kept once, as is what the body closes over.

    Returns:
      The last carry, and what the layers returned, stacked.
    """
    traced, results = jax.make_jaxpr(body, return_shape=True)(carry, _slice(stacked), rows)
    carry, stacked, rows = (jax.tree.leaves(tree) for tree in (carry, stacked, rows))

    def apply(carry: Arrays, layer: Arrays, shared: Arrays) -> tuple[Arrays, Arrays]:
        consts, rows_ = shared[: len(traced.consts)], shared[len(traced.consts) :]
        out = jaxpr_as_fun(ClosedJaxpr(traced.jaxpr, consts))(*carry, *layer, *rows_)
        return out[: len(carry)], out[len(carry) :]

    @jax.custom_vjp
    def loop(carry: Arrays, stacked: Arrays, shared: Arrays) -> tuple[Arrays, Arrays]:
        return jax.lax.scan(lambda carry, layer: apply(carry, layer, shared), carry, stacked)

    def forward(carry: Arrays, stacked: Arrays, shared: Arrays):
        traces: list[Callable] = []  # each makes a layer's pullback from what is kept of it and what is known

        def step(carry: Arrays, layer: Arrays):
            (carry, out), pull = jax.vjp(apply, carry, layer, shared)
            leaves, tree = jax.tree.flatten(pull)
            # Weights and what is shared are at hand in the backward pass, and are not kept again.
            known = [*layer, *shared]
            at = [next((j for j, x in enumerate(known) if x is leaf), None) for leaf in leaves]

            def pullback(kept: Arrays, known: Arrays) -> Callable:
                new = iter(kept)
                return jax.tree.unflatten(tree, [next(new) if j is None else known[j] for j in at])

            traces.append(pullback)
            return carry, (out, [leaf for leaf, j in zip(leaves, at, strict=True) if j is None])

        carry, (outs, kept) = unfilled_scan(step, carry, stacked)
        return (carry, outs), (jax.tree_util.Partial(traces[-1]), kept, stacked, shared)

    def backward(residuals: tuple, cotangents: tuple[Arrays, Arrays]):
        pullback, kept, stacked, shared = residuals
        like_carry, like_out = traced.out_avals[: len(carry)], traced.out_avals[len(carry) :]
        of_carry, of_outs = map(_without_float0, cotangents)

        def step(state: tuple[Arrays, Arrays], inputs: tuple[Arrays, Arrays, Arrays]):
            of_carry, of_shared = state
            kept, layer, of_out = inputs
            pull = pullback(kept, [*layer, *shared])
            given = _with_float0(of_carry, like_carry), _with_float0(of_out, like_out)
            of_carry, of_layer, more = map(_without_float0, pull(given))
            return (of_carry, [a + b for a, b in zip(of_shared, more, strict=True)]), of_layer

        zeros = [jnp.zeros_like(x) for x in shared if _floating(x)]
        (of_carry, of_shared), of_stacked = unfilled_scan(step, (of_carry, zeros), (kept, stacked, of_outs), reverse=True)
        return _with_float0(of_carry, like_carry), _with_float0(of_stacked, stacked), _with_float0(of_shared, shared)

    loop.defvjp(forward, backward)
    return jax.tree.unflatten(jax.tree.structure(results), jax.tree.leaves(loop(carry, stacked, [*traced.consts, *rows])))
