"""A layout on fewer devices: which axes may shrink, which mesh is chosen, and that the model fits every one of them."""

import dataclasses
import math
import re

import pytest

from configs import registry
from models.families import family_of
from models.sharding.layout import SLICE, LayoutError
from models.sharding.layouts import LAYOUTS, over_slices
from models.sharding.shrinking import numbers_of_devices, shrinking_axes, shrunk
from scripts.cli import named_layout
from trainers.plan import make_plan


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
    small = shrunk(layout, devices)
    assert tuple(size for _, size in small.mesh) == mesh and small.devices == devices
    assert (small.rules, small.name) == (layout.rules, layout.name)


def test_all_devices_leave_a_layout_as_it_is():
    layout = LAYOUTS["fully_sharded"](4, 2)
    assert shrunk(layout, 8) is layout


def test_a_number_that_no_mesh_has_is_refused_with_those_that_do():
    with pytest.raises(LayoutError, match=re.escape("cannot be cut over 6 devices: of its axes data may shrink")) as caught:
        shrunk(LAYOUTS["tensor_parallel"](4, 2), 6)
    assert str(caught.value).endswith("makes 2, 4, 8 devices") and "\n" not in str(caught.value)
    with pytest.raises(LayoutError, match="no axis may shrink"):
        shrunk(named_layout(registry.load("gshard_m4.quickstart"), "expert_parallel_2d:4x2"), 4)


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
            numbers = numbers_of_devices(layout)
            assert numbers[-1] == layout.devices and all(layout.devices % n == 0 for n in numbers)
            for n in numbers:
                small = shrunk(layout, n)
                assert math.prod(size for _, size in small.mesh) == n
                make_plan(dataclasses.replace(e, layout=small), abstract=True)
                tried += small != layout
    assert tried > 5
