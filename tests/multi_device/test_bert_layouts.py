"""A layout changes where an encoder's numbers are computed, never the numbers: its heads, and all layouts, against one device.

Blocks are those of test_gpt_layouts.py, so that `make test` runs a layout of each kind; `make test-all` runs them all.
"""

import pytest

from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases

pytestmark = pytest.mark.integration

TABLE = [
    *cases("bert.quickstart_pairs", keep=("two_d",), slow=("context_ring", "pipeline_1f1b"), nightly=("fully_sharded",)),
    pytest.param("bert.base_squad", "two_d", (2, 4), marks=pytest.mark.nightly),
    # A first layer before the stack, layers that see near positions alone, two bases of rotary positions.
    *cases("bert.modernbert_base", slow=("context_ring",), nightly=("pipeline_interleaved",)),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision."""
    assert_equal_to_one_device(name, layout, mesh)
