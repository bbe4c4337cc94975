"""Products with weights in 8 bits (`Execution.quantization`): each row and column has a scale, by which its numbers are rounded.

R rows, I inputs, O outputs: any number of dimensions each. Q rounds to the form's numbers, of which the largest is L.

    y  = s_R t_O  X W        X = Q(x / s_R),        s_R = max over I of |x|       / L
                             W = Q(w / t_O),        t_O = max over I of |w|       / L
    dx = u_R      D W^T      D = Q(dy t_O / u_R),   u_R = max over O of |dy t_O|  / L
    dw = v_O      X^T E      E = Q(dy s_R / v_O),   v_O = max over R of |dy s_R|  / L

| form | X, W | D, E | L | sums |
| --- | --- | --- | --- | --- |
| "int8" | whole numbers from -127 to 127 | the same | 127 | of 32 bits, exact |
| "fp8" | e4m3: 3 bits of mantissa | e5m2: 2 bits, more exponents | 448 | float32 |

All three products of a training step are quantised, with scales of the moment, as in Google's AQT and in the training of qwix,
which MaxText's `quantization: int8` and `fp8_full` stand for. Which of the floats is for what is from "FP8 formats for deep
learning" (Micikevicius and others, arXiv 2209.05433), whose scales are of whole tensors; a scale for each row and column, as
int8 needs it, is as simple and finer. The backward pass has X and W from the forward pass, a byte for each number, and
moves their scales into the gradient, which is quantised anew for each of its two products. Rounding is to the nearest and has
the gradient of the identity. A number that is not finite makes the scale of its row so, and with it all that is multiplied.

Sums of whole numbers are exact in whatever order devices add them; a row or column that a layout cuts has one scale, of all its
shards. So a layout changes nothing, to the rounding of what is quantised: a number very near the middle of two may become the
other one. Microbatches, a pipeline's too, have scales v_O of their own, so that their gradients are rounded in other places than
those of a whole batch. Weights are gathered in a byte. In int8 a sum over more than 133,000 rows would overflow if all its
numbers were 127, with one sign.

On TPUs a device's own sum is rounded to the dtype of activations before those of other devices are added to it, as that of a
product in bfloat16 is. Sums of whole numbers have twice as many bytes, and where each device needs but a part of them the
compiler sums them all up on every device (libtpu 0.0.50), which sends four times as many.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

Form = Literal["int8", "fp8"]

# By form: the dtype of what the forward pass multiplies, and that of gradients.
_DTYPES: dict[Form, tuple[Any, Any]] = {"int8": (jnp.int8, jnp.int8), "fp8": (jnp.float8_e4m3fn, jnp.float8_e5m2)}
# What makes the largest number of a row L. For int8 qwix divides by 127.5, a tie that is rounded up or down by chance. It takes
# no scale below 1e-19, which small gradients would come near to if they filled e5m2's range, up to 57,344.
_CALIBRATION = {jnp.int8: f"absmax,{127.5 / 127!r}", jnp.float8_e4m3fn: "absmax", jnp.float8_e5m2: f"absmax,{57_344 / 448!r}"}


def wide(dtype: Any) -> Any:
    """Returns the dtype of scales and of what they multiply: bfloat16 has too few digits for 127 even steps."""
    return jnp.promote_types(dtype, jnp.float32)


def product(x: jax.Array, w: jax.Array, form: Form, contract: int = 1, *, exact: bool = True) -> jax.Array:
    """x [*R, *I] times w [*I, *O] -> [*R, *O] in x's dtype, through 8 bits forward and backward.

    Args:
      contract: the number of dimensions of inputs.
      exact: sums are of 32 bits at least also where devices add theirs; otherwise of x's dtype there.
    """
    y: Any = _product(x.astype(wide(x.dtype)), w.astype(wide(x.dtype)), form, contract, None if exact else x.dtype)
    return y.astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _product(x: jax.Array, w: jax.Array, form: Form, contract: int, sums: Any) -> jax.Array:
    return _forward(x, w, form, contract, sums)[0]


def _forward(x: jax.Array, w: jax.Array, form: Form, contract: int, sums: Any) -> tuple[jax.Array, tuple[Any, Any]]:
    rows, (dtype, _) = x.ndim - contract, _DTYPES[form]
    x_8, w_8 = _quantize(x, range(rows), dtype), _quantize(w, range(contract, w.ndim), dtype)
    return _dot(x_8, w_8, range(rows, x.ndim), range(contract), sums), (x_8, w_8)


def _backward(form: Form, contract: int, sums: Any, kept: tuple[Any, Any], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    (x_8, w_8), (_, dtype) = kept, _DTYPES[form]
    rows, outputs = range(x_8.ndim - contract), range(x_8.ndim - contract, dy.ndim)
    s, t = x_8.scale.reshape(*dy.shape[: len(rows)], *[1] * len(outputs)), w_8.scale.reshape(dy.shape[len(rows) :])
    dx = _dot(_quantize(dy * t, rows, dtype), w_8.qvalue, outputs, range(contract, w_8.ndim), sums)
    dw = _dot(x_8.qvalue, _quantize(dy * s, outputs, dtype), rows, rows, sums)
    return dx, dw


_product.defvjp(_forward, _backward)


def _quantize(x: jax.Array, separate: Iterable[int], dtype: Any) -> Any:
    """Returns qwix's array in this dtype, with a scale for each index of these dimensions."""
    import qwix  # seconds to import: only where something is quantised

    return qwix.quantize(x, dtype, channelwise_axes=tuple(separate), calibration_method=_CALIBRATION[dtype])


def _dot(a: Any, b: Any, of_a: Sequence[int], of_b: Sequence[int], sums: Any) -> jax.Array:
    """Returns the product of arrays in 8 bits over these dimensions of each, times the scales that they have.

    Args:
      sums: the dtype of sums as devices add them; None for exact ones.
    """
    (a_8, scale_a), (b_8, scale_b) = ((getattr(x, "qvalue", x), getattr(x, "scale", None)) for x in (a, b))
    dtype = a.scale.dtype if scale_b is None else scale_b.dtype
    exact = jnp.int32 if a_8.dtype == jnp.int8 else dtype
    dimensions = (tuple(of_a), tuple(of_b)), ((), ())
    y = jax.lax.dot_general(a_8, b_8, dimensions, preferred_element_type=sums or exact).astype(dtype)
    if scale_a is not None:
        y *= jnp.expand_dims(jnp.squeeze(scale_a, of_a), range(a_8.ndim - len(of_a), y.ndim))
    return y if scale_b is None else y * jnp.squeeze(scale_b, of_b)
