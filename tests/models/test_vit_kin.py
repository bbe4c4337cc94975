"""DeiT, DINOv2 and BEiT as variants of ViT: released sizes to the parameter, what sets them apart, folders read and refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from models.interchange import InterchangeError
from models.parts.attention.config import RelativePatches
from models.parts.attention.logits import patch_buckets
from models.parts.attention.mask import AttentionMask
from models.parts.nested import changed
from models.protocol import Context
from models.sharding.params import describe, to_params, with_params
from models.vit.config import MapPooling, NormedMeanPooling, TokenAndMeanPooling, VitConfig
from models.vit.huggingface import INTERCHANGE
from models.vit.model import Vit
from tests.helpers.folders import assert_refused, copy
from tests.parity import ours
from tests.parity.live import FIXTURES
from trainers.weights import huggingface
from trainers.weights import source as weights
from trainers.weights.huggingface import HuggingFace

TEACHER = "DeiTForImageClassificationWithTeacher"


def described(kind: str, architecture: str, layers: int, width: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = dict(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads)
    labels = {"num_labels": 1000} if "Classification" in architecture else {}
    return dict(model_type=kind, architectures=[architecture]) | sizes | labels | more


def dino(layers: int, width: int, heads: int, **more: Any) -> dict[str, Any]:
    return described("dinov2", "Dinov2Model", layers, width, heads, image_size=518, **more)


# The settings of released folders and the parameters that their authors or timm count (from memory; sums of the tensors' sizes
# agree). DINOv2's have a token for masked patches too, which is of pre-training alone.
RELEASED = {
    "deit_tiny_distilled": (described("deit", TEACHER, 12, 192, 3, intermediate_size=768), 5_910_800),
    "deit_small_distilled": (described("deit", TEACHER, 12, 384, 6, intermediate_size=1536), 22_436_432),
    "deit_base_distilled": (described("deit", TEACHER, 12, 768, 12), 87_338_192),
    "beit_base": (described("beit", "BeitForImageClassification", 12, 768, 12, use_relative_position_bias=True), 86_530_984),
    "dinov2_small": (dino(12, 384, 6), 22_056_576),
    "dinov2_base": (dino(12, 768, 12), 86_580_480),
    "dinov2_large": (dino(24, 1024, 16), 304_368_640),
    "dinov2_giant": (dino(40, 1536, 24, use_swiglu_ffn=True), 1_136_480_768),
}


@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes_are_exact(name):
    """Every one is read, built, abstractly, and counted; and its settings are what is written of it."""
    settings, published = RELEASED[name]
    config = INTERCHANGE.read_config(settings)
    masked = config.model_dim if settings["model_type"] == "dinov2" else 0
    assert sum(info.size for info in describe(ours.abstract(config))) + masked == published
    assert INTERCHANGE.read_config(INTERCHANGE.write_config(config)) == config


# --- what sets them apart ----------------------------------------------------------------------------------------


def model_of(name: str, **fields: Any) -> tuple[VitConfig, dict[str, Any], Vit]:
    """A fixture's configuration with other fields, random parameters, and the model that has them."""
    config = changed(HuggingFace(FIXTURES / name).config, fields)
    params = ours.fresh(config, 0)
    return config, params, with_params(ours.abstract(config), jax.tree.map(jnp.asarray, params))


def test_outputs_with_a_teacher_are_the_mean_of_both_heads():
    """The class token's head and the teacher's token's head, each by itself; without its head the second token is not read."""
    config, params, model = model_of("deit_teacher")
    x_BLM = jnp.asarray(np.random.default_rng(0).normal(size=(2, config.length, config.model_dim)), jnp.float32)
    first = x_BLM[:, 0] @ params["head.weight"] + params["head.bias"]
    second = x_BLM[:, 1] @ params["head.teacher_weight"] + params["head.teacher_bias"]
    assert_allclose(model.head(x_BLM), (first + second) / 2, rtol=1e-5, atol=1e-6)
    _, params, model = model_of("deit")
    want = x_BLM[:, 0] @ params["head.weight"] + params["head.bias"]
    assert_allclose(model.head(x_BLM), want, rtol=1e-5, atol=1e-6)


def test_a_dinos_head_reads_the_class_token_and_the_mean_of_patches():
    """The mean leaves the class token out."""
    config, params, model = model_of("dinov2")
    x_BLM = jnp.asarray(np.random.default_rng(0).normal(size=(2, config.length, config.model_dim)), jnp.float32)
    pooled = np.concatenate([x_BLM[:, 0], np.mean(x_BLM[:, 1:], axis=1)], axis=-1)
    assert_allclose(model.head(x_BLM), pooled @ params["head.weight"] + params["head.bias"], rtol=1e-5, atol=1e-6)


def test_a_beits_biases_are_of_offsets_in_the_plane():
    """Two pairs of patches with the same offset have the same bias, all others another; a class token has three of its own."""
    patches = RelativePatches(rows=2, columns=3)
    ones = jnp.ones((1, 7), jnp.int32)
    (buckets,) = np.asarray(patch_buckets(AttentionMask.for_rows(ones, ones), patches))
    assert patches.buckets == 3 * 5 + 3
    places = [(row, column) for row in range(2) for column in range(3)]
    offsets: dict[tuple[int, int], set[int]] = {}
    for i, a in enumerate(places, 1):
        for j, b in enumerate(places, 1):
            offsets.setdefault((a[0] - b[0], a[1] - b[1]), set()).add(int(buckets[i, j]))
    assert all(len(numbers) == 1 for numbers in offsets.values()) and len({*map(min, offsets.values())}) == 15
    assert buckets[1, 1] == 7 and buckets[1, 2] == 6 and buckets[1, 4] == 2  # the same; one to the left; one above
    assert (buckets[0, 1:] == 15).all() and (buckets[1:, 0] == 16).all() and buckets[0, 0] == 17


