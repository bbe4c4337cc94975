"""Two towers under layouts of their family: the losses that compare all pairs of a batch are those of one device."""

import pytest

from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases, trial

pytestmark = pytest.mark.integration

SOFTMAX, SIGMOID = "clip.quickstart", "clip.siglip_quickstart"
TABLE = [
    *cases(SOFTMAX, slow=("two_d",), nightly=("fully_sharded", "towers")),
    *cases(SIGMOID, keep=("data_parallel",), slow=("towers",), nightly=("tensor_parallel", "fully_sharded", "two_d")),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision."""
    assert_equal_to_one_device(name, layout, mesh)


def test_vectors_of_the_sigmoid_go_round():
    """Texts' vectors are sent from shard to shard; with the batch cut over all devices nothing of them is gathered."""
    collectives = trial(SIGMOID, "data_parallel", (2, 4)).collectives
    assert {c.kind for c in collectives} == {"all-reduce", "collective-permute"}, collectives
