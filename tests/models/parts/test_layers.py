"""Layers that several families share: the loss over a vocabulary, and what is told right."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from models.gshard_m4.config import GShardM4Config
from models.parts.layers import cross_entropy, dropout, right
from models.parts.transformer_config import TransformerConfig

SIZES: dict[str, Any] = dict(vocab=8, layers=1, model_dim=8, hidden_dim=8, heads=1, head_dim=8, max_positions=8)


def by_definition(logits, labels, smoothing):
    """Cross-entropy against the smoothed distribution, and against the label, left to differentiation."""
    log_probs = jax.nn.log_softmax(logits)
    hit = labels[..., None] == jnp.arange(logits.shape[-1])
    others = smoothing / (logits.shape[-1] - 1)
    smooth = -jnp.sum(jnp.where(hit, 1 - smoothing, others) * log_probs, axis=-1)
    return smooth, -jnp.sum(jnp.where(hit, log_probs, 0), axis=-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_and_its_gradient(float64, smoothing):
    """Values, and the gradient of any mixture of both results, as differentiation of the definition has them."""
    k1, k2, k3 = jax.random.split(jax.random.key(0), 3)
    logits = 5 * jax.random.normal(k1, (3, 4, 11))
    labels = jax.random.randint(k2, (3, 4), 0, 11)
    grads = tuple(jax.random.normal(k3, (2, 3, 4)))
    want, pull = jax.vjp(lambda x: by_definition(x, labels, smoothing), logits)
    found, own_pull = jax.vjp(lambda x: cross_entropy(x, labels, smoothing), logits)
    for a, b in zip(found, want, strict=True):
        assert_allclose(a, b, rtol=1e-12)
    assert_allclose(own_pull(grads)[0], pull(grads)[0], rtol=0, atol=1e-12)


def test_cross_entropy_of_bfloat16():
    """Computed in float32; the gradient has the dtype of the logits. A label that is none has no mass."""
    logits = jnp.array([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0]], jnp.bfloat16)
    (_, plain), pull = jax.vjp(lambda x: cross_entropy(x, jnp.array([0, -1])), logits)
    assert plain.dtype == jnp.float32
    assert_allclose(plain[1], np.log(3), rtol=1e-6)
    [grad] = pull((jnp.zeros(2), jnp.ones(2)))
    assert grad.dtype == jnp.bfloat16
    assert_allclose(
        np.asarray(grad[0], np.float32), jax.nn.softmax(jnp.array([2.0, -1.0, 0.5])) - jnp.eye(3)[0], atol=0.01
    )


@pytest.mark.parametrize("rate", [1 / 256, 0.1, 255 / 256])
def test_dropout_keeps_the_mean(rate):
    """A share of `rate`, to a 256th, is zero, and the others are scaled up so that the mean stays 1."""
    TransformerConfig(**SIZES, dropout=rate)
    x = np.asarray(dropout(jnp.ones(200_000), rate, jax.random.key(0)))
    assert_allclose((x == 0).mean(), rate, atol=0.003)
    assert_allclose(x.mean(), 1, atol=0.1)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (0.999, "dropout=0.999: is rounded to .* nearest that can be had: 255/256 = 0.99609375"),
        (0.001, "dropout=0.001: is rounded to .* nearest that can be had: 0 and 1/256"),
        (1.0, r"dropout=1.0: must be in \[0, 1\)"),
        (-0.1, r"dropout=-0.1: must be in \[0, 1\)"),
    ],
)
def test_a_rate_that_would_drop_all_or_nothing_is_refused(rate, message):
    """Dropout draws 8 bits an element: rates nearer to 0 or 1 than half a 256th would divide by zero or do nothing."""
    for make in (lambda: TransformerConfig(**SIZES, dropout=rate), lambda: GShardM4Config(dropout=rate)):
        with pytest.raises(ValueError, match=message):
            make()


def test_what_is_right_is_the_argmax():
    """Also among equals, of which the first counts."""
    logits = jax.random.randint(jax.random.key(0), (64, 5), 0, 3).astype(jnp.float32)  # many ties
    labels = jnp.arange(64) % 5
    expected = jnp.argmax(logits, axis=-1) == labels
    assert 0 < expected.sum() < 64
    np.testing.assert_array_equal(right(logits, labels), expected)
