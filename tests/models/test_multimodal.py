"""Models of pictures and sounds: what a row lacks does not matter, and towers start from their own weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from configs import registry
from models.families import family_of
from models.parts.decoding import follow
from models.parts.nested import changed
from models.protocol import Context
from models.sharding.params import describe, to_params, with_params
from tests.helpers.models import ALONE, model_of
from trainers.plan import abstract_model, make_plan
from trainers.weights import huggingface, init_from, source


@pytest.fixture(scope="module", params=["multimodal.quickstart", pytest.param("multimodal.pod", marks=pytest.mark.slow)])
def name(request) -> str:
    """A model with Whisper's encoder, and one with a Conformer."""
    return request.param


def model(name: str):
    return model_of(name)


def batch(rows: int = 3, seed: int = 0) -> dict[str, jax.Array]:
    """Rows of one text: of a picture, of a sound, and of both; what a row lacks is noise."""
    rng = np.random.default_rng(seed)
    segments = np.zeros((3, 1, 64), np.int32)
    segments[1, :, :40], segments[2] = 1, 1
    texts = np.array([5, 9, 16])
    used = np.arange(16) < texts[:, None]
    arrays = {
        "images": rng.normal(size=(3, 1, 16, 16, 3)),
        "images_segments": np.array([[1], [0], [1]]),
        "frames": rng.normal(size=(3, 1, 64, 16)),
        "frames_segments": segments,
        "targets": rng.integers(3, 64, (3, 16)) * used,
        "targets_segments": used.astype(np.int32),
        "targets_positions": np.arange(16) * used,
    }
    return {k: jnp.asarray(v[:rows], None if v.dtype == float else jnp.int32) for k, v in arrays.items()}


