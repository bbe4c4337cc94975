"""BERT's heads: what each computes, by hand where it can be."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_softmax

from configs import registry
from models.bert.huggingface import INTERCHANGE
from models.families import family_of
from models.interchange import tensors
from models.parts import heads
from models.parts.attention.config import Disentangled, LayerVariant
from models.parts.heads import NEVER, best_span
from models.parts.heads_config import Classification, Detection, MaskedLm, SentenceEmbedding, Span, Tagging
from models.parts.nested import changed
from models.sharding.params import describe, to_params, with_params
from tests.helpers.contexts import EVALUATION, training
from tests.helpers.models import ALONE, LENGTH, batch_of, compiled, model_of

SLOTS = np.array([[0, 7, 0]])  # the beginnings of two examples of 7 and 5 tokens; the third slot is unused


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
    other = batch | {"slots": np.array([[0, 7, 9]])}
    a, b = loss_of(model, batch), loss_of(model, other)
    assert_allclose(a.value, b.value)
    assert int(model.totals(batch)["slots"]) == 2
    logits = np.asarray(outputs_of(model, batch))
    want = -sum(log_softmax(logits[0, i])[t] for i, t in ((0, 5), (1, 6)))
    assert_allclose(a.value, want / 2, rtol=1e-12)


@pytest.mark.integration
@pytest.mark.parametrize("head", [Classification(labels=4), Classification(labels=4, pooling="mean"), Tagging(labels=4)])
def test_confusions_count_true_and_found_classes(head, float64):
    """Outside training the confusion matrix has one count per used slot, in the row of its true class."""
    model = model_of("bert.base", head=head)
    batch = with_targets([[2, 3, -1]])
    predictions = np.asarray(outputs_of(model, batch)).argmax(axis=-1)
    want = np.zeros((4, 4))
    want[2, predictions[0, 0]] += 1
    want[3, predictions[0, 1]] += 1
    assert_allclose(loss_of(model, batch).metrics["confusion"].sum, want)
    assert "confusion" not in loss_of(model, batch, jax.random.key(0)).metrics


def test_mean_pooling_is_the_mean_of_the_example(float64):
    """A sentence's vector is the normalised mean of its own tokens' vectors."""
    model = model_of("bert.base", head=SentenceEmbedding())
    batch = with_targets([[0, 0, -1]])
    x = np.asarray(compiled(model, batch))
    want = [x[0, :7].mean(axis=0), x[0, 7:].mean(axis=0)]
    got = np.asarray(outputs_of(model, batch))
    for i in (0, 1):
        assert_allclose(got[0, i], want[i] / np.linalg.norm(want[i]), rtol=1e-9)


def test_pairs_are_told_from_strangers(float64):
    """With one pair nothing can be confused: no loss. With two, the loss is that of the similarities' softmax, both ways."""
    model = model_of("bert.base", head=SentenceEmbedding(temperature=0.5))
    one = batch_of([7, 5]) | {"slots": jnp.array([[0, 7]]), "targets": jnp.array([[0, 0]])}
    assert float(loss_of(model, one).value) == pytest.approx(0.0)
    two = batch_of([7, 5], [4, 8]) | {"slots": jnp.array([[0, 7], [0, 4]]), "targets": jnp.zeros((2, 2), int)}
    unit = np.asarray(outputs_of(model, two))
    scores = unit[:, 0] @ unit[:, 1].T / 0.5
    want = -sum(log_softmax(s, axis=-1)[i, i] for s in (scores, scores.T) for i in (0, 1))
    assert_allclose(loss_of(model, two).value, want / 4, rtol=1e-9)


def test_answers_lie_in_their_example(float64):
    """Start and end logits are real inside the slot's example and NEVER outside; the best span is ordered and short."""
    model = model_of("bert.base", head=Span())
    batch = batch_of([7, 5]) | {"slots": jnp.array([[0, 7]]), "targets": jnp.array([[[1, 2], [8, 11]]])}
    logits = np.asarray(outputs_of(model, batch))
    assert (logits[0, 0, 7:] == NEVER).all() and (logits[0, 1, :7] == NEVER).all()
    start, end = map(np.asarray, jax.jit(best_span)(logits))
    assert (start <= end).all() and start[0, 0] < 7 and end[0, 0] < 7 and start[0, 1] >= 7
    loss = loss_of(model, batch)
    want = -sum(log_softmax(logits[0, i, :, side])[at] for i, side, at in ((0, 0, 1), (0, 1, 2), (1, 0, 8), (1, 1, 11)))
    assert_allclose(loss.value, want / 2, rtol=1e-9)


