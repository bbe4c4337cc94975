"""A model of pictures and sounds under layouts of its family, whose components run in different modes, computes what one device
computes."""

import pytest

from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases

pytestmark = pytest.mark.integration

TABLE = [
    *cases("multimodal.quickstart", nightly=("announcement",)),
    *cases("multimodal.pod", slow=("towers",), nightly=("announcement", "gathered_towers", "towers_in_space", "fully_sharded")),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision, and tokens go to the same experts."""
    assert_equal_to_one_device(name, layout, mesh)
