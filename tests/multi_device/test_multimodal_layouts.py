"""A model of pictures and sounds under layouts of its family, whose components run in different modes, computes what one device
computes. So does TrOCR, whose decoder reads the image tower's own vectors."""

import dataclasses

import pytest

from models.m2m100.config import Inputs
from models.parts.attention.config import Learned
from models.parts.nested import changed
from tests.helpers import layouts
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


TROCR = {
    "towers.audio": None,
    "towers.seam": "none",
    "towers.vision.attention.biases": "o",
    "positions": Learned(rows=34, first=2),
    "inputs": Inputs(scaled=False, norm=True),
    "moe": None,
    "norm.order": "post",
}


@pytest.mark.slow
def test_numbers_of_a_trocr_are_those_of_one_device():
    """Weights and vocabulary cut over 2 x 4 devices, to 1e-9 in double precision."""
    e = layouts.experiment("multimodal.quickstart")
    e = dataclasses.replace(e.with_finetune(freeze=()), model=changed(e.model, TROCR))  # there is no audio tower to freeze
    layouts.assert_variant_equal_to_one_device(e, "tensor_parallel:2x4")
