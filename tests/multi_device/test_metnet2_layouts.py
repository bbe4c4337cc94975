"""MetNet-2 under every layout of its family computes what one device computes, and gathers no image that is cut in space."""

import dataclasses
from typing import Any

import jax
import pytest

from models.metnet2.layouts import LAYOUTS
from models.sharding.layout import LayoutError
from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases, experiment, trial
from trainers.plan import make_plan

pytestmark = pytest.mark.integration

NAME = "metnet2.quickstart"
IN_SPACE = [("spatial", (2, 2, 2)), ("spatial", (1, 2, 4)), ("spatial", (1, 8, 1)), ("spatial_1d", (1, 8))]
TABLE = [
    *cases(NAME, slow=("spatial", "channel_parallel"), nightly=("fully_sharded",)),
    *(pytest.param(NAME, *case, marks=pytest.mark.nightly) for case in IN_SPACE[1:]),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision, with shards of 4 rows and a dilation of 8."""
    assert_equal_to_one_device(name, layout, mesh)


@pytest.mark.parametrize(
    ("layout", "mesh"), [IN_SPACE[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in IN_SPACE[1:])], ids=case_id
)
def test_no_image_is_gathered(layout, mesh):
    """All-gathers of a step have parameters alone: no array has rows and columns of positions or points."""
    collectives = trial(NAME, layout, mesh).collectives
    assert any(c.kind == "collective-permute" for c in collectives)
    data: Any = experiment(NAME).data
    sizes = {data.area.height, data.area.width, *data.area.points}
    gathered = [s for c in collectives if c.kind in ("all-gather", "all-to-all") for s in c.shapes]
    assert not [s for s in gathered if len(s.dims) >= 4 and sizes & set(s.dims)], gathered


def test_inputs_are_cut_where_they_are_read():
    """Frames and targets are cut by rows and columns as they come from the host."""
    e = dataclasses.replace(experiment(NAME), layout=LAYOUTS["spatial"](2, 2, 2))
    shardings = make_plan(e).batch_shardings()
    shapes = {name: (8, *f.shape) for name, f in e.data.features().items()}
    parts = {name: s.shard_shape(shapes[name]) for name, s in shardings.items() if s is not None}
    assert parts["inputs"] == (4, 2, 16, 16, 4) and parts["targets"] == (4, 16, 16) and parts["lead_time"] == (4,)


def test_sizes_that_a_cut_does_not_divide_are_refused():
    """With the nearest number of shards that fits."""
    e = dataclasses.replace(experiment(NAME), layout=LAYOUTS["spatial_1d"](1, 3))
    with pytest.raises(LayoutError, match=r"'height' of size 32 is not divisible by the 3 shards .* nearest that fits is 2"):
        make_plan(e, jax.devices()[:3])
