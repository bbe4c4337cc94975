"""The Conformer's losses against their definitions: CTC, the transducer, and pre-training."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax

from models.conformer import ctc, transducer
from models.conformer.config import ConformerConfig, Quantizer, Transducer, W2vBert, Wav2Vec
from models.conformer.contrastive import drawn_negatives, perplexity
from models.conformer.model import Conformer
from models.protocol import Context
from tests.helpers.models import ALONE
from tests.helpers.utterances import SMALL, WIDE, made, model, rows, utterance

# --- CTC -------------------------------------------------------------------------------------------------------------


def collapsed(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(i for n, i in enumerate(path) if i and (n == 0 or path[n - 1] != i))


def test_ctc_is_the_sum_over_alignments():
    """All 81 paths of 3 ids and 4 positions are added up; one that cannot be is nothing, and is counted."""
    logits = np.random.default_rng(0).normal(size=(3, 4, 3))
    logp = log_softmax(logits, axis=-1)
    texts = [(1, 2), (1, 1), (2, 2, 2)]  # the last needs five positions
    targets = np.array([[*t, *[0] * (3 - len(t))] for t in texts], np.int32)
    given = (targets > 0).astype(np.int32)
    of_batch = jax.jit(ctc.ctc_loss, static_argnums=4)
    loss = of_batch(logits, np.ones((3, 4), np.int32), targets, given, 1, {"tokens": np.sum(given, dtype=np.int32)})
    want = 0.0
    for row in (0, 1):
        paths = itertools.product(range(3), repeat=4)
        want -= np.logaddexp.reduce([sum(logp[row, i, k] for i, k in enumerate(p)) for p in paths if collapsed(p) == texts[row]])
    assert_allclose(loss.value, want / 7, rtol=1e-5)
    assert float(loss.metrics["impossible"].value) == pytest.approx(1 / 3)


def test_greedy_ctc_collapses():
    """Repetitions are one, but for a blank between; padding says nothing."""
    best = jnp.array([[1, 1, 0, 1, 2, 2, 0, 3]])
    real = jnp.arange(8)[None] < 7
    assert_array_equal(ctc.greedy(jax.nn.one_hot(best, 4), real)[0], [1, 1, 2, 0, 0, 0, 0, 0])


def test_beam_search_finds_the_likeliest_text():
    """With enough hypotheses the text that is likeliest over all alignments, which is not always that of the likeliest path."""
    logits, real, differs = np.random.default_rng(1).normal(size=(12, 4, 3)) * 1.5, np.ones((12, 4), bool), 0
    searches = jax.jit(lambda logits, real: (ctc.beam_search(logits, real, 12), ctc.greedy(logits, real)))
    for logp, *ids in zip(log_softmax(logits, axis=-1), *map(np.asarray, searches(logits, real)), strict=True):
        totals: dict[tuple[int, ...], float] = {}
        for p in itertools.product(range(3), repeat=4):
            text, likely = collapsed(p), sum(logp[i, k] for i, k in enumerate(p))
            totals[text] = np.logaddexp(totals.get(text, -math.inf), likely)
        best = max(totals, key=lambda t: totals[t])
        by_beams, greedily = (tuple(int(i) for i in row if i) for row in ids)
        assert by_beams == best
        differs += greedily != best
    assert differs


# --- the transducer ----------------------------------------------------------------------------------------------------


def test_a_transducer_adds_up_all_alignments(float64):
    """Every way of saying 2 tokens in 3 positions: after each position's tokens a blank leads to the next."""
    rng = np.random.default_rng(0)
    blank, token = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4))

    def total(row: int, length: int, spoken: int) -> float:
        # Where each token is said: positions that never fall.
        ways = itertools.combinations_with_replacement(range(length), spoken)
        likelihoods = []
        for way in ways:
            likely, said = 0.0, 0
            for position in range(length):
                while said < spoken and way[said] == position:
                    likely += token[row, position, said]
                    said += 1
                likely += blank[row, position, said]
            likelihoods.append(likely)
        return float(np.logaddexp.reduce(likelihoods))

    lengths, texts = (3, 2), (2, 3)
    got = jax.jit(transducer.likelihood)(blank, token, np.array(lengths), np.array(texts))
    assert_allclose(got, [total(0, 3, 2), total(1, 2, 3)], rtol=1e-9)


