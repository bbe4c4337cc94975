"""ViT and V-MoE under every layout of their family compute what one device computes, cut in space too."""

import dataclasses
import math
from collections import Counter

import pytest

from data.images.config import ImageData
from models.parts.attention.config import RelativePatches
from models.parts.nested import changed
from models.sharding.layout import LayoutError
from models.vit.config import DistilledPooling, NormedMeanPooling, TokenAndMeanPooling
from models.vit.layouts import LAYOUTS
from tests.helpers.layouts import (
    assert_equal_to_one_device,
    assert_variant_equal_to_one_device,
    case_id,
    cases,
    experiment,
    trial,
)
from trainers.hlo import equality

pytestmark = pytest.mark.integration

VIT, SPARSE = "vit.quickstart", "vit.moe_quickstart"
# Blocks are those of test_gpt_layouts.py and test_m4_layouts.py; what is this family's own is pictures cut in space.
TABLE = [
    *cases(VIT, keep=("spatial",), slow=("spatial_ring", "two_d"), nightly=("fully_sharded", "pipeline_interleaved")),
    *cases(SPARSE, slow=("expert_fsdp",), nightly=("expert_parallel",)),
    *cases("vit.vit_22b", nightly=("spatial",)),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision, and patches go to the same experts."""
    assert_equal_to_one_device(name, layout, mesh)


VARIANTS = {
    "deit": {"model.pooling": DistilledPooling(head=True)},
    "dinov2": {"model.pooling": TokenAndMeanPooling(), "model.norm.layer_scale": 0.5},
    "beit": {
        "model.pooling": NormedMeanPooling(),
        "model.positions": RelativePatches(rows=4, columns=4),
        "model.attention.biases": "qvo",
        "model.norm.layer_scale": 0.5,
    },
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param("deit", "gpipe:2x2x2", marks=pytest.mark.nightly),
        pytest.param("dinov2", "two_d:2x4", marks=pytest.mark.nightly),
        pytest.param("beit", "tensor_parallel:2x4", marks=pytest.mark.slow),
    ],
)
def test_variants_are_those_of_one_device(name, layout):
    """A second token and its head, factors of layers' outputs and biases of offsets are cut as the layers are: as above."""
    e = changed(experiment("vit.b16"), VARIANTS[name])
    assert_variant_equal_to_one_device(e, layout)


def test_a_picture_cut_in_space_is_never_gathered():
    """Rows of pixels become positions where they lie: no collective moves pixels or patches, and keys go round only in a ring."""
    data = experiment(VIT).data
    assert isinstance(data, ImageData)
    pixels = data.batch_size // 2 * data.height * data.width * data.channels  # of a row of the mesh
    for layout in ("spatial", "spatial_ring"):
        collectives = trial(VIT, layout, (2, 4)).collectives
        sent = Counter((c.kind, c.axes) for c in collectives)
        assert not any(kind == "all-to-all" for kind, _ in sent), sent
        assert bool(sent["collective-permute", ("model",)]) == (layout == "spatial_ring"), sent
        images = [c for c in collectives for shape in c.shapes if math.prod(shape.dims) == pixels and shape.dims[0] != 2]
        assert not images, images


def test_a_class_token_is_not_cut_in_space():
    """16 patches and a class token are no 4 equal parts: one line says so."""
    e = experiment("vit.b16")
    e = dataclasses.replace(e, layout=LAYOUTS["spatial"](2, 4))
    with pytest.raises(LayoutError, match=r"'(res_)?length' of size 17 is not divisible by the 4 shards"):
        equality.trial(e, 1)
