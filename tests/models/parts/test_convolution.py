"""Convolutions of images that are cut in space: the numbers of one device, and what the compiled program sends."""

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from models.parts import convolution
from models.sharding.component import Component, make_mesh
from models.sharding.layout import Layout, LayoutError, rules
from trainers.hlo import parsing
from trainers.hlo.collectives import Collective, collectives

ALONE = Component(Layout(name="one", mesh=(("all", 1),)))
GRIDS = ((8, 1), (4, 2), (2, 4), (1, 8))
# The others turn these by a quarter.
TURNED = [*GRIDS[:2], *(pytest.param(grid, marks=pytest.mark.slow) for grid in GRIDS[2:])]
SPACE = PartitionSpec(None, "rows", "columns")
Apply = Callable[[jax.Array, jax.Array, Component], jax.Array]


@pytest.fixture(autouse=True)
def double(float64):
    """All in double precision."""


@functools.cache
def cut(rows: int, columns: int) -> Component:
    layout = Layout(name="space", mesh=(("rows", rows), ("columns", columns)), rules=rules(height="rows", width="columns"))
    return Component(layout, mesh=make_mesh(layout, jax.devices()[: rows * columns]))


def compared(f: Apply, shape: tuple[int, ...], filters: tuple[int, ...], scope: Component) -> tuple[float, list[Collective]]:
    """The largest relative difference of value and gradients of a function of image and filter from those on one device, and the
    collectives of its compiled program."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=shape), rng.normal(size=filters)

    def value(x: jax.Array, w: jax.Array, scope: Component) -> Any:
        y = f(x, w, scope)
        return jnp.sum(jnp.sin(y)), y

    gradient = jax.value_and_grad(value, argnums=(0, 1), has_aux=True)
    want = jax.jit(functools.partial(gradient, scope=ALONE))(x, w)
    assert scope.mesh is not None
    space, whole = (NamedSharding(scope.mesh, spec) for spec in (SPACE, PartitionSpec()))
    jitted = jax.jit(
        functools.partial(gradient, scope=scope), in_shardings=(space, whole), out_shardings=((whole, space), (space, whole))
    )
    compiled = jitted.lower(x, w).compile()
    have = compiled(jax.device_put(x, space), jax.device_put(w, whole))
    far = [np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in zip(*map(jax.tree.leaves, (have, want)), strict=True)]
    return float(max(far)), collectives(parsing.parse(compiled.as_text() or ""), dict(scope.mesh.shape))


def sent(transfers: list[Collective]) -> int:
    """Bytes that a device sends in all permutes; nothing is gathered or exchanged otherwise."""
    assert {c.kind for c in transfers} <= {"collective-permute", "all-reduce"}, Counter(c.kind for c in transfers)
    return sum(c.bytes for c in transfers if c.kind == "collective-permute")


@pytest.mark.integration
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    grid=st.sampled_from([*GRIDS, (2, 2), (1, 2), (3, 2)]),
    part=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    dilation=st.integers(1, 40),
    filters=st.tuples(st.sampled_from([1, 3, 5]), st.sampled_from([1, 3])),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 5)),
)
def test_any_size_dilation_and_grid_is_that_of_one_device(grid, part, dilation, filters, channels):
    """Images of 1 to 5 rows and columns a shard, dilations up to many times the image; nothing is gathered, and no tap is sent
    more than a shard's rows and columns, forward and backward."""
    (rows, columns), (h, w), (inputs, outputs) = grid, part, channels
    result = compared(
        lambda x, f, scope: convolution.convolve(x, f, scope, dilation=dilation),
        (2, rows * h, columns * w, inputs),
        (*filters, *channels),
        cut(*grid),
    )
    assert result[0] < 1e-9
    shard = 2 * h * w * 8
    # Of the columns' taps inputs are sent, and back their gradients or those of outputs; of the rows' taps inputs (of all
    # columns' taps) or outputs, and gradients back.
    across = (filters[1] - 1) * (inputs + max(inputs, outputs))
    down = 2 * (filters[0] - 1) * max(outputs, filters[1] * inputs)
    assert sent(result[1]) <= shard * (across + down)


