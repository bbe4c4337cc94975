"""Convolutions on images that may be cut in space: [B, H, W, C] with rows and columns over the devices.

Left to itself, the partitioner exchanges a halo of `dilation` rows with the neighbours, and gathers the whole image (on CPUs) or
sends the halo in several hops (on TPUs) where that is more than a shard. Here each shard is an image of its own, surrounded by
what its taps need of others, and convolved as one. While that is less than a shard's rows it is a halo. Beyond, each tap needs
as many rows as a shard has, however large the dilation is: those of an image shifted by d = q shards + r rows are the last rows
of the shard q away and the first r of the next one. They are put above and below, and a dilation of a shard's rows finds them.

It is written with annotations alone: rows as [shards, rows of a shard], and a roll over the shards, which becomes a
collective-permute. Sums, crops and upsampling keep the cut.

B batch, H rows, W columns, C channels, O output channels, S shards (N of rows, M of columns).
"""

import dataclasses
import functools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.sharding.component import Component
from models.sharding.layout import LayoutError
from models.sharding.params import Initializer, normal, param, zeros

AXES = ("height", "width")
NARROW = 32  # channels below which a filter's gradient is a convolution on CPUs too
BLOCKS = ("batch", "height", None, "width", None, None)  # of an image by shards: the shards of rows, rows of each, ...
_FORMATS = ("NHWC", "HWIO", "NHWC")