@pytest.mark.slow
def test_a_transducer_learns_to_say_what_it_hears():
    """After a few hundred steps on two short sounds the greedy search says their texts."""
    import optax

    c = ConformerConfig(**SMALL | made(objective=Transducer(vocab=6, predictor_dim=16, joint_dim=16), layers=1))
    m = jax.jit(lambda: Conformer(c, jax.random.key(0), ALONE))()
    a, b = utterance(1, 32, 3), utterance(2, 32, 3)
    batch = rows([(a[0], np.array([1, 2, 3]))], [(b[0], np.array([4, 4, 5]))], length=32, tokens=4)
    batch = batch | {"frames": batch["frames"].astype(jnp.float32)}
    tx = optax.adam(1e-2)

    @jax.jit
    def train(m):
        def step(carry, _):
            m, state = carry
            loss, grads = jax.value_and_grad(lambda m: m.loss(batch, Context.evaluation()).value)(m)
            updates, state = tx.update(grads, state)
            return (optax.apply_updates(m, updates), state), loss

        return jax.lax.scan(step, (m, tx.init(m)), None, length=150)

    (m, _), losses = train(m)
    assert losses[-1] < 0.1
    for beams in (1, 3):
        written = jax.jit(lambda m, beams=beams: m.write(batch, beams, 5))(m)
        assert_array_equal(written, [[1, 2, 3, 0, 0], [4, 4, 5, 0, 0]])


@pytest.mark.slow
def test_a_transducers_beams_find_the_likeliest_text(float64):
    """With enough hypotheses the text of up to 3 tokens that is likeliest over all alignments, which greedy search may miss."""
    differs = 0
    texts = [t for n in range(4) for t in itertools.product((1, 2), repeat=n)]
    ids = jnp.asarray([[*t, *[0] * (3 - len(t))] for t in texts])
    sizes = jnp.asarray([len(t) for t in texts])
    for seed in range(8):
        t = transducer.Transducer(Transducer(vocab=3, predictor_dim=8, joint_dim=8), 16, jax.random.key(seed), WIDE)
        t = jax.tree.map(lambda x: 2 * x.astype(jnp.float64), t)
        vectors, real = jax.random.normal(jax.random.key(seed), (1, 3, 16), jnp.float64), jnp.ones((1, 3), bool)
        # The likelihood of each text, from the parts that the loss has too.
        said, state = [], t.start(len(texts), jnp.float64)
        for token in jnp.pad(ids, ((0, 0), (1, 0))).T:
            out, state = t.predict(token, state)
            said.append(out)
        every = t.joint((vectors @ t.heard[...])[:, :, None], (jnp.stack(said, 1) @ t.said[...])[:, None])
        logp = jax.nn.log_softmax(every)
        token = jnp.take_along_axis(logp, jnp.pad(ids, ((0, 0), (0, 1)))[:, None, :, None], axis=3)[..., 0]
        likely = transducer.likelihood(logp[..., 0], token, jnp.full(len(texts), 3), sizes)
        best = ids[jnp.argmax(likely)]
        assert_array_equal(t.beam_search(vectors, real, 20, 3)[0], best)
        differs += bool(jnp.any(t.greedy(vectors, real, 3)[0] != best))
    assert differs


# --- pre-training ------------------------------------------------------------------------------------------------------


def test_negatives_are_hidden_positions_of_the_same_utterance():
    """Never the position itself, and all others alike often; an utterance with one hidden position is not told from anything."""
    segments = np.array([[1, 1, 1, 1, 0, 2, 2, 2, 3, 3]])
    hidden = np.array([[1, 0, 1, 1, 0, 1, 1, 0, 1, 0]], bool)
    chosen, mask = map(np.asarray, jax.jit(drawn_negatives, static_argnums=2)(hidden, segments, 3000))
    assert_array_equal(mask[0], [1, 0, 1, 1, 0, 1, 1, 0, 0, 0])
    for position, others in {0: {2, 3}, 2: {0, 3}, 3: {0, 2}, 5: {6}, 6: {5}}.items():
        drawn, counts = np.unique(chosen[0, position], return_counts=True)
        assert set(drawn.tolist()) == others and counts.min() > 1300 * (2 / len(others)) / 1.0


def test_perplexity_counts_the_entries_in_use():
    """Two of four entries used alike often are 2; padding counts nothing."""
    one = jax.nn.one_hot(jnp.array([[0, 1, 0, 1, 3]]), 4)[:, :, None]
    counted = jnp.array([[1, 1, 1, 1, 0]], bool)
    assert float(perplexity(one, counted)) == pytest.approx(2, rel=1e-4)


