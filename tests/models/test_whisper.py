"""Whisper: released sizes to the parameter, and that padding, packing and the batch never change a result."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from models.parts.convolution_1d import Conv1d, masked, places
from models.parts.decoding import beam_search, follow
from models.parts.nested import changed
from models.sharding.params import describe
from tests.helpers.models import ALONE, model_of
from trainers.plan import abstract_model

SIZES = {
    "tiny": 37_760_640,
    "tiny_en": 37_760_256,
    "base": 72_593_920,
    "small": 241_734_912,
    "medium": 763_857_920,
    "large_v2": 1_543_304_960,
    "large_v3": 1_543_490_560,
    "turbo": 808_878_080,
}


@pytest.mark.parametrize("name", SIZES)
def test_released_sizes_are_exact(name):
    """Every released size is built, abstractly, and counted, the encoder's sinusoids among its parameters."""
    assert sum(i.size for i in describe(abstract_model(registry.load(f"whisper.{name}")))) == SIZES[name]


def test_a_convolution_in_time_is_the_definition(float64):
    """Output i is the sum over taps k of filter[k] times frame 2 i + k - 1, by stride 2; beyond the ends there is nothing."""
    conv = Conv1d(3, 4, jax.random.key(0), ALONE, stride=2)
    x = np.random.default_rng(0).normal(size=(2, 7, 3))
    padded, filter_ = np.pad(x, ((0, 0), (1, 2), (0, 0))), np.asarray(conv.filter[...], np.float64)
    want = [sum(padded[:, 2 * i + k] @ filter_[k] for k in range(3)) for i in range(4)]
    assert_allclose(conv(jnp.asarray(x)), np.stack(want, 1), rtol=1e-6)


def test_places_count_anew_in_every_segment():
    """Two utterances with a gap of padding between them."""
    segments = jnp.array([[1, 1, 1, 0, 0, 2, 2, 0]])
    assert_array_equal(places(segments), [[0, 1, 2, 0, 1, 0, 1, 0]])
    assert_array_equal(masked(jnp.ones((1, 8, 1)), segments)[0, :, 0], [1, 1, 1, 0, 0, 1, 1, 0])


@functools.cache
def model(name: str = "whisper.turbo"):
    return model_of(name, **{"positions.rows": 32}, source_positions=64)


def utterance(seed: int, frames: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(frames, 16)), rng.integers(3, 64, tokens)


def rows(*packed: list, length: int = 64, tokens: int = 16, noise: bool = True) -> dict[str, jax.Array]:
    """Rows of utterances at multiples of 8 with a gap; what is padding is noise, which must not matter."""
    rng = np.random.default_rng(9)
    frames = rng.normal(size=(len(packed), length, 16)) * (100 if noise else 0)
    batch = {"frames_segments": np.zeros((len(packed), length), np.int32)}
    batch |= {name: np.zeros((len(packed), tokens), np.int32) for name in ("targets", "targets_segments", "targets_positions")}
    for row, utterances in enumerate(packed):
        at = to = 0
        for number, (sound, ids) in enumerate(utterances, 1):
            frames[row, at : at + len(sound)] = sound
            batch["frames_segments"][row, at : at + len(sound)] = number
            place = slice(to, to + len(ids))
            batch["targets"][row, place], batch["targets_segments"][row, place] = ids, number
            batch["targets_positions"][row, place] = np.arange(len(ids))
            at, to = at + (-(-len(sound) // 8) + 1) * 8, to + len(ids)
    return {k: jnp.asarray(v) for k, v in ({"frames": frames} | batch).items()}


@jax.jit
def all_logits(m, batch: dict[str, jax.Array]) -> jax.Array:
    return m(batch)


def logits(batch: dict[str, jax.Array]) -> list[list[np.ndarray]]:
    """Logits of each row's utterances."""
    outputs = np.asarray(all_logits(model(), batch))
    segments = np.asarray(batch["targets_segments"])
    return [[x[s == n] for n in range(1, s.max() + 1)] for x, s in zip(outputs, segments, strict=True)]


@pytest.mark.integration
def test_padding_packing_and_the_batch_change_nothing(float64):
    """An utterance has the same logits to 1e-9 alone, in a longer row, with other noise in its padding, beside others in its row
    and beside other rows."""
    a, b, c = utterance(1, 21, 5), utterance(2, 10, 3), utterance(3, 16, 7)
    ((alone,),) = logits(rows([a], length=24, tokens=5))
    for batch in (rows([a]), rows([a], noise=False), rows([a], length=128), rows([a, b]), rows([a], [c, b])):
        assert_allclose(logits(batch)[0][0], alone, atol=1e-9)
    (_, second), (third,) = logits(rows([a, b], [c]))
    assert_allclose(second, logits(rows([b]))[0][0], atol=1e-9)
    assert_allclose(third, logits(rows([c]))[0][0], atol=1e-9)


@pytest.mark.integration
def test_the_loss_of_padding_is_nothing(float64):
    """Frames and tokens that are no utterance's add nothing to the loss or to the gradients."""
    from models.protocol import Context

    def value(m, batch):
        return m.loss(batch, Context.evaluation()).value

    a, b = utterance(1, 21, 5), utterance(2, 10, 3)
    loss = jax.jit(jax.value_and_grad(value))
    short, long = (loss(model(), rows([a], [b], length=length, tokens=tokens)) for length, tokens in ((24, 5), (64, 16)))
    assert_allclose(short[0], long[0], rtol=1e-12)
    jax.tree.map(lambda x, y: assert_allclose(x, y, atol=1e-10), short[1], long[1])


def test_cached_and_uncached_decoding_agree(float64):
    """Following given tokens with caches gives the log-probabilities that reading them at once gives."""
    a, b = utterance(1, 21, 6), utterance(2, 64, 6)
    batch = rows([a], [b], tokens=6)
    m = model()
    tokens = batch["targets"][:, None]
    cached = jax.jit(lambda m, b: follow(m, m.start(b, 1, 6), tokens))(m, batch)[:, 0]
    whole = jax.nn.log_softmax(jax.jit(lambda m, b: m(b))(m, batch))
    assert_allclose(cached, np.take_along_axis(np.asarray(whole), np.asarray(batch["targets"])[..., None], 2)[..., 0], atol=1e-9)


@pytest.mark.slow
def test_a_transcript_does_not_depend_on_the_batch(float64):
    """Greedy and beam search write the same for a row alone and beside others."""
    a, b = utterance(1, 21, 6), utterance(2, 64, 6)

    @functools.partial(jax.jit, static_argnums=2)
    def search(m, batch, beams):
        state, real = m.start(batch, beams, 9), jnp.ones(len(batch["frames"]), bool)
        return beam_search(m, state, real, beams=beams, steps=9, vocab=64, alpha=0.0, eos=2, pad=-1)[0][:, 0]

    for beams in (1, 3):
        both, one = search(model(), rows([a], [b]), beams), search(model(), rows([a]), beams)
        assert_array_equal(both[:1], one)


def test_a_decoder_may_have_fewer_layers_than_the_encoder():
    """large-v3-turbo has 32 and 4."""
    infos = {i.name: i.shape for i in describe(abstract_model(registry.load("whisper.turbo")))}
    assert infos["encoder.dense.ffn.wi"][0] == 32 and infos["decoder.dense.ffn.wi"][0] == 4
    assert not any("k_bias" in name for name in infos)
    with pytest.raises(ValueError, match="nearest is 18"):
        changed(registry.load("whisper.turbo").model, {"decoder.layers": 36})
