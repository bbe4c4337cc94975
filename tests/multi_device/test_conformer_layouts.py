"""The Conformer under layouts of its family computes what one device computes."""

import pytest

from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("name", "layout", "mesh"),
    [
        *cases("conformer.g", keep=("time", "pipeline_interleaved")),  # wav2vec 2.0, linear targets
        # Relative positions, batch norm and a transducer; codes of the whole batch.
        pytest.param("conformer.large", "time", (2, 4), marks=pytest.mark.slow),
        pytest.param("conformer.large", "two_d", (2, 4), marks=pytest.mark.slow),
        pytest.param("conformer.w2v_bert_xl", "two_d", (2, 4), marks=pytest.mark.slow),
        # a waveform, a norm over time, a convolution of positions
        pytest.param("conformer.wav2vec2_base", "time", (2, 4), marks=pytest.mark.slow),
        pytest.param("conformer.w2v_bert_xl", "time", (2, 4), marks=pytest.mark.slow),
    ],
    ids=case_id,
)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision."""
    assert_equal_to_one_device(name, layout, mesh)
