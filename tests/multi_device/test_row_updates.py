"""Steps by rows under every layout of DLRM: they are those of one device by whole tables, and no table is gathered or copied."""

import dataclasses
import math

import jax
import pytest

from models.dlrm.layouts import LAYOUTS
from tests.helpers.layouts import run
from tests.helpers.row_updates import NAMES, copies, experiment, whole
from trainers.hlo import equality
from trainers.plan import make_plan

pytestmark = pytest.mark.integration
KEPT = ("mixed", "row_wise")


@pytest.mark.parametrize("layout", [pytest.param(name, marks=() if name in KEPT else pytest.mark.slow) for name in LAYOUTS])
def test_numbers_are_those_of_whole_tables_on_one_device(layout, monkeypatch):
    """Three steps of row-wise AdaGrad to 1e-9; no part of a table is gathered or copied."""
    e = experiment(rows=8)
    with jax.enable_x64(True):
        start = equality.start(e)
        with monkeypatch.context() as patch:
            whole(patch)
            want = equality.reference(e, 3, start)
    e = dataclasses.replace(e, layout=LAYOUTS[layout](2, 4))
    plan = make_plan(e)
    assert plan.by_rows.keys() == NAMES
    got = run(e, start)
    far = equality.differences(got, want)
    assert max(far["losses"], far["gradients"], far["parameters"]) < 1e-9, far
    parts = [math.prod(plan.shardings.params[name].shard_shape(plan.state.params[name].shape)) for name in NAMES]
    assert not copies(got.compiled.as_text() or "", min(parts))
    gathered = [shape.size for c in got.collectives if c.kind == "all-gather" for shape in c.shapes]
    assert max(gathered, default=0) < min(parts), gathered
