"""The Conformer: sizes, that padding never changes a result, and its losses against their definitions."""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax

from configs import registry
from models.conformer import ctc, transducer
from models.conformer.block import depthwise
from models.conformer.config import (
    BatchNorm,
    ConformerConfig,
    ConformerLayer,
    ConvolutionalPositions,
    Ctc,
    GroupNorm,
    Mel,
    Quantizer,
    Transducer,
    TransformerLayer,
    W2vBert,
    Wav2Vec,
    Waveform,
)
from models.conformer.contrastive import drawn_negatives, perplexity
from models.conformer.huggingface import INTERCHANGE
from models.conformer.model import Conformer
from models.execution import Execution
from models.protocol import Context
from models.sharding.params import describe
from tests.helpers.models import ALONE
from trainers.checkpoints import checkpoint
from trainers.plan import abstract_model, make_plan
from trainers.state import by_name

WIDE = dataclasses.replace(ALONE, execution=Execution(dtype="float64"))
# Blocks of 23 d^2 and the front: SYSTEMS' 579.6 M, 1.0144 B and 7.818 B, to a quarter of a percent.
SIZES = {
    "large": 113_187_296,
    "xl": 580_767_072,
    "xxl": 1_015_448_928,
    "g": 7_820_971_360,
    "w2v_bert_xl": 585_487_712,
    "w2v_bert_xxl": 1_020_169_568,
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    """Every published size is built, abstractly, and counted: 23 d^2 a block, 24 d^2 with relative positions, and little else."""
    e = registry.load(f"conformer.{name}")
    infos = {i.name: i for i in describe(abstract_model(e))}
    assert sum(i.size for i in infos.values()) == SIZES[name]
    c: Any = e.model
    stacks = [i for n, i in infos.items() if n.startswith(("encoder.", "contrastive.")) and not n.endswith("conv.filter")]
    matrices = sum(i.size for i in stacks if i.size >= c.model_dim**2)
    each = 24 if c.layer.positions == "relative" else 23
    assert matrices == (c.layers + c.contrastive_layers) * each * c.model_dim**2


def test_released_sizes():
    """Wav2Vec2 base and Wav2Vec2-Conformer large as `transformers` counts them, less what our model does not have; statistics of
    batch norms lie among the parameters here, and not there."""
    wave = dict(architectures=["Wav2Vec2Model"], model_type="wav2vec2")
    large = dict(
        architectures=["Wav2Vec2ConformerModel"],
        model_type="wav2vec2-conformer",
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        hidden_act="swish",
        feat_extract_norm="layer",
        conv_bias=True,
    )
    unused = 1024 * 64 * 128 + 128 + 1024 + 1024  # the convolution of positions that its folder has, and that vector
    statistics = 24 * 2 * 1024
    for theirs, count, less in (
        (wave, 94_371_712, 768),  # the vector that hides positions in training
        (large, 618_559_104, unused - statistics),
        (large | dict(position_embeddings_type="rotary"), 593_344_128, unused - statistics),
    ):
        c = INTERCHANGE.read_config(theirs)
        infos = describe(jax.eval_shape(lambda key, c=c: Conformer(c, key, ALONE), jax.random.key(0)))
        assert sum(i.size for i in infos) == count - less


def made(**fields: Any) -> dict[str, Any]:
    return fields


SMALL = made(layers=2, model_dim=16, hidden_dim=32, heads=4, front=Mel(bands=8, channels=4), dropout=0.0)


@functools.cache
def model(**fields) -> Conformer:
    c = ConformerConfig(**{"objective": Ctc(vocab=12), "utterances": 3} | SMALL | fields)
    made = jax.device_get(jax.jit(lambda: Conformer(c, jax.random.key(0), WIDE))())
    leaves, tree = jax.tree.flatten(made)
    rng = np.random.default_rng(0)
    return jax.tree.unflatten(tree, [jnp.asarray(x + 0.1 * rng.normal(size=x.shape), jnp.float64) for x in leaves])


def utterance(seed: int, frames: int, tokens: int, width: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(frames, width)), rng.integers(1, 12, tokens)


def rows(*packed: list, length: int, tokens: int = 12, align: int = 8, seed: int = 5) -> dict[str, jax.Array]:
    """Rows of utterances at multiples of `align` with a gap behind each; padding is noise, which must not matter."""
    width = packed[0][0][0].shape[1]
    frames = 100 * np.random.default_rng(seed).normal(size=(len(packed), length, width))
    batch = {"frames_segments": np.zeros((len(packed), length), np.int32)}
    batch |= {name: np.zeros((len(packed), tokens), np.int32) for name in ("targets", "targets_segments")}
    for row, utterances in enumerate(packed):
        at = to = 0
        for number, (sound, ids) in enumerate(utterances, 1):
            frames[row, at : at + len(sound)] = sound
            batch["frames_segments"][row, at : at + len(sound)] = number
            batch["targets"][row, to : to + len(ids)] = ids
            batch["targets_segments"][row, to : to + len(ids)] = number
            at, to = at + (-(-len(sound) // align) + 1) * align, to + len(ids)
    return {k: jnp.asarray(v) for k, v in ({"frames": frames} | batch).items()}


@jax.jit
def features(m: Conformer, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    return m.features(batch)


def heard(m: Conformer, batch: dict[str, jax.Array]) -> list[list[np.ndarray]]:
    """The last block's output of each row's utterances."""
    x, segments = map(np.asarray, features(m, batch))
    return [[x[r][segments[r] == n] for n in range(1, segments[r].max() + 1)] for r in range(len(x))]


VARIANTS = [
    {"layer": ConformerLayer(norm=BatchNorm(), bias=True, positions="relative")},
    {"layer": TransformerLayer(order="post"), "positions": ConvolutionalPositions(taps=5, groups=4)},
]
MORE = [
    {},
    {"layer": ConformerLayer(norm=GroupNorm(groups=8), positions="rotary")},
    {"layer": ConformerLayer(positions="relative")},
    {"layer": ConformerLayer(norm=BatchNorm())},
    {"layer": ConformerLayer(kernel=32)},
    {"layer": ConformerLayer(positions="rotary_input"), "final_norm": True},
    {"layer": TransformerLayer(order="pre"), "positions": ConvolutionalPositions(taps=6, groups=2), "final_norm": True},
]


@pytest.mark.parametrize("fields", [*VARIANTS, *(pytest.param(fields, marks=pytest.mark.slow) for fields in MORE)], ids=str)
def test_padding_packing_and_the_batch_change_nothing(float64, fields):
    """An utterance is heard the same to 1e-9 alone, in a longer row, with other noise in its padding, beside others in its row,
    however far the convolution reaches, and beside other rows."""
    m, a, b, c = model(**fields), utterance(1, 42, 5), utterance(2, 17, 3), utterance(3, 30, 6)
    ((alone,),) = heard(m, rows([a], length=48))
    ((second,),) = heard(m, rows([b], length=48))
    for batch in (rows([a], length=96), rows([a], length=96, seed=6), rows([a, b], length=96), rows([a], [c, b], length=96)):
        assert_allclose(heard(m, batch)[0][0], alone, atol=1e-9)
    assert_allclose(heard(m, rows([a, b], length=96))[0][1], second, atol=1e-9)


@pytest.mark.parametrize("norm", ["layer", pytest.param("group", marks=pytest.mark.slow)])
def test_a_waveform_is_heard_alike_in_any_row(float64, norm):
    """A waveform of 2,000 samples has (2000 - 400) / 320 + 1 = 6 positions, whatever follows, and whatever the norm is over."""
    m = model(front=Waveform(channels=4, norm=norm), layer=ConformerLayer(positions="relative"))
    a, b = utterance(1, 2000, 4, 1), utterance(2, 1500, 3, 1)
    ((alone,),) = heard(m, rows([a], length=2560))
    assert len(alone) == 6
    assert_allclose(heard(m, rows([a], length=6400, seed=6))[0][0], alone, atol=1e-9)
    first, second = heard(m, rows([a, b], length=6400, align=1280))[0]
    assert_allclose(first, alone, atol=1e-9)
    assert_allclose(second, heard(m, rows([b], length=2560))[0][0], atol=1e-9)


SMALL_TRANSDUCER = Transducer(vocab=12, predictor_dim=8, joint_dim=8)


@pytest.mark.parametrize("objective", [Ctc(vocab=12), pytest.param(SMALL_TRANSDUCER, marks=pytest.mark.slow)])
def test_the_loss_does_not_depend_on_padding_or_packing(float64, objective):
    """Three utterances in rows of their own, longer ones, and in one row have the same loss and gradients."""
    m = model(objective=objective)
    a, b, c = utterance(1, 42, 3), utterance(2, 40, 2), utterance(3, 38, 3)
    loss = jax.jit(jax.value_and_grad(lambda m, batch: m.loss(batch, Context.evaluation()).value))
    one, *others = (
        loss(m, x)
        for x in (rows([a], [b], [c], length=48), rows([a], [b], [c], length=96, tokens=16), rows([a, b, c], length=160))
    )
    for other in others:
        assert_allclose(one[0], other[0], rtol=1e-9)
        jax.tree.map(lambda x, y: assert_allclose(x, y, atol=1e-9), one[1], other[1])


def test_batch_norm_counts_the_whole_batch_and_no_padding(float64):
    """In training the loss does not depend on how long rows are, nor on the running statistics, of which a hundredth becomes the
    batch's own; evaluation reads them, and returns none."""
    m = model(layer=ConformerLayer(norm=BatchNorm()))
    context = Context(jax.random.key(0), jnp.zeros((), jnp.int32), training=True)
    loss = jax.jit(jax.value_and_grad(lambda m, batch: ((loss := m.loss(batch, context)).value, loss), has_aux=True))
    a, b = utterance(1, 42, 5), utterance(2, 40, 3)
    ((short, of_short), gradients), ((long, of_long), _) = (loss(m, rows([a], [b], length=n)) for n in (48, 96))
    assert_allclose(short, long, rtol=1e-9)
    norm: Any = m.encoder.conv.inner_norm  # pyright: ignore[reportAttributeAccessIssue]
    for name, running in (("mean", norm.mean), ("variance", norm.variance)):
        new = of_short.statistics[f"encoder.conv.inner_norm.{name}"]
        assert_allclose(new, of_long.statistics[f"encoder.conv.inner_norm.{name}"], rtol=1e-9)
        of_batch = (new - 0.99 * running[...]) / 0.01
        assert np.abs(of_batch - running[...]).max() > 0.01
        assert_array_equal(getattr(gradients.encoder.conv.inner_norm, name)[...], 0)
        running[...] = of_batch  # a hundredth of which is added to as much of itself
    (again, statistics), _ = loss(m, rows([a], [b], length=48))
    assert_allclose(again, short, rtol=1e-12)
    assert_allclose(statistics.statistics["encoder.conv.inner_norm.mean"], norm.mean[...], rtol=1e-9)
    assert not jax.eval_shape(lambda: m.loss(rows([a], length=48), Context.evaluation())).statistics


def test_running_statistics_are_nothing_to_the_optimizer():
    """They lie among the parameters and are not trained; what an optimizer once kept of them is left aside in a checkpoint, and
    those of a frozen encoder stay as they are."""
    e = registry.tiny(registry.load("conformer.large"))
    plan = make_plan(e, abstract=True)
    assert plan.statistics == {f"encoder.conv.inner_norm.{name}" for name in ("mean", "variance")}
    assert plan.statistics <= plan.state.params.keys() and not plan.statistics & plan.trained
    stored = set(by_name(plan.state))
    assert not any(name.endswith(tuple(plan.statistics)) for name in stored if name.startswith("optimizer."))
    before = {f"optimizer.0.{moment}.{name}" for moment in ("mu", "nu") for name in plan.statistics}
    assert checkpoint.optimized_statistics(stored | before, plan) == before
    finetune = dataclasses.replace(e.train.finetune, freeze=("encoder",))
    frozen = dataclasses.replace(e, train=dataclasses.replace(e.train, finetune=finetune))
    assert not make_plan(frozen, abstract=True).statistics


def test_a_depthwise_convolution_is_the_definition():
    """Taps of other utterances and padding are left out; a filter of even size reaches one further back."""
    x = np.arange(1.0, 8.0)[None, :, None]
    segments = np.array([[1, 1, 1, 0, 2, 2, 2]])
    three, two = (jax.jit(depthwise, static_argnums=3)(x, np.ones((taps, 1)), segments, 1) for taps in (3, 2))
    assert_array_equal(np.asarray(three)[0, :, 0], [3, 6, 5, 0, 11, 18, 13])
    assert_array_equal(np.asarray(two)[0, :, 0], [1, 3, 5, 0, 5, 11, 13])


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


def test_impossible_settings_are_refused_in_one_line():
    """Heads and groups that do not divide the model, texts without ids, codes of several codebooks, no contrastive stack."""
    for make, message in (
        (lambda: ConformerConfig(**SMALL | made(heads=3)), "nearest is 4|nearest is 2"),
        (lambda: Ctc(vocab=0), "vocab=0: Ctc writes text; it needs its ids"),
        (lambda: W2vBert(contrastive_layers=0), "contrastive_layers=0: .* nearest is 1"),
        (lambda: W2vBert(contrastive_layers=1, quantizer=Quantizer(codebooks=2)), "codebooks=2: .* nearest is 1"),
        (lambda: Wav2Vec(quantizer=Quantizer(codebooks=3)), "codebooks=3: must divide code_dim=256; nearest is 1"),
        (lambda: BatchNorm(decay=1.0), "decay=1.0: must be in"),
        (
            lambda: ConformerConfig(**SMALL | made(positions=ConvolutionalPositions(groups=3))),
            "positions.groups=3: must divide model_dim=16; nearest is 1",
        ),
        (
            lambda: ConformerConfig(**SMALL | made(layer=ConformerLayer(norm=GroupNorm(groups=3)))),
            "layer.norm.groups=3: must divide model_dim=16; nearest is 1",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()


# A configuration as it was stored when all settings were fields of one class.
STORED = made(
    **{"class": "ConformerConfig"},
    block="conformer",
    layers=2,
    model_dim=16,
    hidden_dim=32,
    heads=4,
    kernel=7,
    contrastive_layers=0,
    conv_norm="layer",
    groups=8,
    positions="none",
    place_taps=5,
    place_groups=4,
    final_norm=True,
    conv_bias=True,
    front="mel",
    mels=8,
    front_channels=4,
    front_norm="group",
    front_bias=False,
    utterances=3,
    dropout=0.2,
    norm_eps=1e-6,
    objective="none",
    vocab=0,
    predictor_layers=2,
    predictor_dim=24,
    joint_dim=40,
    code_dim=12,
    codebooks=0,
    codes=6,
    negatives=5,
    contrast_temperature=0.2,
    gumbel=[2.0, 0.9, 0.1],
    diversity_weight=0.3,
    contrast_weight=0.5,
    masked_weight=0.7,
)
QUANTIZER = Quantizer(codes=6, gumbel=(2.0, 0.9, 0.1), diversity_weight=0.3)
CONTRAST = made(code_dim=12, negatives=5, temperature=0.2, contrast_weight=0.5)


@pytest.mark.parametrize(
    ("stored", "fields"),
    [
        ({}, {}),
        (
            made(conv_norm="group", positions="rotary", objective="transducer", vocab=9),
            made(
                layer=ConformerLayer(kernel=7, bias=True, norm=GroupNorm(groups=8), positions="rotary"),
                objective=Transducer(vocab=9, predictor_layers=2, predictor_dim=24, joint_dim=40),
            ),
        ),
        (
            made(conv_norm="batch", positions="convolution", objective="ctc", vocab=9),
            made(
                layer=ConformerLayer(kernel=7, bias=True, norm=BatchNorm()),
                positions=ConvolutionalPositions(taps=5, groups=4),
                objective=Ctc(vocab=9),
            ),
        ),
        (
            made(block="transformer_post", front="waveform", objective="wav2vec"),
            made(
                layer=TransformerLayer(order="post"),
                front=Waveform(channels=4, norm="group", bias=False),
                objective=Wav2Vec(**CONTRAST),
            ),
        ),
        (
            made(objective="w2v_bert", contrastive_layers=3, codebooks=1),
            made(objective=W2vBert(**CONTRAST, quantizer=QUANTIZER, contrastive_layers=3, masked_weight=0.7)),
        ),
    ],
    ids=["tower", "transducer", "ctc", "wav2vec", "w2v_bert"],
)
def test_configurations_that_were_stored_flat_still_open(stored, fields):
    """Each setting of before is found in the class that has it now; what no class has meant nothing there."""
    tower = made(
        layers=2,
        model_dim=16,
        hidden_dim=32,
        heads=4,
        layer=ConformerLayer(kernel=7, bias=True),
        final_norm=True,
        front=Mel(bands=8, channels=4),
        utterances=3,
        dropout=0.2,
        norm_eps=1e-6,
    )
    assert registry.from_json(STORED | stored, ConformerConfig) == ConformerConfig(**tower | fields)