def test_the_best_span_is_the_best_pair_in_order():
    """Start 4 and end 1 are the likeliest of each, but out of order: the best pair that is in order is taken."""
    logits = np.zeros((1, 1, 6, 2), np.float32)
    logits[0, 0, 4, 0], logits[0, 0, 1, 1], logits[0, 0, 5, 1] = 5, 5, 2
    start, end = jax.jit(best_span)(logits)
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


BASE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
LARGE = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
ROBERTA = dict(model_type="roberta", max_position_embeddings=514, type_vocab_size=1)
XLM_R = ROBERTA | dict(model_type="xlm-roberta", vocab_size=250_002)
MODERN_LARGE = LARGE | dict(model_type="modernbert", num_hidden_layers=28, intermediate_size=2624)
ELECTRA, ALBERT = dict(model_type="electra"), dict(model_type="albert")
MPNET = dict(model_type="mpnet", max_position_embeddings=514)
DEBERTA = dict(
    model_type="deberta-v2",
    relative_attention=True,
    position_buckets=256,
    share_att_key=True,
    norm_rel_ebd="layer_norm",
    position_biased_input=False,
    pos_att_type="p2c|c2p",
)
SIZES = [
    (ROBERTA | BASE, "RobertaModel", 124_645_632),
    (ROBERTA | BASE, "RobertaForMaskedLM", 124_697_433),
    (ROBERTA | LARGE, "RobertaModel", 355_359_744),
    (XLM_R | BASE, "XLMRobertaModel", 278_043_648),
    (XLM_R | LARGE, "XLMRobertaModel", 559_890_432),
    (dict(model_type="distilbert"), "DistilBertModel", 66_362_880),
    (dict(model_type="distilbert"), "DistilBertForMaskedLM", 66_985_530),
    (dict(model_type="modernbert"), "ModernBertModel", 149_014_272),
    (dict(model_type="modernbert"), "ModernBertForMaskedLM", 149_655_232),
    (MODERN_LARGE, "ModernBertModel", 394_781_696),
    (MODERN_LARGE, "ModernBertForMaskedLM", 395_881_664),
    # As `transformers` 5.23 counts them by the settings of ELECTRA small, base and large, ALBERT base to xxlarge v2, MPNet base.
    (ELECTRA, "ElectraModel", 13_483_008),
    (ELECTRA, "ElectraForPreTraining", 13_549_057),
    (ELECTRA, "ElectraForMaskedLM", 13_546_682),
    (ELECTRA | BASE | dict(embedding_size=768), "ElectraForPreTraining", 109_483_009),
    (ELECTRA | dict(embedding_size=768), "ElectraForMaskedLM", 33_740_602),
    (ELECTRA | LARGE | dict(embedding_size=1024), "ElectraModel", 334_092_288),
    (ELECTRA | dict(embedding_size=1024, num_hidden_layers=24), "ElectraForMaskedLM", 51_295_290),
    (ALBERT | BASE, "AlbertModel", 11_683_584),
    (ALBERT | BASE, "AlbertForMaskedLM", 11_221_680),
    (ALBERT | LARGE, "AlbertModel", 17_683_968),
    (ALBERT | LARGE | dict(hidden_size=2048, intermediate_size=8192), "AlbertModel", 58_724_864),
    (ALBERT, "AlbertModel", 222_595_584),
    (ALBERT, "AlbertForMaskedLM", 206_368_944),
    (MPNET, "MPNetModel", 109_486_464),
    (MPNET, "MPNetForMaskedLM", 109_518_527),
    # The same of DeBERTa v3 xsmall, small, base and large, whose settings are from memory.
    (DEBERTA | BASE | dict(hidden_size=384, num_attention_heads=6, intermediate_size=1536), "DebertaV2Model", 70_682_112),
    (DEBERTA | BASE | dict(num_hidden_layers=6), "DebertaV2Model", 141_304_320),
    (DEBERTA | BASE, "DebertaV2Model", 183_831_552),
    (DEBERTA | BASE, "DebertaV2ForMaskedLM", 184_551_780),
    (DEBERTA | BASE, "DebertaV2ForSequenceClassification", 184_423_682),
    (DEBERTA | LARGE, "DebertaV2Model", 434_012_160),
]


