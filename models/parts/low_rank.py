"""Matrices that are trained or stored in another form than their own: W + s A B with adapters, and W in a few bits.

They take a parameter's place inside a model (models.sharding.params.merge), so that a layer reads `self.q[...]` as ever. A
product with one (models.parts.layers.project) never forms the sum, and never keeps the dequantised matrix for the backward pass.
Whatever else a layer does begins with `astype`, which makes it an array, of one layer at a time.
"""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.errors import UserError


class MatrixLike(abc.ABC):
    """A matrix that is made of others: what a layer asks of an array before it computes with it.

    Attributes:
      apart: products leave its parts apart; without it, a layer that reads the matrix gets an array.
    """

    shape: tuple[int, ...]
    apart: bool

    def __getitem__(self, index: Any) -> Any:
        assert index is Ellipsis, index
        return self if self.apart else self.__jax_array__()

    def __jax_array__(self) -> jax.Array:
        return self.astype(jnp.float32)

    @abc.abstractmethod
    def astype(self, dtype: Any) -> jax.Array:
        """Returns it as an array."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Quantized(MatrixLike):
    """A frozen matrix in 4 or 8 bits with a scale for each block of inputs (QLoRA, arXiv 2305.14314, section 3).

    Attributes:
      values: of the matrix's shape: int8, or codes of NF4's table, uint8 with two neighbours of the last dimension in each; with
        one, where their number is odd.
      scales: of the matrix's shape but for the dimension with blocks, which is as much smaller; never the last one.
      form: "nf4" or "int8".
    """

    values: jax.Array
    scales: jax.Array
    form: str = dataclasses.field(metadata={"static": True})
    apart: bool = dataclasses.field(default=True, metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Returns the matrix's shape."""
        return (*self.values.shape[:-1], self.scales.shape[-1])

    def astype(self, dtype: Any) -> jax.Array:
        from qwix import QArray, dequantize  # seconds to import: only where something is quantised

        codes = self.values
        if self.form == "nf4":
            if codes.shape != self.shape:
                codes = jnp.stack([codes & 15, codes >> 4], axis=-1).reshape(self.shape)
            codes = codes.astype(jnp.uint4)
        return dequantize(QArray(codes, self.scales.astype(dtype), qtype=self.form)).astype(dtype)


def quantize(w: jax.Array, form: str, axis: int, block: int) -> Quantized:
    """Returns a matrix quantised in blocks of so many neighbours along one axis, each scaled by its largest number."""
    import qwix

    others = [i for i in range(w.ndim) if i != axis]
    q = qwix.quantize(w, form, channelwise_axes=others, tiled_axes={axis: block})
    return Quantized(packed(q.qvalue.astype(jnp.uint8)) if form == "nf4" else q.qvalue, q.scale, form)


def packed(codes: jax.Array) -> jax.Array:
    """Returns 4-bit codes with two neighbours of the last dimension in a byte, unless their number is odd."""
    return codes if codes.shape[-1] % 2 else codes[..., ::2] | codes[..., 1::2] << 4


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LowRank(MatrixLike):
    """W + scale * A B (Hu et al. 2021, arXiv 2106.09685).

    Attributes:
      base: W [.., in, out], dimensions of a stack in front; inputs and outputs may have several dimensions.
      a, b: A [.., in, rank] and B [.., rank, out].
      key: draws dropout of what A reads, with the dimensions of a stack in front; None drops nothing.
      rate: of dropout.
    """

    base: Any
    a: jax.Array
    b: jax.Array
    scale: float = dataclasses.field(metadata={"static": True})
    apart: bool = dataclasses.field(default=True, metadata={"static": True})
    key: jax.Array | None = None
    rate: float = dataclasses.field(default=0.0, metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Returns the matrix's shape."""
        return self.base.shape

    def astype(self, dtype: Any) -> jax.Array:
        if self.key is not None:
            raise UserError(
                f"train.finetune.lora.dropout={self.rate}: a layer does more than multiply by an adapted matrix; choose 0"
            )
        base = self.base.astype(dtype)
        return base + update(self.a, self.b, base.shape, self.scale).astype(dtype)


def update(a: Any, b: Any, shape: tuple[int, ...], scale: float) -> Any:
    """Returns scale * A B in the shape of the matrix; arrays of JAX or NumPy."""
    # A and W share the stacked and the input dimensions, B and W the stacked and the output ones.
    outputs = len(shape) - (a.ndim - 1)
    lead, rank = shape[: b.ndim - 1 - outputs], a.shape[-1]
    return (scale * (a.reshape(*lead, -1, rank) @ b.reshape(*lead, rank, -1))).reshape(shape)


@jax.custom_vjp
def frozen_product(x_RI: jax.Array, w: Quantized) -> jax.Array:
    """x [R, *in] times a quantised W [*in, *out] as matrices; the backward pass dequantises W again and has no gradient of it."""
    return x_RI @ w.astype(x_RI.dtype).reshape(x_RI.shape[-1], -1)


def _fwd(x_RI: jax.Array, w: Quantized) -> tuple[jax.Array, Quantized]:
    return frozen_product(x_RI, w), w


def _bwd(w: Quantized, dy_RO: jax.Array) -> tuple[jax.Array, Quantized]:
    dx_RI = dy_RO @ w.astype(dy_RO.dtype).reshape(-1, dy_RO.shape[-1]).T
    none: Any = np.zeros(w.values.shape, jax.dtypes.float0)
    return dx_RI, dataclasses.replace(w, values=none, scales=jnp.zeros_like(w.scales))


frozen_product.defvjp(_fwd, _bwd)
