"""The Conformer: sizes, and that padding never changes a result."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
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
from models.conformer.huggingface import INTERCHANGE
from models.conformer.model import Conformer
from models.protocol import Context
from models.sharding.params import describe
from tests.helpers.models import ALONE
from tests.helpers.utterances import SMALL, made, model, rows, utterance
from trainers.checkpoints import checkpoint
from trainers.plan import abstract_model, make_plan
from trainers.state import by_name

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


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
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
