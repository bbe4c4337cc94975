"""BERT's heads: what each computes, by hand where it can be."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from models.parts.heads import NEVER, best_span
from models.parts.heads_config import Classification, MaskedLm, SentenceEmbedding, Span, Tagging
from tests.helpers.contexts import EVALUATION, training
from tests.helpers.models import batch_of, compiled, model_of

SLOTS = jnp.array([[0, 7, 0]])  # the beginnings of two examples of 7 and 5 tokens; the third slot is unused


@jax.jit
def outputs_of(model, batch):
    return model(batch)


@jax.jit
def loss_of(model, batch, key=None):
    return model.loss(batch, EVALUATION if key is None else training(key))


def with_targets(targets, **more):
    return batch_of([7, 5]) | {"slots": SLOTS, "targets": jnp.asarray(targets)} | more


def test_unused_slots_do_not_count(float64):
    """The loss weighs slots with a target alone: whatever an unused slot points to, sums and weight stay."""
    model = model_of("bert.base")
    batch = with_targets([[5, 6, -1]])
    other = batch | {"slots": SLOTS.at[0, 2].set(9)}
    a, b = loss_of(model, batch), loss_of(model, other)
    assert_allclose(a.value, b.value)
    assert int(model.totals(batch)["slots"]) == 2
    logits = outputs_of(model, batch)
    want = -sum(jax.nn.log_softmax(logits[0, i])[t] for i, t in ((0, 5), (1, 6)))
    assert_allclose(a.value, want / 2, rtol=1e-12)


@pytest.mark.parametrize(
    "head", [Classification(labels=4), Classification(labels=4, pooling="mean"), Tagging(labels=4)]
)
def test_confusions_count_true_and_found_classes(head, float64):
    """Outside training the confusion matrix has one count per used slot, in the row of its true class."""
    model = model_of("bert.base", head=head)
    batch = with_targets([[2, 3, -1]])
    found = np.asarray(outputs_of(model, batch)).argmax(axis=-1)
    want = np.zeros((4, 4))
    want[2, found[0, 0]] += 1
    want[3, found[0, 1]] += 1
    assert_allclose(loss_of(model, batch).metrics["confusion"].sum, want)
    assert "confusion" not in loss_of(model, batch, jax.random.key(0)).metrics


def test_mean_pooling_is_the_mean_of_the_example(float64):
    """A sentence's vector is the normalised mean of its own tokens' vectors."""
    model = model_of("bert.base", head=SentenceEmbedding())
    batch = with_targets([[0, 0, -1]])
    x = np.asarray(compiled(model, batch))
    want = [x[0, :7].mean(axis=0), x[0, 7:].mean(axis=0)]
    got = outputs_of(model, batch)
    for i in (0, 1):
        assert_allclose(got[0, i], want[i] / np.linalg.norm(want[i]), rtol=1e-9)


def test_pairs_are_told_from_strangers(float64):
    """With one pair nothing can be confused: no loss. With two, the loss is that of the similarities' softmax, both ways."""
    model = model_of("bert.base", head=SentenceEmbedding(temperature=0.5))
    one = batch_of([7, 5]) | {"slots": jnp.array([[0, 7]]), "targets": jnp.array([[0, 0]])}
    assert float(loss_of(model, one).value) == pytest.approx(0.0)
    two = batch_of([7, 5], [4, 8]) | {"slots": jnp.array([[0, 7], [0, 4]]), "targets": jnp.zeros((2, 2), int)}
    unit = outputs_of(model, two)
    scores = unit[:, 0] @ unit[:, 1].T / 0.5
    want = -sum(jax.nn.log_softmax(s, axis=-1)[i, i] for s in (scores, scores.T) for i in (0, 1))
    assert_allclose(loss_of(model, two).value, want / 4, rtol=1e-9)


def test_answers_lie_in_their_example(float64):
    """Start and end logits are real inside the slot's example and NEVER outside; the best span is ordered and short."""
    model = model_of("bert.base", head=Span())
    batch = batch_of([7, 5]) | {"slots": jnp.array([[0, 7]]), "targets": jnp.array([[[1, 2], [8, 11]]])}
    logits = np.asarray(outputs_of(model, batch))
    assert (logits[0, 0, 7:] == NEVER).all() and (logits[0, 1, :7] == NEVER).all()
    start, end = best_span(jnp.asarray(logits))
    assert (start <= end).all() and start[0, 0] < 7 and end[0, 0] < 7 and start[0, 1] >= 7
    loss = loss_of(model, batch)
    want = -sum(
        jax.nn.log_softmax(logits[0, i, :, side])[at] for i, side, at in ((0, 0, 1), (0, 1, 2), (1, 0, 8), (1, 1, 11))
    )
    assert_allclose(loss.value, want / 2, rtol=1e-9)


def test_the_best_span_is_the_best_pair_in_order():
    """Start 4 and end 1 are the likeliest of each, but out of order: the best pair that is in order is taken."""
    logits = np.zeros((1, 1, 6, 2), np.float32)
    logits[0, 0, 4, 0], logits[0, 0, 1, 1], logits[0, 0, 5, 1] = 5, 5, 2
    start, end = best_span(jnp.asarray(logits))
    assert (int(start[0, 0]), int(end[0, 0])) == (4, 5)


def test_next_sentences_add_their_mean_loss(float64):
    """With next-sentence prediction the mean loss over the pairs is added to that of masked tokens, and its accuracy told."""
    model = model_of("bert.base", head=MaskedLm(next_sentence=True))
    pairs = {"pair_slots": jnp.array([[0, 7, 0]]), "pair_targets": jnp.array([[1, 0, -1]])}
    loss = loss_of(model, with_targets([[5, 6, -1]], **pairs))
    assert loss.metrics.keys() >= {"next_sentence/cross_entropy", "next_sentence/accuracy"}
    assert_allclose(loss.extra, loss.metrics["next_sentence/cross_entropy"].value)
    plain = dataclasses.replace(model.c, head=MaskedLm())
    assert plain != model.c and float(loss.extra) > 0
    assert float(loss.metrics["next_sentence/accuracy"].value) in (0.0, 0.5, 1.0)


def test_masked_logits_in_chunks_are_the_same_loss(float64):
    """Logits of three slots, one at a time: the same loss, to 1e-12."""
    batch = with_targets([[5, 6, -1]])
    whole, parts = (loss_of(model_of("bert.base", loss_chunks=n), batch) for n in (1, 3))
    assert_allclose(whole.value, parts.value, rtol=1e-12)
    assert_allclose(whole.metrics["accuracy"].value, parts.metrics["accuracy"].value)


def test_only_a_classification_names_classes_of_examples():
    """Classes of a whole example are those of a classification; tags are classes of words."""
    heads = {Classification(labels=4): 4, Tagging(labels=4): 0, Span(): 0, SentenceEmbedding(): 0, MaskedLm(): 0}
    for head, classes in heads.items():
        assert model_of("bert.base", head=head).classes == classes
