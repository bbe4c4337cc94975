"""CLIP and SigLIP: released sizes to the parameter, what a vector depends on, both losses beside their definitions, folders read
and refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from models.clip.config import ClipConfig, EndPooling, FilledPooling
from models.clip.huggingface import INTERCHANGE
from models.clip.model import texts_of_slots
from models.errors import UserError
from models.interchange import InterchangeError
from models.parts.nested import changed
from models.parts.pairs import sigmoid_pairs, softmax_pairs
from models.protocol import Context
from models.sharding.params import describe, to_params, with_params
from tests.helpers.folders import assert_refused
from tests.parity import ours
from tests.parity.live import FIXTURES
from trainers.plan import abstract_model
from trainers.weights import huggingface
from trainers.weights import source as weights
from trainers.weights.huggingface import HuggingFace

NOTHING_RANDOM = Context.evaluation()

# Parameters of released files: CLIP's and SigLIP's as their pages count them (from memory), the others derived.
SIZES = {
    "clip.b32": 151_277_313,
    "clip.b16": 149_620_737,
    "clip.l14": 427_616_513,
    "clip.siglip_b16": 203_155_970,
    "clip.siglip2_b16": 375_187_970,
    "clip.siglip_so400m": 877_960_498,
}


@pytest.mark.parametrize("name", SIZES)
def test_released_sizes_are_exact(name):
    """Every one is built, abstractly, and counted; and its settings are read as they are written."""
    e = registry.load(name)
    assert isinstance(e.model, ClipConfig)
    assert sum(info.size for info in describe(abstract_model(e))) == SIZES[name]
    assert INTERCHANGE.read_config(json.loads(json.dumps(INTERCHANGE.write_config(e.model)))) == e.model


def test_an_empty_config_is_the_first_release():
    """A CLIP without settings is ViT-B/32, a SigLIP without them B/16 of 224 pixels; old folders' second copies hold."""
    assert INTERCHANGE.read_config({"model_type": "clip"}) == registry.load("clip.b32").model
    assert INTERCHANGE.read_config({"model_type": "siglip"}) == registry.load("clip.siglip_b16").model
    old = {"model_type": "clip", "vision_config": {"patch_size": 32}, "vision_config_dict": {"patch_size": 16}}
    assert INTERCHANGE.read_config(old) == registry.load("clip.b16").model


# --- what vectors depend on --------------------------------------------------------------------------------------


def model_of(name: str) -> tuple[ClipConfig, Any]:
    """A fixture's configuration, and a random model of it."""
    config = HuggingFace(FIXTURES / name).config
    return config, with_params(ours.abstract(config), jax.tree.map(jnp.asarray, ours.fresh(config, 0)))


def pack() -> dict[str, jax.Array]:
    """A row with texts 1 to 3 side by side, of 3, 5 and 2 tokens, and slots for texts 2, 1 and none."""
    segments = np.array([[1] * 3 + [2] * 5 + [3] * 2 + [0]])
    tokens = np.random.default_rng(0).integers(4, 40, segments.shape) * (segments > 0)
    images = np.random.default_rng(1).normal(size=(1, 3, 21, 21, 3)).astype(np.float32)
    slots = np.array([[2, 1, 0]])
    arrays = {"images": images, "images_segments": slots, "targets": tokens, "targets_segments": segments}
    return {name: jnp.asarray(x if x.dtype == np.float32 else x.astype(np.int32)) for name, x in arrays.items()}


