"""A layout on fewer devices: which axes may shrink, which mesh is chosen, and that the model fits every one of them."""

import dataclasses
import math

import pytest

from configs import registry
from models.families import family_of
from models.sharding.layout import SLICE, LayoutError
from models.sharding.layouts import LAYOUTS, over_slices
from models.sharding.shrinking import on_fewer_devices, shrinking_axes, surely_fits
from scripts.cli import named_layout
from trainers.plan import make_plan

PRIME = 1009  # rows that no other size than a divisor of the layout's own is tried for


@pytest.mark.parametrize(
    ("layout", "axes"),
    [
        ("data_parallel", ("data", "model")),
        ("zero1", ("data", "model")),
        ("fully_sharded", ("data", "model")),  # weights alone are cut beside rows
        ("fsdp_within_data", ("data", "model")),
        ("tensor_parallel", ("data",)),
        ("sequence_parallel", ("data",)),
        ("two_d", ("data",)),
        ("context_ring", ("data",)),
    ],
)
def test_rows_are_cut_over_fewer_devices_and_nothing_else_is(layout, axes):
    """Data-parallel and FSDP axes shrink; those of heads, hidden dimensions and positions do not."""
    assert shrinking_axes(LAYOUTS[layout](4, 2)) == axes


@pytest.mark.parametrize(
    ("experiment", "layout", "axes"),
    [
        ("gpt.quickstart", "pipeline_1f1b:2x2x2", ("data",)),
        ("gshard_m4.quickstart", "expert_parallel:4x2", ("data",)),
        ("gshard_m4.quickstart", "expert_parallel_2d:4x2", ()),  # every axis that cuts rows cuts experts
        ("gpt.quickstart", "2xtensor_parallel:1x4", (SLICE, "data")),
    ],
)
def test_stages_and_experts_stay_and_slices_may_go(experiment, layout, axes):
    e = registry.load(experiment)
    assert shrinking_axes(named_layout(e, layout)) == axes


@pytest.mark.parametrize(
    ("layout", "devices", "mesh"),
    [
        (LAYOUTS["fully_sharded"](4, 2), 4, (2, 2)),  # the slow axis first
        (LAYOUTS["fully_sharded"](4, 2), 2, (1, 2)),
        (LAYOUTS["fully_sharded"](4, 2), 1, (1, 1)),
        (LAYOUTS["data_parallel"](6, 1), 3, (3, 1)),
        (over_slices(LAYOUTS["fully_sharded"](2, 2), 4), 8, (2, 2, 2)),  # whole slices go
        (over_slices(LAYOUTS["tensor_parallel"](1, 4), 3), 4, (1, 1, 4)),
    ],
)
def test_the_axes_that_vary_slowest_shrink_first(layout, devices, mesh):
    small = on_fewer_devices(layout, rows=PRIME)[devices]
    assert tuple(size for _, size in small.mesh) == mesh and small.devices == devices
    assert (small.rules, small.name, small.pad) == (layout.rules, layout.name, ()) and surely_fits(small, layout)


def test_all_devices_leave_a_layout_as_it_is():
    layout = LAYOUTS["fully_sharded"](4, 2)
    assert on_fewer_devices(layout, rows=24)[8] is layout


@pytest.mark.parametrize(
    ("layout", "rows", "devices"),
    [
        (LAYOUTS["data_parallel"](4, 1), 8, [1, 2, 4]),  # eight rows are not cut in three
        (LAYOUTS["data_parallel"](4, 1), 12, [1, 2, 3, 4]),
        (LAYOUTS["data_parallel"](8, 1), 40, [1, 2, 4, 5, 8]),
        (LAYOUTS["tensor_parallel"](4, 2), 12, [2, 4, 6, 8]),
        (LAYOUTS["fully_sharded"](4, 2), 12, [1, 2, 3, 4, 6, 8]),  # rows are cut over both axes
        (named_layout(registry.load("gshard_m4.quickstart"), "expert_parallel_2d:4x2"), 12, [8]),
    ],
)
def test_any_size_that_divides_the_rows_is_taken(layout, rows, devices):
    assert [*on_fewer_devices(layout, rows)] == devices


@pytest.mark.parametrize(
    ("layout", "devices", "mesh", "pad"),
    [
        (LAYOUTS["data_parallel"](4, 1), 3, (3, 1), ()),  # weights are whole
        (LAYOUTS["zero1"](4, 1), 3, (3, 1), ("embed",)),  # but not the optimizer's state
        (LAYOUTS["fully_sharded"](4, 2), 6, (3, 2), ("embed",)),  # the other axis keeps its size
        (LAYOUTS["fully_sharded"](2, 4), 3, (1, 3), ("heads", "mlp", "vocab")),
        (LAYOUTS["fully_sharded"](4, 3), 6, (2, 3), ()),  # 2 x 3 is of divisors, and comes before 3 x 2
    ],
)
def test_weights_that_a_size_does_not_divide_are_padded(layout, devices, mesh, pad):
    small = on_fewer_devices(layout, rows=24)[devices]
    assert (tuple(size for _, size in small.mesh), small.pad) == (mesh, pad)
    assert surely_fits(small, layout) == all(old % new == 0 for (_, old), (_, new) in zip(layout.mesh, small.mesh, strict=True))


@pytest.mark.integration
@pytest.mark.parametrize("name", ["gpt.quickstart", "gshard_m4.quickstart", "bert.quickstart", "vit.quickstart"])
def test_a_model_that_fits_a_layout_fits_it_on_fewer_devices(name):
    """Every layout of a family that takes the tiny experiment on eight devices is tried, on one slice and on two."""
    e, tried = registry.tiny(registry.load(name)), 0
    for recipe in family_of(e.model).layouts.values():
        sizes = (4, 2) if len(recipe.axes) == 2 else (2, 2, 2)
        for slices in (1, 2):
            layout = over_slices(recipe(*sizes[: len(recipe.axes)]), slices)
            try:
                make_plan(dataclasses.replace(e, layout=layout), abstract=True)
            except LayoutError:
                continue
            smaller = on_fewer_devices(layout, rows=PRIME)
            assert [*smaller][-1] == layout.devices and all(layout.devices % n == 0 for n in smaller)
            for n, small in smaller.items():
                assert math.prod(size for _, size in small.mesh) == n
                make_plan(dataclasses.replace(e, layout=small), abstract=True)
                tried += small != layout
    assert tried > 5
