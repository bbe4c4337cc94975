"""The loss over a vocabulary and the accuracy of predictions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from models.execution import Execution
from models.parts.losses import cross_entropy, is_top_1, token_loss, token_loss_in_chunks
from tests.helpers.compiled import one_program
from tests.helpers.models import ALONE


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
    rng = np.random.default_rng(0)
    logits, labels = 5 * rng.normal(size=(3, 4, 11)), rng.integers(0, 11, (3, 4))
    pulled = tuple(rng.normal(size=(2, 3, 4)))

    def with_gradient(function):
        values, pull = jax.vjp(lambda x: function(x, labels, smoothing), logits)
        return values, pull(pulled)[0]

    (want, gradient), (loss, own_gradient) = map(one_program(with_gradient, "function"), (by_definition, cross_entropy))
    for a, b in zip(loss, want, strict=True):
        assert_allclose(a, b, rtol=1e-12)
    assert_allclose(own_gradient, gradient, rtol=0, atol=1e-12)


def test_cross_entropy_of_bfloat16():
    """Computed in float32; the gradient has the dtype of the logits. A label that is none has no mass."""
    logits = jnp.array([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0]], jnp.bfloat16)
    (_, plain), pull = jax.vjp(lambda x: cross_entropy(x, jnp.array([0, -1])), logits)
    assert plain.dtype == jnp.float32
    assert_allclose(plain[1], np.log(3), rtol=1e-6)
    [grad] = pull((jnp.zeros(2), jnp.ones(2)))
    assert grad.dtype == jnp.bfloat16
    assert_allclose(np.asarray(grad[0], np.float32), jax.nn.softmax(jnp.array([2.0, -1.0, 0.5])) - jnp.eye(3)[0], atol=0.01)


def test_the_top_class_is_the_argmax():
    """A label is the top class exactly where argmax finds it, among equals too, of which the first counts."""
    logits = np.random.default_rng(0).integers(0, 3, (64, 5)).astype(np.float32)  # many ties
    labels = np.arange(64) % 5
    expected = np.argmax(logits, axis=-1) == labels
    assert 0 < expected.sum() < 64
    np.testing.assert_array_equal(one_program(is_top_1)(logits, labels), expected)


def test_token_losses_of_parts_add_up():
    """Positions that do not count are left out, and the losses of a batch's parts sum to the batch's mean."""
    logits = np.log(np.array([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], [[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]], np.float32))
    targets, used = np.array([[0, 0], [0, 2]]), np.array([[True, True], [True, False]])  # -log p: log 2, log 4, log 4
    loss_of = one_program(token_loss)
    whole = loss_of(logits, targets, used, np.sum(used))
    assert_allclose(whole.value, 5 / 3 * np.log(2), rtol=1e-6)
    assert_allclose(whole.metrics["accuracy"].value, 1 / 3, rtol=1e-6)
    first, second = (loss_of(logits[i : i + 1], targets[i : i + 1], used[i : i + 1], np.sum(used)) for i in (0, 1))
    assert_allclose(first.value, np.log(2), rtol=1e-6)  # 3 log 2 over the batch's 3 tokens, not over its own 2
    assert_allclose((first + second).value, whole.value, rtol=1e-6)
    assert_allclose((first + second).metrics["accuracy"].value, 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_targets_have_their_share_of_the_mass(float64, smoothing):
    """The loss is the cross-entropy with the teacher's mass and, for the rest, with the label; so is its gradient, in chunks too.
    Logged is what the label says."""
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.normal(size=(2, 6, 5))), rng.normal(size=(5, 11))
    labels = jnp.asarray(rng.integers(0, 11, (2, 6)))
    soft = jnp.asarray(0.25 * softmax(2 * rng.normal(size=(2, 6, 11)), axis=-1))
    used = jnp.asarray(np.arange(12).reshape(2, 6) % 5 > 0)

    def defined(w):
        logits = x @ w
        smooth, plain = by_definition(logits, labels, smoothing)
        loss = 0.75 * smooth - jnp.sum(soft * jax.nn.log_softmax(logits), axis=-1)
        return jnp.mean(loss, where=used), jnp.mean(plain, where=used)

    def ours(w, chunks):
        scope = dataclasses.replace(ALONE, execution=Execution(loss_chunks=chunks))
        made = token_loss_in_chunks(lambda x: x @ w, x, labels, used, jnp.sum(used), smoothing, scope, soft_BLV=soft)
        return made.value, made.metrics["cross_entropy"].value

    (want, plain), want_grad = one_program(jax.value_and_grad(defined, has_aux=True))(w)
    for chunks in (1, 3):
        (loss, logged), grad = one_program(jax.value_and_grad(ours, has_aux=True), "chunks")(w, chunks)
        assert_allclose((loss, logged), (want, plain), rtol=1e-12)
        assert_allclose(grad, want_grad, rtol=0, atol=1e-12)