def test_layers_scaled_by_nothing_leave_their_input():
    """Factors of 0 make every layer the identity; factors of 1 are no factors."""
    config, params, model = model_of("dinov2")
    images = {"images": np.ones((1, *config.picture)), "labels": np.zeros((1, 2), np.int32), "label_weights": np.ones((1, 2))}
    scales = [name for name in params if name.endswith("_scale")]
    assert len(scales) == 2

    def features(c: VitConfig, arrays: dict[str, Any]) -> jax.Array:
        model = with_params(ours.abstract(c), jax.tree.map(jnp.asarray, arrays))
        return jax.jit(lambda m: m.features(images))(model)

    embedded = jax.jit(lambda m: m.final_norm(m.embed(images, Context.evaluation())))(model)
    assert_allclose(features(config, params | {n: 0 * params[n] for n in scales}), embedded, rtol=1e-5, atol=1e-6)
    ones = features(config, params | {n: np.ones_like(params[n]) for n in scales})
    plain = {name: x for name, x in params.items() if name not in scales}
    assert_allclose(ones, features(changed(config, {"norm.layer_scale": 0.0}), plain), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pooling.positioned": False}, "positioned=False: two tokens have places"),
        ({"pooling": TokenAndMeanPooling(), "head.pooler": True}, "head.pooler=True: .* nearest is False"),
        ({"norm.layer_scale": float("nan")}, "layer_scale"),
        ({"positions": RelativePatches(rows=3, columns=2), "pooling": NormedMeanPooling()}, r"=\(3, 2\): must be .* \(3, 3\)"),
        ({"positions": RelativePatches(rows=3, columns=3), "pooling": MapPooling()}, "pooling=MapPooling: .* NormedMeanPooling"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        changed(HuggingFace(FIXTURES / "deit").config, fields)


# --- folders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deit", "deit_teacher", "deit_features", "dinov2", "dinov2_features", "beit", "beit_features"])
def test_a_folder_is_written_as_it_was_read(name, tmp_path):
    """Config and every parameter come back, bit by bit."""
    read = HuggingFace(FIXTURES / name)
    huggingface.write_folder(weights.Arrays(read.config, to_tree(read)), tmp_path / "f")
    again = HuggingFace(tmp_path / "f")
    assert again.config == read.config and again.theirs["architectures"] == read.theirs["architectures"]
    for parameter in read.shapes:
        assert_array_equal(again.read(parameter), read.read(parameter))


def to_tree(source: HuggingFace) -> Any:
    """The parameters of a folder as a tree."""
    return to_params(ours.model(source))


@pytest.mark.parametrize(
    ("name", "settings", "error"),
    [
        ("deit", dict(architectures=["DeiTForMaskedImageModeling"]), "did you mean 'DeiTForImageClassification'?"),
        ("deit", dict(hidden_size=20), "hidden_size=20 is no multiple of num_attention_heads=3"),
        ("deit", dict(image_size=28), "deit.embeddings.position_embeddings is [1, 11, 18], expected [1, 18, 18]"),
        ("deit_features", dict(pooler_output_size=7), "pooler_output_size=7: only hidden_size=18"),
        ("deit_features", dict(pooler_act="relu"), 'pooler_act="relu" is not supported, only "tanh"'),
        ("dinov2", dict(architectures=["Dinov2Backbone"]), "no output like that of 'Dinov2Backbone' here"),
        ("dinov2", dict(mlp_ratio=2.5), "mlp_ratio is 2.5; expected int"),
        ("dinov2", dict(use_swiglu_ffn=False), "dinov2.encoder.layer.0.mlp.fc1.weight is missing"),
        ("dinov2_features", dict(hidden_act="gelu_fast"), "no activation 'gelu_fast' here; did you mean 'gelu'?"),
        ("beit", dict(use_relative_position_bias=None), "use_relative_position_bias is false: only true"),
        ("beit", dict(use_shared_relative_position_bias=True), "use_shared_relative_position_bias=true is not supported"),
        ("beit", dict(use_mean_pooling=False), "use_mean_pooling=false is not supported, only true"),
        ("dinov2_features", dict(model_type="dinov2_with_registers"), "no model of type 'dinov2_with_registers' here"),
    ],
)
def test_a_folder_of_another_model_is_refused(name, settings, error, tmp_path):
    """In one line, with the setting, its value and what would do."""
    assert_refused(copy(name, tmp_path / "f", **settings), error)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("dinov2", {"feed_forward.hidden_dim": 25}, "feed_forward.hidden_dim=25; nearest is 24"),
        ("dinov2", {"feed_forward.activation": "gelu"}, "a gated layer of 'gelu'; nearest is 'silu'"),
        ("dinov2", {"pooling": MapPooling()}, r"no DINOv2 of Hugging Face is like this model: .*pooling"),
        ("deit", {"norm.layer_scale": 0.1}, r"no DeiT of Hugging Face is like this model: norm.layer_scale=0.1"),
    ],
)
def test_what_none_of_them_has_is_not_written(name, fields, message):
    """The line names the field and, where there is one, the nearest that would do."""
    with pytest.raises(InterchangeError, match=message):
        INTERCHANGE.write_config(changed(HuggingFace(FIXTURES / name).config, fields))