WAV2VEC = Wav2Vec(code_dim=8, negatives=5, quantizer=Quantizer(codebooks=2, codes=6))
W2V_BERT = W2vBert(code_dim=8, negatives=5, quantizer=Quantizer(codes=6), contrastive_layers=2)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [WAV2VEC, W2V_BERT])
def test_pre_training_does_not_depend_on_padding(float64, objective):
    """The loss of hidden positions depends neither on noise in padding nor on how long the row is."""
    m = model(objective=objective)
    assert m.coupled == ("head",)
    loss = jax.jit(jax.value_and_grad(lambda m, batch: m.loss(batch, Context.evaluation()).value))

    def hidden(batch, places):
        masked = np.zeros((len(batch["frames"]), batch["frames"].shape[1] // 4), np.int32)
        masked[:, places] = 1
        return {k: v for k, v in batch.items() if not k.startswith("targets")} | {"masked": jnp.asarray(masked)}

    a, b = utterance(1, 48, 1), utterance(2, 48, 1)
    short = loss(m, hidden(rows([a], [b], length=48), [2, 3, 4, 8, 9]))
    long = loss(m, hidden(rows([a], [b], length=48, seed=7), [2, 3, 4, 8, 9]))
    assert_allclose(short[0], long[0], rtol=1e-12)
    # Negatives are drawn for each position of a row, so that longer rows draw others; of two hidden positions each has one.
    pair = loss(m, hidden(rows([a], [b], length=48), [3, 9]))
    padded = loss(m, hidden(rows([a], [b], length=96), [3, 9, 15, 20]))
    assert_allclose(pair[0], padded[0], rtol=1e-12)


def structured(rng: np.random.Generator, rows: int, length: int) -> dict[str, jax.Array]:
    """Sounds of eight different tones, each for some frames: what is hidden can be guessed from what is beside it."""
    tones = np.eye(8)[rng.integers(0, 8, (rows, length // 16))].repeat(16, axis=1)
    frames = tones + 0.05 * rng.normal(size=tones.shape)
    masked = np.zeros((rows, length // 4), np.int32)
    for row in masked:
        for start in rng.choice(length // 4 - 3, 4, replace=False):
            row[start : start + 3] = 1
    return {
        "frames": jnp.asarray(frames, jnp.float32),
        "frames_segments": jnp.ones((rows, length), jnp.int32),
        "masked": jnp.asarray(masked),
    }


@pytest.mark.nightly
def test_the_codebook_collapses_without_the_contrastive_loss_and_not_with_it():
    """w2v-BERT (arXiv 2108.06209, section 4.4.1): masked prediction alone makes all positions one code, which is then easy to
    predict; the contrastive loss keeps them apart."""
    import optax

    rng = np.random.default_rng(0)
    batches = [structured(rng, 8, 128) for _ in range(64)]  # seen again and again, as sounds of a set are
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    # A rate of 1e-2 collapses slowly, and how far by a given step depends on the last bits of the products.
    tx = optax.adam(5e-2)
    used = {}
    for weight in (1.0, 0.0):
        quantizer = Quantizer(codes=16, diversity_weight=0.1 * weight, gumbel=(2.0, 0.99, 0.5))
        objective = W2vBert(contrastive_layers=1, quantizer=quantizer, code_dim=16, negatives=10, contrast_weight=weight)
        c = ConformerConfig(**SMALL | made(objective=objective, layers=1))

        @jax.jit
        def train(seed, c=c):
            def step(carry, number):
                m, state = carry
                batch = jax.tree.map(lambda x: x[number % 64], stacked)
                context = Context(jax.random.fold_in(jax.random.key(seed + 1), number), number, training=True)

                def value(m):
                    loss = m.loss(batch, context)
                    return loss.value, loss.metrics["code_perplexity"].value

                (_, codes), grads = jax.value_and_grad(value, has_aux=True)(m)
                updates, state = tx.update(grads, state)
                return (optax.apply_updates(m, updates), state), codes

            m: Any = Conformer(c, jax.random.key(seed), ALONE)
            return jnp.mean(jax.lax.scan(step, (m, tx.init(m)), jnp.arange(200))[1][-20:])

        used[weight] = float(np.mean([train(seed) for seed in range(4)]))
    assert used[1.0] > 2 * used[0.0], used  # 14.4 to 14.7 and 1.0 to 7.4 by twelve seeds
