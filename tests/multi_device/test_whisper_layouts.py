"""Whisper under layouts of its family computes what one device computes."""

import pytest

from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases

pytestmark = pytest.mark.integration

TABLE = cases("whisper.turbo", keep=("time",), slow=("encoder_pipelined",), nightly=("fully_sharded", "pipelines_with_experts"))


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision."""
    assert_equal_to_one_device(name, layout, mesh)