def packed(rows: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The rows of `batch` as one: each text in its place of 16 positions, each slot with its text's number, the empty one too."""
    number = jnp.arange(1, 4)
    segments = {
        "images_segments": rows["images_segments"] * number[:, None],
        "frames_segments": rows["frames_segments"] * number[:, None, None],
        "targets_segments": rows["targets_segments"] * number[:, None],
    }
    return {k: v.reshape(1, -1, *v.shape[2:]) for k, v in (rows | segments).items()}


@jax.jit
def logits(m, b) -> jax.Array:
    return m(b)


@jax.jit
def vectors_of(m, b) -> jax.Array:
    return m.vectors(b)


@pytest.mark.integration
def test_what_a_row_lacks_does_not_matter(float64, name):
    """Other pixels where there is no picture, other frames where there is no sound, other rows: the same logits to 1e-9."""
    m, b = model(name), batch()
    want, real = np.asarray(logits(m, b)), np.asarray(b["targets_segments"] > 0)
    noise = batch(seed=1)
    other = b | {"images": b["images"].at[1].set(noise["images"][1]), "frames": b["frames"].at[0].set(noise["frames"][0])}
    other["frames"] = other["frames"].at[1, :, 40:].set(noise["frames"][1, :, 40:])
    assert_allclose(logits(m, other)[real], want[real], atol=1e-9)
    assert_allclose(logits(m, {k: v[:2] for k, v in b.items()})[real[:2]], want[:2][real[:2]], atol=1e-9)
    changed = b | {"frames": b["frames"].at[1, :, :40].set(noise["frames"][1, :, :40])}
    assert np.abs(logits(m, changed)[1, :9] - want[1, :9]).max() > 1e-6


@pytest.mark.integration
def test_a_pack_is_its_texts(float64, name):
    """Texts in one row, each with its own picture and sound among the row's slots, have the losses, gradients and work that they
    have in rows of their own; what an empty slot has, and in which order slots come, does not matter."""
    m, b = model(name), batch()

    @jax.jit
    def objective(params, b):
        return jax.value_and_grad(lambda p: with_params(m, p).loss(b, Context.evaluation()).value)(params)

    want, gradients = objective(to_params(m), b)
    pack = packed(b)
    pack["images"] = pack["images"].at[0, 1].set(0.5)
    for name in ("images", "images_segments"):
        pack[name] = pack[name][:, ::-1]
    loss, others = objective(to_params(m), pack)
    assert_allclose(loss, want, atol=1e-9)
    jax.tree.map(lambda x, y: assert_allclose(x, y, atol=1e-9), others, gradients)
    assert m.units(pack) == m.units(b)
    mixed = pack | {"images_segments": jnp.array([[1, 0, 3]])}  # the first text and the third change their pictures
    assert abs(objective(to_params(m), mixed)[0] - want) > 1e-6


def test_a_picture_has_a_vector(float64, name):
    """It is the mean of what the image tower returns, whatever else the batch has; another picture has another vector."""
    m, b = model(name), batch()
    seen = {"images": b["images"], "images_segments": b["images_segments"]}
    vectors = vectors_of(m, seen)
    alone = vectors_of(m, {k: v[2:] for k, v in seen.items()})
    assert_allclose(alone, vectors[2:], atol=1e-9)
    assert vectors.shape == (3, m.c.towers.vision.model_dim) and np.abs(vectors[0] - vectors[2]).max() > 1e-3


def test_cached_and_uncached_decoding_agree(float64, name):
    """Following given texts with caches gives the log-probabilities that reading them at once gives, experts and all."""
    m, b = model(name), batch()
    given = b["targets"][:, None]
    cached = jax.jit(lambda m, b: follow(m, m.start(b, 1, 16), given))(m, b)[:, 0]
    whole = np.asarray(jax.nn.log_softmax(logits(m, b)))
    chosen = np.take_along_axis(whole, np.asarray(b["targets"])[..., None], 2)[..., 0]
    real = np.asarray(b["targets_segments"] > 0)
    assert_allclose(np.asarray(cached)[real], chosen[real], atol=1e-9)


def test_a_model_of_one_tower(float64):
    """Ears alone, eyes alone: the parameters of the other tower are not there."""
    c: Any = registry.load("multimodal.quickstart").model.tiny()
    for change, gone in (({"towers.audio": None}, "audio"), ({"towers.vision": None}, "vision")):
        one = changed(c, change)
        made = jax.eval_shape(lambda key, one=one: family_of(one).model(one, key, ALONE), jax.random.key(0))
        assert not [info.name for info in describe(made) if gone in info.name]
    with pytest.raises(ValueError, match="a model needs a tower"):
        changed(c, {"towers.audio": None, "towers.vision": None})
    with pytest.raises(ValueError, match=r"vision\.head\.classes=8"):
        changed(c, {"towers.vision.head.classes": 8})


def test_a_tower_starts_from_its_own_weights(tmp_path):
    """The audio tower takes the encoder of a Whisper and leaves its decoder; what has no weights starts fresh."""
    e = registry.tiny(registry.load("multimodal.quickstart"))
    model: Any = e.model
    whisper = model.towers.audio
    made = to_params(jax.jit(lambda: family_of(whisper).model(whisper, jax.random.key(3), ALONE))())
    folder = tmp_path / "whisper"
    huggingface.write_folder(source.Arrays(whisper, made), folder)
    e = e.with_finetune(init_from=f"audio_tower={folder}")
    said: list[str] = []
    state = init_from.new_state(make_plan(e, jax.devices()[:1]), None, said.append)
    ours, theirs = state.params, made
    for theirs_name in ("front.conv1.filter", "encoder.dense.ffn.wi", "encoder_norm.scale"):
        assert_allclose(ours[f"audio_tower.{theirs_name}"], theirs[theirs_name], rtol=1e-6)


def test_the_pod_has_its_parts():
    """ViT-22B, Conformer G, and a decoder with 512 experts in every second of 16 layers."""
    infos = describe(abstract_model(registry.load("multimodal.pod")))
    sizes: dict[str, int] = {}
    for info in infos:
        part = info.name.split(".")[0]
        sizes[part] = sizes.get(part, 0) + info.size
    assert round(sizes["vision_tower"] / 1e9, 1) == 21.8 and round(sizes["audio_tower"] / 1e9, 1) == 7.8
    assert round(sizes["decoder"] / 1e9) == 140
