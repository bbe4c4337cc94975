"""NLLB's mixture under layouts of its family computes what one device computes: biases of experts, four layers a unit. So does
BART, with a table of positions and a norm of each stack's inputs, and a bias of logits."""

import dataclasses

import pytest

from models.m2m100.config import Inputs
from models.parts.attention.config import Learned
from models.parts.nested import changed
from tests.helpers import layouts
from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases

pytestmark = pytest.mark.integration

TABLE = [
    *cases("m2m100.m418", nightly=("fully_sharded",)),
    *cases("nllb.moe_54b", slow=("expert_parallel",), nightly=("expert_fully_sharded", "encoder_pipelined")),
]
BART = {
    "positions": Learned(rows=258, first=2),
    "norm.order": "post",
    "feed_forward.activation": "gelu",
    "inputs": Inputs(scaled=False, norm=True),
    "logits_bias": True,
}


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision, and tokens go to the same experts."""
    assert_equal_to_one_device(name, layout, mesh)


@pytest.mark.slow
def test_numbers_of_a_bart_are_those_of_one_device():
    """Weights and vocabulary cut over 2 x 4 devices, to 1e-9 in double precision."""
    e = layouts.experiment("m2m100.m418")
    e = dataclasses.replace(e, model=changed(e.model, BART))
    layouts.assert_variant_equal_to_one_device(e, "tensor_parallel:2x4")
