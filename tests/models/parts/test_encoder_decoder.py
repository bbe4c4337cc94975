"""Encoder-decoders by the fields of their configuration: every variant decodes as it was taught, and ends in one loss."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from models.execution import Execution
from models.gshard_m4.config import GShardM4Config
from models.gshard_m4.model import GShardM4
from models.parts.attention.config import Interpolation, Latent, LayerVariant, RelativeBuckets, Rotary
from models.parts.moe.config import ExpertChoice, ExpertsConfig, MoeConfig, Top1
from models.parts.nested import changed
from models.parts.transformer_config import Dense, NormConfig
from models.sharding.component import Component
from models.sharding.layout import LayoutError
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import describe
from tests.helpers.contexts import EVALUATION, training

TINY = GShardM4Config().tiny()
EXPERTS = MoeConfig(experts=ExpertsConfig(count=4), group_size=8)
TOP1 = changed(EXPERTS, {"router": Top1(), "experts.token_dropout": 0.2, "capacity.batch_priority": True})
CHOICE = dataclasses.replace(EXPERTS, router=ExpertChoice())
LENGTH, SOURCES, TARGETS = 8, (5, 8), (8, 6)  # rows of 8 positions, two examples


def model_of(execution: Execution = Execution(dtype="float64"), **fields) -> GShardM4:
    """A model in double precision."""

    @jax.jit
    def make(key):
        model = GShardM4(changed(TINY, fields), key, Component(ONE_DEVICE, execution=execution))
        return jax.tree.map(lambda x: x.astype(jnp.float64), model)

    return make(jax.random.key(0))


def batch() -> dict[str, jax.Array]:
    rng = np.random.default_rng(1)
    arrays = {}
    for side, lengths in (("inputs", SOURCES), ("targets", TARGETS)):
        real = np.arange(LENGTH) < np.array(lengths)[:, None]
        arrays[side] = jnp.asarray(rng.integers(3, 64, real.shape) * real, jnp.int32)
        arrays[f"{side}_segments"] = jnp.asarray(real, jnp.int32)
        arrays[f"{side}_positions"] = jnp.asarray(np.arange(LENGTH) * real, jnp.int32)
    return arrays


@pytest.mark.integration
@pytest.mark.parametrize(
    "fields",
    [
        {
            "norm": NormConfig(kind="layer", bias=True, order="post"),
            "attention.biases": "qkvo",
            "feed_forward": Dense(hidden_dim=32, activation="gelu", bias=True),
        },
        {"positions": Rotary(), "attention.kv_heads": 2, "feed_forward": Dense(hidden_dim=32, gated=True, activation="silu")},
        pytest.param({"positions": RelativeBuckets(), "moe": EXPERTS, "attention.logit_cap": 5.0}, marks=pytest.mark.slow),
        {"moe": changed(TOP1, {"every": 1}), "feed_forward.gated": True, "feed_forward.activation": "gelu_tanh"},
        pytest.param(
            {"moe": changed(CHOICE, {"every": 3}), "layers": 12, "positions": RelativeBuckets(shared=True)},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["post", "rotary", "relative", "all_sparse", "relative_shared"],
)
def test_decoding_a_position_at_a_time_is_teacher_forcing(float64, fields):
    """Norms, positions, shared heads, gates, and mixtures of every gating: the cached decoder gives the whole one's logits."""
    model, arrays = model_of(**fields), batch()
    taught = jax.jit(lambda model, arrays: model(arrays))(model, arrays)

    @jax.jit
    def stepwise(model, ids, targets):
        def step(carry, at):
            cache, before = carry
            logits, cache = model.step(cache, jnp.broadcast_to(before[:, None], (2, 3)), at)
            return (cache, targets[:, at]), logits[:, 1]

        start = model.start({"inputs": ids}, 3, LENGTH), jnp.zeros(2, jnp.int32)
        return jnp.moveaxis(jax.lax.scan(step, start, jnp.arange(LENGTH))[1], 0, 1)

    decoded = stepwise(model, arrays["inputs"], arrays["targets"])
    for row, length in enumerate(TARGETS):
        assert_allclose(decoded[row, :length], taught[row, :length], rtol=0, atol=1e-12)


def test_every_nth_layer_is_a_mixture():
    """Each stack has 6 of 12 layers: with every third two mixtures and four dense layers; with 1 mixtures alone."""
    for every, dense in ((3, 4), (1, 0)):
        model = jax.eval_shape(lambda every=every: model_of(moe=changed(EXPERTS, {"every": every}), layers=12))
        layers = {"sparse": 0, "dense": 0}
        for info in describe(model):
            if info.name.startswith("encoder.") and info.name.endswith("ffn.wi"):
                kind = info.name.split(".")[1].partition("_")[0]
                assert info.scope.path == {"sparse": "encoder.moe", "dense": "encoder.ffn"}[kind]
                layers[kind] += info.shape[0]
        assert layers == {"sparse": 6 - dense, "dense": dense}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": 10, "moe": EXPERTS, "moe.every": 3}, "multiple of 6 .*every third an MoE layer.* nearest are 6 and 12"),
        ({"layers": 3}, "multiple of 2 .half encoder, half decoder.; nearest are 2 and 4"),
        ({"moe": EXPERTS, "moe.every": 0}, "every=0: must be 1 or more"),
        ({"moe": EXPERTS, "moe.leading": 2}, "moe.leading=2: there are no such layers here"),
        ({"norm.order": "parallel"}, "order='parallel': .* nearest is 'pre'"),
        ({"norm.order": "sandwich"}, "order='sandwich': .* nearest is 'pre'"),
        ({"attention.pattern": (LayerVariant(window=4), LayerVariant())}, "pattern=.*: there are no such layers here"),
        ({"positions": Rotary(scaling=Interpolation(factor=2.0))}, "rates are not stretched here"),
        ({"attention": Latent(heads=2, rank=4, rotary_dim=4), "positions": Rotary()}, "attention=Latent: .* is GroupedQuery"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        changed(TINY, fields)


@pytest.mark.slow
def test_logits_in_chunks_are_the_same_loss(float64):
    """In four parts of two positions each: the same loss and gradients, to 1e-12; three do not divide eight positions."""

    def results(chunks: int):
        model = model_of(Execution(dtype="float64", loss_chunks=chunks), moe=EXPERTS)
        return jax.jit(jax.value_and_grad(lambda model: model.loss(batch(), training(3)).value))(model)

    (whole, gradients), (parts, gradients_of_parts) = results(1), results(4)
    assert_allclose(whole, parts, rtol=1e-12)
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(gradients_of_parts), strict=True):
        assert_allclose(a, b, rtol=0, atol=1e-12)
    model = model_of(Execution(dtype="float64", loss_chunks=3))
    with pytest.raises(LayoutError, match="loss_chunks=3 does not divide the 8 positions of a row; nearest is 2"):
        jax.eval_shape(lambda: model.loss(batch(), EVALUATION))
