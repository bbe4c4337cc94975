"""Products with weights in 8 bits (`Execution.quantization`): whole numbers from -127 to 127, a scale for each row and column.

R rows, I inputs, O outputs: any number of dimensions each.

    y  = s_R t_O  X W        X = round(x / s_R),        s_R = max over I of |x|       / 127
                             W = round(w / t_O),        t_O = max over I of |w|       / 127
    dx = u_R      D W^T      D = round(dy t_O / u_R),   u_R = max over O of |dy t_O|  / 127
    dw = v_O      X^T E      E = round(dy s_R / v_O),   v_O = max over R of |dy s_R|  / 127

All three products of a training step are quantised, with scales of the moment, as in Google's AQT and in the training of qwix,
which MaxText's `quantization: int8` stands for. The backward pass has X and W from the forward pass, a byte for each number, and
moves their scales into the gradient, which is quantised anew for each of its two products. Rounding is to the nearest and has
the gradient of the identity. A number that is not finite makes the scale of its row so, and with it all that is multiplied.

Sums are of 32 bits, and exact in whatever order devices add them; a row or column that a layout cuts has one scale, of all its
shards. So a layout changes nothing, to the rounding of what is quantised: a number very near the middle of two whole ones may
become the other one. Microbatches, a pipeline's too, have scales v_O of their own, so that their gradients are rounded in other
places than those of a whole batch. What devices exchange is whole as well: weights are gathered in a byte, sums are added up in
four. A sum over more than 133,000 rows would overflow if all its numbers were 127, with one sign.
"""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

# qwix divides by 127.5, a tie that rounds the largest number of a row up or down by chance; this factor makes it 127.
_CALIBRATION = f"absmax,{127.5 / 127!r}"


def wide(dtype: Any) -> Any:
    """Returns the dtype of scales and of what they multiply: bfloat16 has too few digits for 127 even steps."""
    return jnp.promote_types(dtype, jnp.float32)


def product(x: jax.Array, w: jax.Array, contract: int = 1) -> jax.Array:
    """x [*R, *I] times w [*I, *O] -> [*R, *O] in x's dtype, through 8 bits forward and backward.

    Args:
      contract: the number of dimensions of inputs.
    """
    y: Any = _product(x.astype(wide(x.dtype)), w.astype(wide(x.dtype)), contract)
    return y.astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: jax.Array, w: jax.Array, contract: int) -> jax.Array:
    return _forward(x, w, contract)[0]


def _forward(x: jax.Array, w: jax.Array, contract: int) -> tuple[jax.Array, tuple[Any, Any]]:
    rows = x.ndim - contract
    x_8, w_8 = _quantize(x, range(rows)), _quantize(w, range(contract, w.ndim))
    return _dot(x_8, w_8, range(rows, x.ndim), range(contract)), (x_8, w_8)


def _backward(contract: int, kept: tuple[Any, Any], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_8, w_8 = kept
    rows, outputs = range(x_8.ndim - contract), range(x_8.ndim - contract, dy.ndim)
    s, t = x_8.scale.reshape(*dy.shape[: len(rows)], *[1] * len(outputs)), w_8.scale.reshape(dy.shape[len(rows) :])
    dx = _dot(_quantize(dy * t, rows), w_8.qvalue, outputs, range(contract, w_8.ndim))
    dw = _dot(x_8.qvalue, _quantize(dy * s, outputs), rows, rows)
    return dx, dw


_product.defvjp(_forward, _backward)


def _quantize(x: jax.Array, separate: Iterable[int]) -> Any:
    """Returns qwix's array in int8, with a scale for each index of these dimensions."""
    import qwix  # seconds to import: only where something is quantised

    return qwix.quantize(x, jnp.int8, channelwise_axes=tuple(separate), calibration_method=_CALIBRATION)


def _dot(a: Any, b: Any, of_a: Iterable[int], of_b: Iterable[int]) -> jax.Array:
    """Returns the product of int8 arrays over these dimensions of each, times the scales that they have."""
    import qwix

    return qwix.dot_general(a, b, ((tuple(of_a), tuple(of_b)), ((), ())))
