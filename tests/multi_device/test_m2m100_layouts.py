"""NLLB's mixture under layouts of its family computes what one device computes: biases of experts, four layers a unit."""

import pytest

from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases

pytestmark = pytest.mark.integration

TABLE = [
    *cases("m2m100.m418", nightly=("fully_sharded",)),
    *cases("nllb.moe_54b", slow=("expert_parallel",), nightly=("expert_fully_sharded", "encoder_pipelined")),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision, and tokens go to the same experts."""
    assert_equal_to_one_device(name, layout, mesh)