@pytest.mark.parametrize("dilation", [1, 2, 7])
@pytest.mark.parametrize("size", [(3, 3), (5, 3), (1, 5)])
def test_gradients_of_wide_filters_are_those_of_a_convolution(size, dilation):
    """From `NARROW` channels on a CPU computes them by products: of tall, wide and square filters, and taps off the image."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 5, 6, convolution.NARROW)), rng.normal(size=(*size, convolution.NARROW, convolution.NARROW + 1))

    def plain(x: jax.Array, w: jax.Array) -> jax.Array:
        padding = [(n // 2 * dilation, n // 2 * dilation) for n in size]
        forms = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), padding, rhs_dilation=(dilation, dilation), dimension_numbers=forms)

    want, have = (
        jax.jit(jax.grad(lambda x, w, f=f: jnp.sum(jnp.sin(f(x, w))), argnums=(0, 1)))(x, w)
        for f in (plain, functools.partial(convolution.convolve, scope=ALONE, dilation=dilation))
    )
    for a, b in zip(have, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.integration
@pytest.mark.parametrize("grid", TURNED)
def test_what_is_sent_does_not_grow_with_the_dilation(grid):
    """At every dilation from a shard's rows on it is the same, or less where a tap leaves the image; plainly written, the image
    is gathered."""
    bytes_of = {}
    for dilation in (1, 2, 4, 8, 16, 32, 64):
        _, transfers = compared(
            lambda x, f, scope, d=dilation: convolution.convolve(x, f, scope, dilation=d),
            (1, 32, 32, 2),
            (3, 3, 2, 2),
            cut(*grid),
        )
        bytes_of[dilation] = sent(transfers)
    assert bytes_of[64] == 0 and bytes_of[1] < bytes_of[4] <= bytes_of[16]
    part = 32 * 32 * 2 * 8 // math.prod(grid)
    ways = sum(2 for n in grid if n > 1)
    again = 2 * (ways == 4)  # the results of rows' taps, whose gradients are sent once more for the filter's
    assert max(bytes_of.values()) <= part * (2 * ways + again)  # two taps each way, there and back
    _, plain = compared(
        lambda x, f, scope: convolution.convolve(x, f, ALONE, dilation=16), (1, 32, 32, 2), (3, 3, 2, 2), cut(*grid)
    )
    assert any(c.kind == "all-gather" for c in plain)


@pytest.mark.integration
@pytest.mark.parametrize("grid", TURNED)
@pytest.mark.parametrize("stride", [2, 4])
def test_strides_keep_the_cut(grid, stride):
    """Every n-th row and column of the result stays where it is computed, whatever the number of channels."""
    for filters in ((3, 3, 2, 5), (3, 3, 5, 2)):
        far, transfers = compared(
            lambda x, f, scope: convolution.convolve(x, f, scope, stride=stride), (1, 32, 32, filters[2]), filters, cut(*grid)
        )
        assert far < 1e-9
        sent(transfers)


@pytest.mark.parametrize("grid", TURNED)
@pytest.mark.parametrize("grow", [convolution.upsampled, convolution.depth_to_space])
def test_upsampling_sends_nothing(grid, grow):
    """Both kinds of it keep the cut."""
    far, transfers = compared(lambda x, f, scope: grow(x * f, 2, scope), (1, 16, 16, 8), (8,), cut(*grid))
    assert far < 1e-9 and sent(transfers) == 0


@pytest.mark.parametrize("grid", TURNED)
@pytest.mark.parametrize("kept", [8, 16, 24, 32])
def test_the_centre_is_spread_over_all_devices(grid, kept):
    """Without gathering it: a device sends at most what a shard keeps, once for each place that it may go to."""
    far, transfers = compared(lambda x, f, scope: convolution.centre(x * f, kept, kept, scope), (1, 32, 32, 4), (4,), cut(*grid))
    assert far < 1e-9
    sent(transfers)


def test_upsampling_and_depth_to_space_are_what_they_say():
    """Positions are repeated; or a position's channels are its points, row by row."""
    x = jnp.arange(1 * 2 * 3 * 4).reshape(1, 2, 3, 4)
    big = convolution.upsampled(x, 2, ALONE)
    assert big.shape == (1, 4, 6, 4) and (big[0, 2:, 2:4] == x[0, 1, 1]).all()
    fine = convolution.depth_to_space(x, 2, ALONE)
    assert fine.shape == (1, 4, 6, 1) and fine[0, 2:, 2:4, 0].ravel().tolist() == x[0, 1, 1].tolist()


def test_odd_sizes_are_refused_with_the_nearest_that_fits():
    """Rows that a cut does not divide, strides, and centres."""
    scope = cut(4, 2)
    filters = jnp.ones((3, 3, 1, 1))
    with pytest.raises(LayoutError, match=r"'height' of size 30 is not divisible by the 4 shards .*; the nearest that fits is 3"):
        convolution.convolve(jnp.ones((1, 30, 32, 1)), filters, scope)
    with pytest.raises(LayoutError, match="'width' of size 7 is not divisible by the stride 2; the nearest that fits is 8"):
        convolution.convolve(jnp.ones((1, 32, 7, 1)), filters, ALONE, stride=2)
    with pytest.raises(LayoutError, match="'height' of size 32 has no centre of size 9; the nearest is 10"):
        convolution.centre(jnp.ones((1, 32, 32, 1)), 9, 8, ALONE)
    with pytest.raises(LayoutError, match=r"'height' of size 6 is not divisible by the 4 shards .*; the nearest that fits is 3"):
        convolution.centre(jnp.ones((1, 32, 32, 1)), 6, 8, scope)
