"""The Conformer under layouts of its family computes what one device computes."""

import pytest

from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("name", "layout", "mesh"),
    [
        # wav2vec 2.0, linear targets
        *cases("conformer.g", keep=("time",), slow=("two_d", "fully_sharded", "pipeline_interleaved")),
        # Relative positions, batch norm and a transducer; codes of the whole batch.
        *cases("conformer.large", slow=("time",)),
        *cases("conformer.w2v_bert_xl", slow=("two_d",)),
        # a waveform, a norm over time, a convolution of positions
        *cases("conformer.wav2vec2_base", slow=("time",)),
    ],
    ids=case_id,
)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision."""
    assert_equal_to_one_device(name, layout, mesh)