class Conv(nnx.Module):
    """A convolution of odd size that keeps an image's size: what is outside counts as 0.

    Args:
      names: logical names of the filter's input and output channels.
      act: logical name of the output's channels.
      init: of the filter; by default variance 1 / (inputs of an output).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        key: jax.Array,
        scope: Component,
        *,
        size: int = 3,
        dilation: int = 1,
        stride: int = 1,
        names: tuple[str, str] = ("in_channels", "channels"),
        act: str = "act_channels",
        bias: bool = True,
        init: Initializer | None = None,
    ):
        self.scope, self.dilation, self.stride, self.act = scope, dilation, stride, act
        shape, axes = (size, size, inputs, outputs), ("filter_height", "filter_width", *names)
        self.filter = param(key, shape, axes, init or normal((size * size * inputs) ** -0.5), scope)
        self.bias = param(key, (outputs,), (names[1],), zeros, scope) if bias else None

    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        filter_hwCO = self.filter[...].astype(x_BHWC.dtype)
        y_BHWO = convolve(x_BHWC, filter_hwCO, self.scope, dilation=self.dilation, stride=self.stride)
        if self.bias is not None:
            y_BHWO = y_BHWO + self.bias[...].astype(y_BHWO.dtype)
        return self.scope.shard(y_BHWO, "batch", *AXES, self.act)


class Pointwise(nnx.Module):
    """A convolution of size 1: the same linear map at every position."""

    def __init__(self, inputs: int, outputs: int, key: jax.Array, scope: Component, *, names: tuple[str, str], act: str | None):
        self.scope, self.act = scope, act
        self.weight = param(key, (inputs, outputs), names, normal(inputs**-0.5), scope)
        self.bias = param(key, (outputs,), (names[1],), zeros, scope)

    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        weight_CO = self.weight[...].astype(x_BHWC.dtype)
        if self.scope.mesh is not None and any(self.scope.num_shards(name) > 1 for name in AXES):
            y_BHWO = jnp.tensordot(x_BHWC, weight_CO, axes=1)
        else:  # one product of two matrices: sooner on CPUs, but rows that are cut have no place in a merged dimension
            y_BHWO = (x_BHWC.reshape(-1, x_BHWC.shape[-1]) @ weight_CO).reshape(*x_BHWC.shape[:-1], -1)
        return self.scope.shard(y_BHWO + self.bias[...].astype(y_BHWO.dtype), "batch", *AXES, self.act)


def convolve(x_BHWC: jax.Array, filter_hwCO: jax.Array, scope: Component, *, dilation: int = 1, stride: int = 1) -> jax.Array:
    """Convolves an image with a filter of odd height and width; what is outside the image counts as 0.

    Args:
      scope: the component whose layout says how "height" and "width" are cut.
      dilation: rows (columns) from one tap to the next.
      stride: output row i is centred on input row i * stride.

    Returns:
      [B, H / stride, W / stride, O], cut as the input is.

    Raises:
      LayoutError: rows or columns are not divisible by their shards, or by the stride.
    """
    for name, size in zip(AXES, x_BHWC.shape[1:3], strict=True):
        if size % stride:
            raise LayoutError(
                f"component {scope.path!r}: {name!r} of size {size} is not divisible by the stride {stride}; the nearest that "
                f"fits is {max(round(size / stride), 1) * stride}"
            )
    x_BHWC = scope.shard(x_BHWC, "batch", *AXES, None)
    (b, h, w, inputs), (kh, kw, _, outputs) = x_BHWC.shape, filter_hwCO.shape
    way = _Way(scope, (b, h, w), (kh, kw), dilation, stride)
    if stride == 1 and outputs <= 2 * inputs and way.corners_are_most:
        way = _ByRows(scope, (b, h, w), (kh, kw), dilation)

    def forward(x_BHWC: jax.Array, filter_hwCO: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        images = way.surrounded(x_BHWC)
        return way.convolved(images, filter_hwCO), (images, filter_hwCO)

    def backward(kept: tuple[jax.Array, jax.Array], dy_BHWO: jax.Array) -> tuple[jax.Array, jax.Array]:
        # A convolution too, of shards alone: derived from `forward`, it would be one of all that surrounds them.
        images, filter_hwCO = kept
        turned_hwOC = jnp.flip(filter_hwCO, (0, 1)).swapaxes(2, 3)
        return convolve(dy_BHWO, turned_hwOC, scope, dilation=dilation), way.gradient(images, filter_hwCO, dy_BHWO)

    if stride > 1:
        return forward(x_BHWC, filter_hwCO)[0]
    differentiable = jax.custom_vjp(lambda x, w: forward(x, w)[0])
    differentiable.defvjp(forward, backward)
    return differentiable(x_BHWC, filter_hwCO)


@dataclasses.dataclass(frozen=True)
class _Way:
    """A convolution of each shard, surrounded by what its taps need of others, as an image of its own.

    Attributes:
      shape: of the image: B, H, W.
      size: of the filter.
    """

    scope: Component
    shape: tuple[int, int, int]
    size: tuple[int, int]
    dilation: int
    stride: int = 1

    @property
    def shards(self) -> tuple[int, int]:
        """The numbers of shards of rows and of columns."""
        rows, columns = (1 if self.scope.mesh is None else self.scope.num_shards(name) for name in AXES)
        return rows, columns

    @property
    def own(self) -> tuple[int, int]:
        """Rows and columns of a shard."""
        (_, h, w), (n, m) = self.shape, self.shards
        return h // n, w // m

    @property
    def reach(self) -> tuple[int, int]:
        """How far a tap is from the centre at most, in rows and columns."""
        return self.size[0] // 2 * self.dilation, self.size[1] // 2 * self.dilation

    @property
    def corners_are_most(self) -> bool:
        """Whether what is needed of the shards at the corners is more than half of the rest."""
        (rows, columns), cut = self.own, min(self.shards) > 1
        above, beside = (min(*pair) for pair in zip(self.reach, self.own, strict=True))
        return cut and 4 * above * beside > above * columns + beside * rows

    def surrounded(self, x_BHWC: jax.Array) -> jax.Array:
        """Returns the shards as images [shards * B, H', W', C]: their own rows and columns, between what their taps need."""
        (b, *_, c), (n, m), (rows, columns) = x_BHWC.shape, self.shards, self.own
        if n == m == 1:
            return x_BHWC
        z_BNHMWC = self.scope.shard(x_BHWC.reshape(b, n, rows, m, columns, c), *BLOCKS)
        for place, axis in enumerate((1, 3)):
            if self.shards[place] > 1:
                z_BNHMWC = self._between(z_BNHMWC, place, axis)
        # Shards before examples: both are cut, and this order of them has a name as one dimension.
        return z_BNHMWC.transpose(1, 3, 0, 2, 4, 5).reshape(n * m * b, *z_BNHMWC.shape[2:5:2], c)

    def _between(self, z: jax.Array, place: int, axis: int) -> jax.Array:
        rows, reach = self.own[place], self.reach[place]
        if reach <= rows:
            sides = ((-1, slice(rows - reach, None)), (1, slice(reach)))
            before, after = (_from(z, *side, axis, BLOCKS, self.scope) for side in sides)
            parts = [before, z, after]
        else:
            shifts = range(-reach, reach + 1, self.dilation)
            parts = [_shifted_blocks(z, by, axis, BLOCKS, self.scope) for by in shifts]
        return self.scope.shard(jnp.concatenate(parts, axis=axis + 1), *BLOCKS)

    def convolved(self, images: jax.Array, filter_hwCO: jax.Array) -> jax.Array:
        """Returns [B, H / stride, W / stride, O] of `surrounded`."""
        dilations, padding = [], []
        for shards, rows, reach in zip(self.shards, self.own, self.reach, strict=True):
            dilations.append(self.dilation if shards == 1 or reach <= rows else rows)
            padding.append((reach, reach) if shards == 1 else (0, 0))
        strides = self.stride, self.stride
        y = jax.lax.conv_general_dilated(
            images, filter_hwCO, strides, padding, rhs_dilation=dilations, dimension_numbers=_FORMATS
        )
        (b, h, w), (n, m), outputs = self.shape, self.shards, y.shape[-1]
        if n == m == 1:
            return y
        y_NMBHWO = y.reshape(n, m, b, h // n // self.stride, w // m // self.stride, outputs)
        y_BNHMWO = self.scope.shard(y_NMBHWO.transpose(2, 0, 3, 1, 4, 5), *BLOCKS)
        y_BHWO = y_BNHMWO.reshape(b, h // self.stride, w // self.stride, outputs)
        return self.scope.shard(y_BHWO, "batch", *AXES, None)

    def gradient(self, images: jax.Array, filter_hwCO: jax.Array, dy_BHWO: jax.Array) -> jax.Array:
        """Returns the gradient of the filter."""

        def convolved(images: jax.Array, dy_BHWO: jax.Array) -> jax.Array:
            return jax.vjp(functools.partial(self.convolved, images), filter_hwCO)[1](dy_BHWO)[0]

        def multiplied(x_BHWC: jax.Array, dy_BHWO: jax.Array) -> jax.Array:
            """A product for each column of taps, all rows of it at once: on CPUs a convolution over all positions takes 1.4 times
            as long, a product for each tap 1.3 times (scripts/lab/xla_cpu.py). The first factor is transposed once, for all."""
            (_, h, w, c), (kh, kw), d, (above, before) = x_BHWC.shape, self.size, self.dilation, self.reach
            x_CBHW = jnp.pad(x_BHWC.transpose(3, 0, 1, 2), ((0, 0), (0, 0), (above, above), (0, 0)))
            dy_BHWO = jnp.pad(dy_BHWO, ((0, 0), (0, 0), (before, before), (0, 0)))
            x_XP = jnp.concatenate([x_CBHW[:, :, i * d : i * d + h] for i in range(kh)]).reshape(kh * c, -1)
            # What a tap on the right meets lies to the left of its output.
            columns = [dy_BHWO[:, :, j * d : j * d + w].reshape(x_XP.shape[1], -1) for j in reversed(range(kw))]
            return jnp.stack([(x_XP @ dy_PO).reshape(kh, c, -1) for dy_PO in columns], axis=1)

        if self.shards != (1, 1) or min(filter_hwCO.shape[2:]) < NARROW:
            return convolved(images, dy_BHWO)
        return jax.lax.platform_dependent(images, dy_BHWO, cpu=multiplied, default=convolved)


class _ByRows(_Way):
    """The same, but what each row of taps gives is sent to where it belongs, not what it needs: no shard at a corner is asked."""

    @property
    def reach(self) -> tuple[int, int]:
        """How far a tap is from the centre of its row of taps."""
        return 0, self.size[1] // 2 * self.dilation

    def convolved(self, images: jax.Array, filter_hwCO: jax.Array) -> jax.Array:
        """Returns [B, H, W, O] of `surrounded`."""
        kh, kw, inputs, outputs = filter_hwCO.shape
        filter_1wCO = jnp.moveaxis(filter_hwCO, 0, 2).reshape(1, kw, inputs, kh * outputs)
        taps_BHWO = jnp.split(super().convolved(images, filter_1wCO), kh, axis=-1)
        shifts = [(tap - kh // 2) * self.dilation for tap in range(kh)]
        sent = [shifted(tap, by, "height", self.scope) for tap, by in zip(taps_BHWO, shifts, strict=True)]
        return functools.reduce(operator.add, sent)


def shifted(x_BHWC: jax.Array, by: int, name: str, scope: Component) -> jax.Array:
    """Returns the image whose row (column) i is row i + by of x, 0 outside; cut as x is.

    Args:
      name: "height" or "width".
      scope: the component whose layout says into how many shards.
    """
    axis = 1 + AXES.index(name)
    size, shards = x_BHWC.shape[axis], scope.num_shards(name)
    if by == 0:
        return x_BHWC
    if abs(by) >= size:
        return jnp.zeros_like(x_BHWC)
    names = ["batch", *AXES, None]
    names.insert(axis + 1, None)
    z = scope.shard(x_BHWC.reshape(*x_BHWC.shape[:axis], shards, -1, *x_BHWC.shape[axis + 1 :]), *names)
    y = _shifted_blocks(z, by, axis, names, scope)
    return scope.shard(y.reshape(x_BHWC.shape), "batch", *AXES, None)


def _shifted_blocks(z: jax.Array, by: int, axis: int, names: Sequence[str | None], scope: Component) -> jax.Array:
    """Returns shifted rows (columns) of an image that is laid out by shards: `axis` numbers them, the next one their rows."""
    if by == 0:
        return z
    hops, remainder = divmod(by, z.shape[axis + 1])
    parts = [_from(z, hops, slice(remainder, None), axis, names, scope)]
    if remainder:
        parts.append(_from(z, hops + 1, slice(remainder), axis, names, scope))
    return scope.shard(jnp.concatenate(parts, axis=axis + 1), *names)


def _from(z: jax.Array, hops: int, rows: slice, axis: int, names: Sequence[str | None], scope: Component) -> jax.Array:
    """Returns, on each shard, these rows of the shard that is `hops` further on; 0 where there is none."""
    part = z[(slice(None),) * (axis + 1) + (rows,)]
    shards = z.shape[axis]
    if hops == 0:
        return part
    if abs(hops) >= shards:
        return jnp.zeros_like(part)
    source = (jnp.arange(shards) + hops).reshape(-1, *(1,) * (z.ndim - axis - 1))
    rolled = scope.shard(_roll(part, -hops, axis), *names)
    return jnp.where((source >= 0) & (source < shards), rolled, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _roll(x: jax.Array, by: int, axis: int) -> jax.Array:
    """`jnp.roll` that stays one permute: its gradient is a roll too, not one of two slices that were joined, and a slice of what
    is rolled is kept apart from those slices (the TPU compiler merges them, and then sends whole shards in two permutes)."""
    return jnp.roll(jax.lax.optimization_barrier(x), by, axis)


_roll.defvjp(lambda x, by, axis: (_roll(x, by, axis), None), lambda by, axis, _, y: (_roll(y, -by, axis),))


def upsampled(x_BHWC: jax.Array, factor: int, scope: Component) -> jax.Array:
    """Returns each position `factor` times in both directions; cut as x is."""
    b, h, w, c = x_BHWC.shape
    x = jnp.broadcast_to(x_BHWC[:, :, None, :, None], (b, h, factor, w, factor, c))
    return scope.shard(x.reshape(b, h * factor, w * factor, c), "batch", *AXES, None)


def depth_to_space(x_BHWC: jax.Array, factor: int, scope: Component) -> jax.Array:
    """Returns [B, H factor, W factor, C / factor^2]: a position's channels are those of factor x factor points, row by row."""
    b, h, w, c = x_BHWC.shape
    x = x_BHWC.reshape(b, h, w, factor, factor, c // factor**2).swapaxes(2, 3)
    return scope.shard(x.reshape(b, h * factor, w * factor, c // factor**2), "batch", *AXES, None)


def centre(x_BHWC: jax.Array, height: int, width: int, scope: Component) -> jax.Array:
    """Returns the inner rows and columns of an image, spread over all devices again in one exchange. Raises LayoutError where the
    image is smaller, or the same number of rows (columns) cannot be left out on both sides."""
    for name, size, kept in zip(AXES, x_BHWC.shape[1:3], (height, width), strict=True):
        if kept > size or (size - kept) % 2:
            fits = size if kept > size else kept + 1
            raise LayoutError(
                f"component {scope.path!r}: {name!r} of size {size} has no centre of size {kept}; the nearest is {fits}"
            )
    if scope.mesh is not None:
        shape = (x_BHWC.shape[0], height, width, x_BHWC.shape[3])
        scope.spec(("batch", *AXES, None), shape, tensor="the centre of an image")
    for name, kept in zip(AXES, (height, width), strict=True):
        x_BHWC = _centre(x_BHWC, kept, name, scope)
    return scope.shard(x_BHWC, "batch", *AXES, None)


def _centre(x_BHWC: jax.Array, kept: int, name: str, scope: Component) -> jax.Array:
    """Returns the inner rows or columns.

    Left to the partitioner, they would be gathered on every device. Here every shard chooses the rows that the shard `hops`
    before it needs, and sends as many as that shard keeps. They are chosen by a product with a table of 0 and 1, which the
    partitioner leaves where it is, and its gradient too.
    """
    axis = 1 + AXES.index(name)
    size, shards = x_BHWC.shape[axis], scope.num_shards(name)
    first = (size - kept) // 2
    if scope.mesh is None or shards == 1:
        return jax.lax.slice_in_dim(x_BHWC, first, first + kept, axis=axis)
    rows, inner = size // shards, kept // shards
    wanted_SK = first + np.arange(shards * inner).reshape(shards, inner)  # by each shard, as rows of the whole image
    names = ["batch", *AXES, None]
    names.insert(axis + 1, None)
    z = scope.shard(x_BHWC.reshape(*x_BHWC.shape[:axis], shards, rows, *x_BHWC.shape[axis + 1 :]), *names)
    equation = "bsrwc,skr->bskwc" if name == "height" else "bhsrc,skr->bhskc"
    total: jax.Array | None = None
    for hops in np.unique(wanted_SK // rows - np.arange(shards)[:, None]):
        asked_SK = np.roll(wanted_SK, hops, axis=0)  # of each shard
        table_SKR = asked_SK[..., None] == np.arange(size).reshape(shards, 1, rows)
        table_SKR &= ((np.arange(shards) >= hops) & (np.arange(shards) < shards + hops))[:, None, None]
        part = scope.shard(jnp.einsum(equation, z, jnp.asarray(table_SKR, z.dtype)), *names)
        part = scope.shard(_roll(part, -int(hops), axis), *names) if hops else part
        total = part if total is None else total + part
    assert total is not None
    return total.reshape(*x_BHWC.shape[:axis], kept, *x_BHWC.shape[axis + 1 :])