def test_each_slot_has_its_text_in_a_row_of_its_own():
    """From the first position on, whatever stands before it in the pack; an empty slot has none."""
    batch = pack()
    ids_XR, real_XR = texts_of_slots(batch, 13)
    tokens = np.asarray(batch["targets"][0])
    want = np.zeros((3, 11), int)
    want[0, :5], want[1, :3] = tokens[3:8], tokens[:3]
    assert_array_equal(ids_XR, want)
    assert_array_equal(np.sum(real_XR, axis=1), [5, 3, 0])
    short = {name: batch[name] for name in ("targets", "targets_segments")} | {"images_segments": jnp.ones((1, 1), jnp.int32)}
    with pytest.raises(UserError, match=r"a row of 11 tokens: .*text\.positions\.rows, has 10"):
        texts_of_slots(short, 10)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_vectors_are_those_of_a_picture_and_a_text_alone(name):
    """A pack's vectors are those of rows of one; a picture's says nothing of a text, nor a text's of its padding's ids."""
    _, model = model_of(name)
    batch = pack()
    picture_vectors = jax.jit(lambda b: model.picture_vectors(b, NOTHING_RANDOM)[0])
    text_vectors = jax.jit(lambda b: model.text_vectors(b, NOTHING_RANDOM))
    pictures, texts = picture_vectors(batch), text_vectors(batch)
    ids_XR, real_XR = texts_of_slots(batch, 11)
    alone = {
        "images": batch["images"].swapaxes(0, 1),
        "images_segments": jnp.array([[1], [1], [0]], jnp.int32),
        "targets": jnp.where(real_XR, ids_XR, 9),
        "targets_segments": real_XR.astype(jnp.int32),
    }
    assert_allclose(picture_vectors(alone), pictures, atol=1e-6)
    assert_allclose(text_vectors(alone)[:2], texts[:2], atol=1e-6)
    assert_allclose(np.linalg.norm(pictures, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_a_texts_vector_depends_on_each_of_its_tokens(name):
    """And on none behind its end."""
    _, model = model_of(name)
    ids_R = np.random.default_rng(0).integers(4, 40, 6)
    ids_XR = jnp.asarray(np.concatenate([ids_R[None], ids_R + np.eye(6, dtype=int)]), jnp.int32)  # the second on, one is another
    real_XR = jnp.broadcast_to(jnp.arange(6) < 5, ids_XR.shape)
    vectors_XM = jax.jit(lambda m: m.text_tower(ids_XR, real_XR, NOTHING_RANDOM))(model)
    moved_R = np.abs(vectors_XM[1:] - vectors_XM[0]).max(axis=1)
    assert moved_R[:5].min() > 1e-4 and moved_R[5] == 0, moved_R


def test_a_text_is_pooled_where_it_ends():
    """At the first token that ends texts, or else at its last; in a causal tower nothing behind that is seen."""
    config, model = model_of("clip")
    assert isinstance(config.text.pooling, EndPooling)
    end = config.text.pooling.end_id
    ids_XR = jnp.asarray([[9, end, 7, 8], [9, end, 6, end], [9, 5, 0, 0], [9, 5, 4, 3]], jnp.int32)
    real_XR = jnp.asarray([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]], bool)
    x_XM = jax.jit(lambda m: m.text_tower(ids_XR, real_XR, NOTHING_RANDOM))(model)
    assert_allclose(x_XM[0], x_XM[1], atol=1e-6)
    assert_allclose(x_XM[2], x_XM[3], atol=1e-6)
    assert np.abs(x_XM[0] - x_XM[2]).max() > 1e-3


# --- losses ------------------------------------------------------------------------------------------------------


def pairs(n: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    first, second = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in rng.normal(size=(2, n, 5)))
    return first, second, np.arange(n) != 2


def test_the_softmax_is_of_all_pairs_that_count(float64):
    """The mean of both directions' cross-entropies, without the pair that does not count."""
    first, second, used = pairs()
    got = softmax_pairs(jnp.asarray(first), jnp.asarray(second), jnp.asarray(used), 3.0, jnp.asarray(10))
    scores = 3.0 * first[used] @ second[used].T
    want = sum(-np.mean(np.diag(s) - np.log(np.exp(s).sum(1))) for s in (scores, scores.T)) / 2
    assert_allclose(got.value, want, rtol=1e-12)
    hits = np.mean([np.argmax(s, 1) == np.arange(5) for s in (scores, scores.T)])
    assert_allclose(got.metrics["accuracy"].value, hits)


def test_the_sigmoid_is_of_all_pairs_that_count(float64):
    """Partners are to have large logits, all others small ones: a sum over 5 x 5 pairs, per picture."""
    first, second, used = pairs()
    scale, bias, total = map(jnp.asarray, (3.0, -1.0, 5))
    got = sigmoid_pairs(jnp.asarray(first), jnp.asarray(second), jnp.asarray(used), scale, bias, total, ours.WHERE)
    z = 3.0 * first[used] @ second[used].T - 1.0
    sign = 2 * np.eye(5) - 1
    assert_allclose(got.value, np.log1p(np.exp(-sign * z)).sum() / 5, rtol=1e-12)
    assert_allclose(got.metrics["accuracy"].value, np.mean(np.argmax(z, 1) == np.arange(5)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dim": 7}, "dim=7: without a projection of pictures it is that of theirs, 18"),
        ({"vision.head.classes": 3}, "vision.head.classes=3: a tower names no classes; nearest is 0"),
        ({"text.pooling": FilledPooling(pad_id=47)}, "pooling.pad_id=47: must be below vocab=47; nearest is 46"),
        ({"text.positions.first": 2}, "positions.first=2: a text begins with the table's first row; nearest is 0"),
        ({"text.norm.order": "post"}, "norm.order='post': there is no such text tower here; nearest is 'pre'"),
        ({"loss.scale": 0.0}, "scale=0.0: must be above 0; SigLIP's is 10"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        changed(HuggingFace(FIXTURES / "siglip").config, fields)


# --- folders -----------------------------------------------------------------------------------------------------


def copy(name: str, to: Path, **settings: Any) -> Path:
    """A fixture with other settings in its config.json; a name with two underscores is a tower's setting."""
    shutil.copytree(FIXTURES / name, to)
    config = json.loads((to / "config.json").read_text())
    for key, value in settings.items():
        tower, _, inner = key.partition("__")
        config[tower] = config[tower] | {inner: value} if inner else value
    (to / "config.json").write_text(json.dumps(config))
    return to


@pytest.mark.parametrize("name", ["clip", "siglip", "siglip_widths"])
def test_a_folder_is_written_as_it_was_read(name, tmp_path):
    """Config and every parameter come back, bit by bit, numbers that are no vectors too."""
    read = HuggingFace(FIXTURES / name)
    huggingface.write_folder(weights.Arrays(read.config, to_params(ours.model(read))), tmp_path / "f")
    again = HuggingFace(tmp_path / "f")
    assert again.config == read.config and again.theirs["model_type"] == read.theirs["model_type"]
    for parameter in read.shapes:
        assert_array_equal(again.read(parameter), read.read(parameter))


@pytest.mark.parametrize(
    ("name", "settings", "error"),
    [
        ("clip", dict(architectures=["CLIPTextModel"]), "no output like that of 'CLIPTextModel' here; did you mean 'CLIPModel'?"),
        ("clip", dict(text_config__hidden_size=19), "hidden_size=19 is no multiple of num_attention_heads=3"),
        ("clip", dict(text_config__max_position_embeddings=12), "position_embedding.weight is [13, 18], expected [12, 18]"),
        ("clip", dict(vision_config__hidden_act="gelu_fast"), "no activation 'gelu_fast' here; did you mean 'gelu'?"),
        ("clip", dict(projection_dim="ten"), 'projection_dim is "ten"; expected int'),
        ("clip", dict(text_config=[]), "text_config is []; expected dict"),
        ("siglip", dict(vision_config__vision_use_head=False), "vision_use_head=false is not supported, only true"),
        ("siglip", dict(text_config__projection_size=20), "projection_size=20: only vision_config.hidden_size=18"),
        ("siglip", dict(text_config__pad_token_id=90), "pooling.pad_id=90: must be below vocab=47"),
        ("siglip", dict(vision_config__patch_size=30), "height=21: patches of 30 pixels do not divide it"),
        ("siglip", dict(model_type="siglip2"), "no model of type 'siglip2' here; did you mean 'siglip'?"),
    ],
)
def test_a_folder_of_another_model_is_refused(name, settings, error, tmp_path):
    """In one line, with the setting, its value and what would do."""
    assert_refused(copy(name, tmp_path / "f", **settings), error, UserError)


def test_what_none_of_them_has_is_not_written():
    """A CLIP whose image tower has no norm before its layers is of no class."""
    config = HuggingFace(FIXTURES / "clip").config
    with pytest.raises(InterchangeError, match=r"no CLIP's image tower of Hugging Face is like this model: patches\.norm=False"):
        INTERCHANGE.write_config(changed(config, {"vision.patches.norm": False}))
    with pytest.raises(InterchangeError, match=r"ends its texts with token 2: text\.pooling\.end_id; nearest is 3"):
        INTERCHANGE.write_config(changed(config, {"text.pooling.end_id": 2}))


def test_old_folders_end_their_texts_with_the_highest_token():
    """Their `eos_token_id` is 2, whatever their vocabulary has."""
    old = INTERCHANGE.read_config({"model_type": "clip", "text_config": {"eos_token_id": 2}})
    assert old == registry.load("clip.b32").model
