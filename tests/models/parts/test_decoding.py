"""Sampling: what is drawn, and from what."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax

from models.parts import decoding
from models.parts.decoding import NEVER, Samples, beam_search, follow, sample, truncate
from tests.helpers.compiled import one_program

EOS = 3


class Chain:
    """A first-order chain over four tokens: the state is nothing, the logits depend on the last token."""

    logits = np.log(
        np.array([[0.1, 0.6, 0.2, 0.1], [0.1, 0.2, 0.6, 0.1], [0.05, 0.05, 0.1, 0.8], [0.7, 0.1, 0.1, 0.1]], np.float32)
    )

    def step(self, state, ids_BK, at):
        return jnp.asarray(self.logits)[jnp.where(at == 0, 0, ids_BK)], state

    def reorder(self, state, parent_BK):
        return state


CHAIN = Chain()


def draw(key: int = 0, **options: Any):
    options = {"samples": 1, "steps": 4, "temperature": 1.0, "eos": EOS, "pad": -1} | options
    return _drawn(jax.random.key(key), tuple(options.items()))


def _draw(key, options):
    return sample(CHAIN, None, jnp.array([True]), key, **dict(options))


_drawn = one_program(_draw, "options")


def search(rows: int = 1, prefix_BP: np.ndarray | None = None, **options: Any):
    options = {"vocab": 4, "alpha": 0.0, "eos": EOS, "pad": -1} | options
    return _searched(np.ones(rows, bool), prefix_BP, tuple(options.items()))


def _search(real_B, prefix_BP, options):
    return beam_search(CHAIN, None, real_B, prefix_BP=prefix_BP, **dict(options))[:2]


_searched = one_program(_search, "options")


def test_temperature_zero_is_greedy():
    """The likeliest token each time, padding after the end, and the sum of their log-probabilities."""
    tokens, logp, _ = draw(temperature=0.0)
    assert_array_equal(tokens[0, 0], [1, 2, 3, -1])
    assert_allclose(logp[0, 0], np.log(0.6 * 0.6 * 0.8), rtol=1e-5)


def test_one_beam_is_greedy():
    """Beam search with one hypothesis ends where greedy sampling does."""
    tokens, _ = search(beams=1, steps=4)
    assert_array_equal(tokens[0, 0], draw(temperature=0.0)[0][0, 0])


def test_a_prefix_is_produced_whatever_it_costs():
    """Each sentence begins with its own tokens, of probability 1; where it has none, or no more, the model chooses."""
    prefix_BP = np.array([[2, 0], [0, 0], [2, 2]])
    for beams in (1, 2):
        tokens, scores = search(3, prefix_BP, beams=beams, steps=4)
        assert_array_equal(tokens[:, 0], [[2, 3, -1, -1], [1, 2, 3, -1], [2, 2, 3, -1]])
        assert_allclose(scores[:, 0], np.log([0.8, 0.6 * 0.6 * 0.8, 0.8]), rtol=1e-5)


def test_draws_have_the_models_frequencies():
    """The shares of 4000 first tokens are the probabilities, within four standard errors; another seed draws others."""
    tokens = np.asarray(draw(samples=4000, steps=1)[0])[0, :, 0]
    shares = np.bincount(tokens, minlength=4) / 4000
    assert_allclose(shares, [0.1, 0.6, 0.2, 0.1], atol=4 * 0.5 / np.sqrt(4000))
    assert (tokens != np.asarray(draw(1, samples=4000, steps=1)[0])[0, :, 0]).any()


def test_low_temperature_sharpens():
    """At half the temperature probabilities are squared and normalised: 0.36 of 0.42 for the likeliest."""
    tokens = np.asarray(draw(samples=4000, steps=1, temperature=0.5)[0])[0, :, 0]
    assert_allclose((tokens == 1).mean(), 0.36 / 0.42, atol=0.03)


def test_truncation_keeps_the_likeliest():
    """Top-2 keeps two tokens; top-p keeps the fewest that reach p, always at least one; unlisted ids are never drawn."""
    logits = np.log(np.array([[[0.1, 0.5, 0.15, 0.25]]], np.float32))

    truncated = one_program(truncate, "top_k", "top_p")

    def kept(k: int, p: float) -> list[int]:
        return np.flatnonzero(truncated(logits, k, p)[0, 0] > NEVER / 2).tolist()

    assert kept(2, 1.0) == [1, 3]
    assert kept(0, 0.7) == [1, 3] and kept(0, 0.8) == [1, 2, 3] and kept(0, 0.4) == [1] and kept(0, 1.0) == [0, 1, 2, 3]
    assert kept(3, 0.5) == [1] and kept(0, 0.0) == [1]
    tokens = np.asarray(draw(samples=500, steps=3, usable=2)[0])
    assert tokens.max() == 1 and tokens.min() == 0


def test_ended_samples_stay_ended():
    """After its end a sample is padding, while others go on."""
    tokens = np.asarray(draw(samples=200, steps=6)[0])[0]
    for row in tokens:
        ends = np.flatnonzero(row == EOS)
        assert len(ends) <= 1 and (len(ends) == 0 or (row[ends[0] + 1 :] == -1).all())
    assert (tokens == EOS).any() and (tokens[:, -1] != -1).any()


def test_other_ends_end_a_sample():
    """Greedy, the chain goes 1, 2, 3; with 2 as a further end, it stops there, and the log-probability with it."""
    tokens, logp, _ = draw(temperature=0.0, ends=(2,))
    assert_array_equal(tokens[0, 0], [1, 2, -1, -1])
    assert_allclose(logp[0, 0], np.log(0.6 * 0.6), rtol=1e-5)


def test_tokens_are_drawn_one_by_one_as_in_a_loop():
    """A call for each token gives the tokens and log-probabilities of the loop, until all continuations have ended."""
    options = {"samples": 3, "steps": 5}
    tokens, logp, _ = draw(**options)
    drawn = Samples.empty(None, jnp.array([True]), 3, 5, -1)
    one_more = jax.jit(lambda drawn, key: decoding.draw(CHAIN, drawn, key, temperature=1.0, eos=EOS, pad=-1))
    while not np.all(drawn.done_BK) and drawn.at < 5:
        drawn = one_more(drawn, jax.random.key(0))
    assert_array_equal(drawn.tokens_BKT, tokens)
    assert_allclose(drawn.logp_BK, logp, rtol=1e-6)


class Counter:
    """A model whose state is what it has read; the likeliest token is the number of tokens so far, modulo 4."""

    def step(self, state, ids_BK, at):
        read_BKT, size_BK = state
        place = jnp.arange(read_BKT.shape[-1]) == jnp.asarray(at)[..., None]
        read_BKT = jnp.where(place, ids_BK[..., None], read_BKT)
        return jnp.log(0.1 + 0.6 * jax.nn.one_hot(jnp.sum(read_BKT, axis=-1) % 4, 4)), (read_BKT, size_BK)

    def reorder(self, state, parent_BK):
        return state


def test_given_tokens_are_followed_from_where_each_hypothesis_is():
    """Two hypotheses that have read 1 and 1, 2: the sums so far decide which next token is likely, .7 against .1."""
    read = jnp.array([[[0, 0, 0, 0, 0], [0, 1, 0, 0, 0]]])
    last, at = jnp.array([[1, 2]]), jnp.array([[1, 2]])
    given = jnp.array([[[1, 2], [3, 3]]])
    logp = one_program(lambda *given: follow(Counter(), *given))((read, at), given, last, at)
    # Sums before each given token: 1, then 2; 3, then 6 = 2 modulo 4.
    assert_allclose(logp[0], np.log([[0.7, 0.7], [0.7, 0.1]]), rtol=1e-5)


def test_several_tokens_end_a_hypothesis():
    """Enough beams find all sequences that stop at the first of two ends, in the order of their probabilities."""
    ends, likelihood = {2, EOS}, {}

    def grow(ids: tuple[int, ...], logp: float) -> None:
        if (ids and ids[-1] in ends) or len(ids) == 3:
            likelihood[ids] = logp
            return
        logp_V = log_softmax(np.asarray(Chain.logits)[ids[-1] if ids else 0])
        for token in range(4):
            grow((*ids, token), logp + float(logp_V[token]))

    grow((), 0.0)
    ended = sorted((ids for ids in likelihood if ids[-1] in ends), key=lambda ids: -likelihood[ids])
    tokens, scores = search(beams=16, steps=3, ends=(2,))
    assert [tuple(int(id_) for id_ in row if id_ >= 0) for row in tokens[0, :5]] == ended[:5]
    assert_allclose(scores[0, :5], [likelihood[ids] for ids in ended[:5]], rtol=1e-5)