@pytest.mark.parametrize(("settings", "name", "count"), SIZES, ids=[f"{name}-{n}" for _, name, n in SIZES])
def test_released_encoders_have_their_sizes(settings, name, count):
    """Parameters are as many as in the released model, a bare one's pooler among them, and our model has the others."""
    c = INTERCHANGE.read_config(settings | {"architectures": [name]})
    files = INTERCHANGE.readable_entries if name.endswith("Model") else INTERCHANGE.entries
    assert sum(map(math.prod, tensors.shapes(files(c)).values())) == count
    model = jax.eval_shape(lambda key: family_of(c).model(c, key, ALONE), jax.random.key(0))
    assert {info.name: info.shape for info in describe(model)} == tensors.shapes(INTERCHANGE.entries(c))


def test_the_first_token_has_the_row_after_paddings(float64):
    """The table has two rows more before the first token's, and one type is that of all tokens, whatever a batch says."""
    model, batch = model_of("bert.roberta_base"), batch_of([7, 5])
    parts = (model.embedding, model.position_embedding, model.type_embedding)
    words, table, types = (np.asarray(part.table[...]) for part in parts)
    assert (len(table), len(types)) == (66, 1)
    sums = words[batch["tokens"]] + table[batch["positions"] + 2] + types[0]
    embedded = jax.jit(lambda model: model.embed(batch, EVALUATION)[0])(model)
    assert_allclose(embedded, jax.jit(model.embedding_norm)(sums), rtol=1e-12)


@pytest.mark.integration
def test_layers_that_share_parameters_are_run_in_turn(float64):
    """Four layers of two sets of parameters are those of a stack in which each set stands twice, and their gradients its sums."""
    batch, slots = batch_of([7, 5]), with_targets([[5, 6, -1]])
    shared = model_of("bert.base", layers=4, remat="full", **{"embedding.distinct": 2})
    whole = model_of("bert.base", layers=4)
    assert shared.encoder.attention.q.shape[0] == 2 and whole.encoder.attention.q.shape[0] == 4
    twice = jax.tree.map(lambda x: np.repeat(x, 2, axis=0), jax.device_get(to_params(shared.encoder)))
    model = with_params(whole, to_params(shared) | {f"encoder.{name}": x for name, x in twice.items()})
    assert_allclose(compiled(shared, batch), compiled(model, batch), rtol=1e-9)
    gradients = jax.jit(jax.grad(lambda m: m.loss(slots, EVALUATION).value))
    ours, theirs = (jax.device_get(to_params(gradients(m))) for m in (shared, model))
    for name, grad in ours.items():
        whole_grad = theirs[name]
        if name.startswith("encoder."):
            whole_grad = whole_grad.reshape(2, 2, *whole_grad.shape[1:]).sum(1)
        assert_allclose(grad, whole_grad, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"embedding.distinct": 5}, "embedding.distinct=5: must divide layers=4; nearest is 4"),
        ({"embedding.distinct": -1}, "distinct=-1: must be 0 or more"),
        (
            {"attention.pattern": (LayerVariant(window=3), LayerVariant()), "embedding.distinct": 2},
            "layers that differ share no parameters",
        ),
        ({"embedding.size": 8, "head": MaskedLm(transform=False)}, "head.transform=False: logits are of 8 dimensions"),
        ({"embedding.size": -8}, "size=-8: must be 0 or more"),
        ({"positions": Disentangled(buckets=8), "positions.buckets": 1}, "buckets=1: must be 2 or more"),
        ({"positions": Disentangled(buckets=8), "positions.max_distance": 5}, "max_distance=5: must be 6 or more"),
    ],
)
def test_what_cannot_be_shared_is_refused(changes, part):
    with pytest.raises(ValueError, match="") as caught:
        changed(registry.tiny(registry.load("bert.base")).model, changes)
    assert part in str(caught.value) and len(str(caught.value).splitlines()) == 1


