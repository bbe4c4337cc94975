"""A layout changes where an encoder's numbers are computed, never the numbers: its heads, and all layouts, against one device.

Blocks are those of test_gpt_layouts.py, so that `make test` runs a layout of each kind; `make test-all` runs them all.
"""

import dataclasses

import pytest

from models.parts.attention.config import Disentangled, LearnedAndBuckets
from models.parts.nested import changed
from tests.helpers import layouts
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


# ALBERT's layers and embeddings, and MPNet's positions, in one model.
SHARED = {"positions": LearnedAndBuckets(rows=66, first=2, buckets=8), "embedding.distinct": 2, "embedding.size": 8}
# DeBERTa's vectors of distances, in buckets of one and of several.
DISTANCES = {"positions": Disentangled(buckets=4, max_distance=20), "embedding.types": 0}

CASES = [
    pytest.param("bert.quickstart_pairs", SHARED, "two_d:2x4", marks=pytest.mark.slow),
    pytest.param("bert.quickstart_pairs", SHARED, "pipeline_1f1b:2x2x2", marks=pytest.mark.nightly),
    pytest.param("bert.quickstart_pairs", DISTANCES, "context_ring:2x4", marks=pytest.mark.slow),
    pytest.param("bert.quickstart_pairs", DISTANCES, "pipeline_1f1b:2x2x2", marks=pytest.mark.nightly),
    # The loss compares each pair with all others of the batch, wherever they are.
    pytest.param("bert.minilm_l6", {"head.vector": "last"}, "two_d:2x4", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "changes", "layout"), CASES)
def test_numbers_of_variants_are_those_of_one_device(name, changes, layout):
    """Parameters, a table of biases and vectors of distances that layers share, cut over eight devices and in
    stages, and losses of pairs, to 1e-9 in double precision."""
    e = layouts.experiment(name)
    e = dataclasses.replace(e, model=changed(e.model, changes))
    layouts.assert_variant_equal_to_one_device(e, layout)
