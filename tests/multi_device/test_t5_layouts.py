"""T5 and Switch Transformer under every layout of their family compute what one device computes."""

from collections import Counter

import pytest

from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases, trial

pytestmark = pytest.mark.integration

SWITCH, T5 = "switch.quickstart", "t5.quickstart"
# What M4's tests show of one layer's blocks is not shown again: of experts, T5X's mesh and a pipeline.
TABLE = [
    *cases(T5, keep=("tensor_parallel",), slow=("sequence_parallel",), nightly=("fully_sharded",)),
    *cases(SWITCH, slow=("expert_model_parallel",), nightly=("encoder_pipelined", "expert_parallel_2d")),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision, and tokens go to the same experts; the tables of biases are the same for all stages of a pipeline."""
    assert_equal_to_one_device(name, layout, mesh)


@pytest.mark.slow
def test_experts_and_their_hidden_units_are_cut_by_axes_of_their_own():
    """Tokens travel by all-to-all over the experts' axis alone, and the model's axis sums what parts of experts return."""
    sent = Counter((c.kind, c.axes) for c in trial(SWITCH, "expert_model_parallel", (2, 2, 2)).collectives)
    assert sent["all-to-all", ("expert",)] and sent["all-reduce", ("model",)]
    assert not any(kind == "all-to-all" and axes != ("expert",) for kind, axes in sent)