def head_of(head):
    """A head of an encoder with layer norms, parameters of which all matter, and vectors of 12 positions to read."""
    config: Any = registry.tiny(registry.load("bert.base")).model
    c = dataclasses.replace(config, head=head)

    @jax.jit
    def drawn():
        made, keys = heads.make(c, head, jax.random.key(0), ALONE), iter(jax.random.split(jax.random.key(1), 20))
        made = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape), made)
        return made, jax.random.normal(jax.random.key(2), (1, LENGTH, c.model_dim))

    return drawn()


def head_outputs(head, x, batch) -> np.ndarray:
    return np.asarray(jax.jit(lambda head: head.outputs(x, batch, None))(head))


def test_a_detector_has_one_logit_a_token(float64):
    """A logit is act(x W + b) w + c, its loss the binary cross-entropy of the slots with a target; 3 is a token that isn't the
    text's, too."""
    head, x = head_of(Detection())
    batch = with_targets([[1, 0, -1]])
    hidden = jax.nn.gelu(x[0, SLOTS[0]] @ head.transform[...] + head.transform_bias[...], approximate=False)
    want = np.asarray(hidden @ head.weight[...] + head.bias[...])[:, 0]
    assert_allclose(head_outputs(head, x, batch)[0], want, rtol=1e-9)
    loss = jax.jit(lambda head, batch: head.loss(x, batch, None, EVALUATION, head.totals(batch)).value)
    value = loss(head, batch)
    assert_allclose(value, np.log1p(np.exp([-want[0], want[1]])).sum() / 2, rtol=1e-9)
    assert_allclose(loss(head, with_targets([[3, 0, -1]])), value)


@pytest.mark.parametrize(
    ("name", "act"), [("relu", jax.nn.relu), ("tanh", jnp.tanh), ("gelu", lambda x: jax.nn.gelu(x, approximate=False))]
)
def test_a_pooler_has_its_own_activation(name, act, float64):
    """DistilBERT's is max(0, x W + b), BERT's tanh(x W + b), ELECTRA's gelu(x W + b), of an example's first vector."""
    head, x = head_of(Classification(labels=4, pooler=name))
    pooled = act(x[0, SLOTS[0]] @ head.pooler[...] + head.pooler_bias[...])
    got = head_outputs(head, x, with_targets([[2, 3, -1]]))[0]
    assert_allclose(got, pooled @ head.weight[...] + head.bias[...], rtol=1e-9)


@pytest.mark.parametrize("settings", [Classification(labels=4, pooling="mean"), Tagging(labels=4), Span()])
def test_a_transform_stands_before_the_classes(settings, float64):
    """With it outputs are made of norm(act(x W + b)) in the vectors' place; there is no pooler."""
    batch = with_targets([[2, 3, -1]])
    head, x = head_of(dataclasses.replace(settings, transform=True))
    assert not hasattr(head, "pooler")
    vectors = x if isinstance(settings, Span) else jax.jit(lambda head: head.vectors(x, batch))(head)
    y = jax.nn.gelu(vectors @ head.transform[...] + head.transform_bias[...], approximate=False)
    y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-12)
    want = (y * head.norm.scale[...] + head.norm.bias[...]) @ head.weight[...] + head.bias[...]
    got = head_outputs(head, x, batch)
    got, want = (got[0, 0, :7], want[0, :7]) if isinstance(settings, Span) else (got, want)
    assert_allclose(got, want, rtol=1e-9)


def test_only_a_classification_names_classes_of_examples():
    """Classes of a whole example are those of a classification; tags are classes of words."""
    numbers = {Classification(labels=4): 4, Tagging(labels=4): 0, Span(): 0, SentenceEmbedding(): 0, MaskedLm(): 0}
    for head, classes in numbers.items():
        assert model_of("bert.base", head=head).classes == classes
