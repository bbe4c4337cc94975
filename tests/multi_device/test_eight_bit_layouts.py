"""Products in 8 bits under layouts: scales are of whole rows and columns, and sums of whole numbers are exact wherever they are
added, those of floats to rounding, so that losses, gradients and parameters are those of one device, as they are without."""

import dataclasses

import jax
import pytest

from models.families import family_of
from tests.helpers.layouts import STEPS, case_id, experiment, initial, run
from tests.helpers.models import varied
from trainers.hlo import equality

pytestmark = pytest.mark.integration

NAME = "gpt.quickstart"


@pytest.fixture(scope="module", params=["int8", "fp8"])
def one_device(request):
    """The experiment, and its first steps on one device."""
    e = varied(experiment(NAME), quantization=request.param)
    with jax.enable_x64(True):
        return e, equality.reference(e, STEPS, initial(NAME))


def differences(one_device, layout: str, mesh: tuple[int, ...], remat: str) -> dict[str, float]:
    e, want = one_device
    e = varied(dataclasses.replace(e, layout=family_of(e.model).layouts[layout](*mesh)), remat=remat)
    return equality.differences(run(e, initial(NAME)), want)


@pytest.mark.parametrize(
    ("layout", "mesh", "remat"),
    [("fully_sharded", (2, 4), "none"), pytest.param("tensor_parallel", (2, 4), "dots", marks=pytest.mark.slow)],
    ids=case_id,
)
def test_rounded_numbers_are_those_of_one_device(one_device, layout, mesh, remat):
    """To 1e-9 in double precision, where no number is so near the middle of two that the order of a sum decides which it becomes;
    in single precision a few are, and losses differ by what rounding them does."""
    far = differences(one_device, layout, mesh, remat)
    assert max(far["losses"], far["gradients"], far["parameters"]) < 1e-9, far


@pytest.mark.slow
def test_microbatches_of_a_pipeline_have_scales_of_their_own(one_device):
    """Gradients of weights are quantised microbatch by microbatch: they differ from those of a whole batch by that rounding."""
    far = differences(one_device, "pipeline_1f1b", (2, 2, 2), "full")
    assert far["losses"] < 1e-3 and 1e-9 < far["gradients"] < 0.1, far
