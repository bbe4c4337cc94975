"""The Conformer under layouts of its family computes what one device computes. So do WavLM, with gated biases that all layers
share, and Wav2Vec2-BERT, with pairs of frames, vectors of distances and causal convolutions."""

import dataclasses

import jax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from configs import registry
from data.speech.config import SpeechData
from models.conformer.config import ConformerConfig, ConformerLayer, NearKeys, StackedMel, Wav2Vec
from models.conformer.fronts import Places
from models.parts.attention.config import GatedBuckets
from models.parts.nested import changed
from models.sharding.component import Component, make_mesh
from models.sharding.layouts import data_parallel
from tests.helpers import layouts
from tests.helpers.layouts import assert_equal_to_one_device, case_id, cases

pytestmark = pytest.mark.integration

TABLE = [
    # wav2vec 2.0, linear targets
    *cases("conformer.g", keep=("time",), slow=("two_d",), nightly=("pipeline_interleaved", "fully_sharded")),
    # Relative positions, batch norm and a transducer; codes of the whole batch.
    *cases("conformer.large", slow=("time",)),
    *cases("conformer.w2v_bert_xl", nightly=("two_d",)),
    # a waveform, a norm over time, a convolution of positions
    *cases("conformer.wav2vec2_base", slow=("time",)),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision."""
    assert_equal_to_one_device(name, layout, mesh)


NEAR = ConformerLayer(kernel=5, near=NearKeys(left=4, right=2), causal=True)
# The experiment, what differs from it, and frames of a position.
VARIANTS = {
    "wavlm": (
        "conformer.wav2vec2_base",
        {"layer.positions": GatedBuckets(buckets=8, max_distance=6), "objective": Wav2Vec()},
        320,
    ),
    "wav2vec2_bert": ("conformer.g", {"layer": NEAR, "front": StackedMel(bands=16)}, StackedMel.stride),
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param("wavlm", "tensor_parallel:2x4", marks=pytest.mark.slow),
        pytest.param("wavlm", "pipeline_1f1b:2x2x2", marks=pytest.mark.nightly),
        pytest.param("wav2vec2_bert", "two_d:2x4", marks=pytest.mark.slow),
        pytest.param("wav2vec2_bert", "time:2x4", marks=pytest.mark.nightly),
    ],
)
def test_numbers_of_released_variants_are_those_of_one_device(name, layout):
    """To 1e-9 in double precision."""
    experiment, changes, stride = VARIANTS[name]
    e = layouts.experiment(experiment)
    assert isinstance(e.data, SpeechData)
    data = dataclasses.replace(e.data, masks=dataclasses.replace(e.data.masks, stride=stride))
    e = dataclasses.replace(e, model=changed(e.model, changes), data=data)
    layouts.assert_variant_equal_to_one_device(e, layout)


def test_the_convolution_of_positions_gathers_no_batch():
    """The gradient of a filter in groups is a sum over the devices of a cut batch: none of them sees the others' rows."""
    c = registry.tiny(registry.load("conformer.wav2vec2_base")).model
    assert isinstance(c, ConformerConfig) and c.positions is not None and c.positions.groups > 1
    layout = data_parallel(8, 1)
    mesh = make_mesh(layout)
    places = Places(c, c.positions, jax.random.key(0), Component(layout, mesh=mesh))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    x = jax.ShapeDtypeStruct((16, 32, c.model_dim), "float32", sharding=rows)
    segments = jax.ShapeDtypeStruct((16, 32), "int32", sharding=rows)
    graph, state = nnx.split(places)

    def loss(state, x, segments):
        return (nnx.merge(graph, state)(x, segments) ** 2).sum()

    text = jax.jit(jax.grad(loss)).lower(state, x, segments).compile().as_text() or ""
    assert "all-reduce" in text and "all-gather" not in text
