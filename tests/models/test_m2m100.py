"""M2M-100 and NLLB: released sizes to the parameter, and what tells them from other encoder-decoders."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from models.execution import Execution
from models.m2m100.config import M2M100Config
from models.m2m100.model import M2M100
from models.parts.attention.config import GroupedQuery
from models.parts.encoder_decoder import shift_right
from models.parts.layers import sinusoids
from models.parts.transformer_config import Dense
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import describe
from trainers.plan import abstract_model

SIZES = {
    "m2m100.m418": 483_905_536,
    "m2m100.b1_2": 1_239_470_080,
    "nllb.n600m": 615_073_792,
    "nllb.n1_3b": 1_370_638_336,
    "nllb.n3_3b": 3_344_863_232,
    "nllb.moe_54b": 54_500_569_088,
}


@pytest.mark.parametrize("name", SIZES)
def test_released_sizes_are_exact(name):
    """Every released size is built, abstractly, and counted."""
    assert sum(i.size for i in describe(abstract_model(registry.load(name)))) == SIZES[name]


def test_every_fourth_layer_of_nllbs_mixture_has_experts():
    """Six of the 24 layers of a stack are mixtures of 128 experts, with biases."""
    infos = {i.name: i.shape for i in describe(abstract_model(registry.load("nllb.moe_54b")))}
    assert infos["encoder.sparse.ffn.wi"] == infos["decoder.sparse.ffn.wi"] == (6, 128, 2048, 8192)
    assert infos["encoder.sparse.ffn.wo_bias"] == (6, 128, 2048)
    assert {name.split(".")[1] for name in infos if name.startswith("encoder.") and ".ffn.wi" in name} == {
        "dense",
        "dense_1",
        "dense_2",
        "sparse",
    }


def test_embeddings_are_scaled_and_positions_count_from_two(float64):
    """The first token's vector is 4 times its row of the table at 16 dimensions, plus the sinusoids of position 2."""
    c = dataclasses.replace(
        M2M100Config(
            vocab=64,
            layers=4,
            model_dim=16,
            attention=GroupedQuery(heads=4, head_dim=4, biases="qkvo"),
            feed_forward=Dense(hidden_dim=32, bias=True),
        ),
        dropout=0.0,
    )
    model = M2M100(c, jax.random.key(0), Component(ONE_DEVICE, execution=Execution(dtype="float64")))
    ids, positions = jnp.array([[7, 9]]), jnp.array([[0, 1]])
    table = np.asarray(model.embedding.table[...], np.float64)
    want = 4 * table[[[7, 9]]] + sinusoids(positions + 2, 16, jnp.dtype("float64"))
    assert_allclose(model.embed_tokens(ids, positions, None), want, rtol=1e-6)


def test_a_target_begins_with_the_end_of_another():
    """Each example of a packed row begins with </s>, 2, after which its language's token comes."""
    ids, positions = jnp.array([[50, 11, 12, 51, 13]]), jnp.array([[0, 1, 2, 0, 1]])
    assert_array_equal(shift_right(ids, positions, 2), [[2, 50, 11, 2, 51]])
