"""HSTU under every layout of its family computes what one device computes, and the table of items is not gathered."""

import math

import pytest

from tests.helpers.layouts import MESH, assert_equal_to_one_device, case_id, cases, laid_out, trial
from trainers.plan import make_plan

pytestmark = pytest.mark.integration

ITEM, ACTION = "hstu.quickstart", "hstu.dlrmv4"
TABLE = [
    *cases(ITEM, keep=("mixed",), slow=("tensor_parallel",), nightly=("data_parallel", "column_wise", "fully_sharded")),
    *cases(ACTION, slow=("fully_sharded",), nightly=("data_parallel", "mixed", "column_wise", "tensor_parallel")),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision."""
    assert_equal_to_one_device(name, layout, mesh)


def test_the_table_is_looked_up_where_its_rows_are():
    """Under `mixed`, ids, vectors and gradients go by all-to-all, of rows and of negatives, and nothing as large as the table is
    gathered."""
    collectives = trial(ITEM, "mixed", MESH[2]).collectives
    assert sum(c.kind == "all-to-all" and "(tables)" in c.op_name and "while" not in c.op_name for c in collectives) >= 6
    table = math.prod(make_plan(laid_out(ITEM, "mixed", MESH[2])).state.params["tables.table"].shape)
    gathered = [shape for c in collectives if c.kind == "all-gather" for shape in c.shapes]
    assert all(shape.size < table for shape in gathered), gathered
