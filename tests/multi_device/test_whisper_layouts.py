"""Whisper under layouts of its family computes what one device computes."""

import pytest

from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("name", "layout", "mesh"),
    cases("whisper.turbo", keep=("time",), slow=("fully_sharded", "encoder_pipelined", "pipelines_with_experts")),
    ids=case_id,
)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision."""
    assert_equal_to_one_device(name, layout, mesh)
