"""T5 and Switch Transformer: published sizes to the parameter, and what tells them from other encoder-decoders."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from configs import registry
from models.execution import Execution
from models.interchange import InterchangeError
from models.parts.attention.config import GroupedQuery, RelativeBuckets
from models.parts.attention.logits import relative_buckets
from models.parts.nested import changed
from models.parts.transformer_config import Dense
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import describe
from models.t5.config import T5Config
from models.t5.huggingface import INTERCHANGE
from models.t5.model import T5
from tests.helpers.contexts import EVALUATION, training
from tests.helpers.models import compiled
from tests.parity import ours
from tests.parity.live import FIXTURES
from trainers.plan import abstract_model

SIZES = {
    "t5.v1_0_small": 60_506_624,
    "t5.v1_0_base": 222_903_552,
    "t5.v1_0_large": 737_668_096,
    "t5.v1_0_3b": 2_851_598_336,
    "t5.v1_0_11b": 11_307_321_344,
    "t5.v1_1_small": 76_961_152,
    "t5.v1_1_base": 247_577_856,
    "t5.v1_1_large": 783_150_080,
    "t5.v1_1_xl": 2_849_757_184,
    "t5.v1_1_xxl": 11_135_332_352,
    "t5.mt5_small": 300_176_768,
    "t5.mt5_base": 582_401_280,
    "t5.mt5_large": 1_229_581_312,
    "t5.mt5_xl": 3_742_619_648,
    "t5.mt5_xxl": 12_921_057_280,
    "switch.base_8e": 619_339_008,
    "switch.base_16e": 1_072_397_568,
    "switch.base_32e": 1_978_514_688,
    "switch.base_64e": 3_790_748_928,
    "switch.base_128e": 7_415_217_408,
    "switch.base_256e": 14_664_154_368,
    "switch.large_128e": 26_309_291_008,
    "switch.xxl_128e": 394_675_073_024,
    "switch.c_2048e": 1_571_327_875_360,
}
# The settings of released folders, from memory; counts are derived: sums of their tensors' sizes. The papers print 300 M, 582 M,
# 1.23 B, 3.74 B and 12.9 B of ByT5, and 20 B of UL2.
_BYTES = dict(model_type="t5", vocab_size=384, d_kv=64, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
FOLDERS = {
    "byt5_small": (_BYTES | dict(d_model=1472, d_ff=3584, num_heads=6, num_layers=12, num_decoder_layers=4), 299_637_760),
    "byt5_base": (_BYTES | dict(d_model=1536, d_ff=3968, num_heads=12, num_layers=18, num_decoder_layers=6), 581_653_248),
    "byt5_large": (_BYTES | dict(d_model=1536, d_ff=3840, num_heads=16, num_layers=36, num_decoder_layers=12), 1_228_183_552),
    "byt5_xl": (_BYTES | dict(d_model=2560, d_ff=6720, num_heads=32, num_layers=36, num_decoder_layers=12), 3_737_801_728),
    "byt5_xxl": (_BYTES | dict(d_model=4672, d_ff=12352, num_heads=64, num_layers=36, num_decoder_layers=12), 12_906_899_328),
    "ul2_20b": (
        dict(
            model_type="t5",
            vocab_size=32_128,
            d_model=4096,
            d_kv=256,
            d_ff=16_384,
            num_heads=16,
            num_layers=32,
            feed_forward_proj="gated-silu",
            tie_word_embeddings=False,
        ),
        19_591_209_984,
    ),
}
TINY = T5Config(
    vocab=64,
    layers=4,
    model_dim=16,
    attention=GroupedQuery(heads=4, head_dim=8, scale_dim=1.0),
    positions=RelativeBuckets(buckets=8, max_distance=16, shared=True),
    feed_forward=Dense(hidden_dim=32),
)


@pytest.mark.parametrize("name", SIZES)
def test_published_sizes_are_exact(name):
    """Every released size is built, abstractly, and counted."""
    assert sum(i.size for i in describe(abstract_model(registry.load(name)))) == SIZES[name]


@pytest.mark.parametrize("name", FOLDERS)
def test_released_folders_are_exact(name):
    """A folder's settings give a model of its size, whose decoder may have less depth, and are written as what they were."""
    theirs, count = FOLDERS[name]
    c = INTERCHANGE.read_config(theirs)
    assert sum(i.size for i in describe(ours.abstract(c))) == count
    written = INTERCHANGE.write_config(c)
    assert {key: written[key] for key in theirs} == theirs
    assert c.decoder_groups == theirs.get("num_decoder_layers", 32) and INTERCHANGE.read_config(written) == c


@pytest.mark.parametrize("change", [{"dense_act_fn": "gelu"}, {"is_gated_act": False}])
def test_an_activation_of_another_name_is_refused(change):
    """Files repeat what the name of the feed-forward network says, and `transformers` obeys what they repeat."""
    plain = FOLDERS["byt5_small"][0]
    settings = plain | {"dense_act_fn": "gelu_new", "is_gated_act": True}
    assert INTERCHANGE.read_config(settings) == INTERCHANGE.read_config(plain)
    with pytest.raises(InterchangeError, match=f"{next(iter(change))}=.* is not supported, only"):
        INTERCHANGE.read_config(settings | change)


def test_depths_that_make_no_model_are_refused():
    """A mixture has as many layers on both sides; no stack is empty."""
    switch = json.loads((FIXTURES / "switch/config.json").read_text())
    with pytest.raises(InterchangeError, match="num_decoder_layers=3: only as many as num_layers=4"):
        INTERCHANGE.read_config(switch | {"num_decoder_layers": 3})
    with pytest.raises(ValueError, match=r"decoder\.layers=12: must be a multiple of 1 below layers=12"):
        INTERCHANGE.read_config(_BYTES | dict(d_model=16, d_ff=16, num_heads=2, num_layers=0, num_decoder_layers=12))


@functools.cache
def model_of(**fields) -> T5:
    scope = Component(ONE_DEVICE, execution=Execution(dtype="float64"))

    @jax.jit
    def make(key):
        return jax.tree.map(lambda x: x.astype(jnp.float64), T5(changed(TINY, fields), key, scope))

    return make(jax.random.key(0))


def batch() -> dict[str, np.ndarray]:
    rng, arrays = np.random.default_rng(0), {}
    for side, length in (("inputs", 12), ("targets", 8)):
        arrays[side] = rng.integers(3, 64, (2, length))
        arrays[f"{side}_segments"] = np.ones((2, length))
        arrays[f"{side}_positions"] = np.broadcast_to(np.arange(length), (2, length))
    return {name: x.astype(np.int32) for name, x in arrays.items()}


@jax.jit
def loss_of(model, arrays, context):
    return model.loss(arrays, context)


def test_all_layers_of_a_stack_share_one_table_of_biases(float64):
    """One table for each stack, none in the layers or in the attention to the source; every layer's gradient is in it."""
    model = model_of()
    biases = [i.name for i in describe(model) if "bias" in i.name]
    assert biases == ["decoder_bias", "encoder_bias"]
    gradient = jax.jit(jax.grad(lambda m: m.loss(batch(), EVALUATION).value))(model)
    assert all(float(jnp.abs(getattr(gradient, name)[...]).max()) > 0 for name in biases)


def test_tied_logits_are_of_scaled_vectors(float64):
    """Logits of T5 1.0 are 1/4 of the unscaled ones at 16 dimensions."""
    scaled, plain = model_of(), model_of(scale_logits=False)
    assert_allclose(np.asarray(compiled(scaled, batch())) * 4, compiled(plain, batch()), rtol=1e-12)


def test_attention_is_not_scaled_but_begins_alike(float64):
    """Queries are drawn 1/sqrt(D) as large instead: their standard deviation is that of keys over sqrt(8)."""
    model = model_of(layers=16)
    q, k = (getattr(model.encoder.dense.attention, name)[...] for name in "qk")
    assert_allclose(np.std(q) * 8**0.5, np.std(k), rtol=0.05)
    assert model.encoder.dense.attention.scale == 1


def test_distances_beyond_the_last_bucket_share_it():
    """Distances of 127 and 128 back have the last of 32 buckets, as has anything further; forwards there are others."""
    distance = jnp.array([0, -1, -15, -127, -128, -1000, 1, 1000])
    assert relative_buckets(distance, 32, 128, bidirectional=False).tolist() == [0, 1, 15, 31, 31, 31, 0, 0]
    assert relative_buckets(distance, 32, 128, bidirectional=True).tolist() == [0, 1, 9, 15, 15, 15, 17, 31]


def test_z_loss_is_a_part_of_the_objective(float64):
    """1e-4 times the mean squared log of the summed exponentials, told as a metric and as auxiliary."""
    arrays = batch()
    plain, with_z = (loss_of(model_of(**{"loss.z_weight": weight}), arrays, EVALUATION) for weight in (0.0, 1e-2))
    norm = np.logaddexp.reduce(np.asarray(compiled(model_of(), arrays)), axis=-1)
    assert_allclose(with_z.value - plain.value, 1e-2 * np.mean(norm**2), rtol=1e-9)
    assert_allclose(with_z.extra, with_z.value - plain.value, rtol=1e-9)
    assert "z_loss" not in plain.metrics


def test_dropout_is_drawn_in_hidden_layers_and_on_the_encoders_output(float64):
    """Each kind alone changes the loss of a training pass, and nothing in evaluation."""
    arrays, plain = batch(), model_of()
    want, unchanged = loss_of(plain, arrays, training(0)).value, loss_of(plain, arrays, EVALUATION).value
    for name in ("feed_forward.dropout", "decoder.source_dropout"):
        model = model_of(**{name: 0.5})
        assert float(loss_of(model, arrays, training(0)).value) != float(want)
        assert_allclose(loss_of(model, arrays, EVALUATION).value, unchanged, rtol=1e-12)


def test_initial_matrices_scale_with_their_variance():
    """Switch Transformer's 0.1 makes them sqrt(0.1) as large, the router's among them unless it has one of its own."""
    big, small = (model_of(init_scale=scale, layers=16) for scale in (1.0, 0.1))
    for name in ("attention.o", "ffn.wi", "ffn.wo"):
        a, b = (_get(m.encoder.dense, name)[...] for m in (big, small))
        assert_allclose(b, a * 0.1**0.5, rtol=1e-5)


def _get(module, path: str):
    for name in path.split("."):
        module = getattr(module, name)
    return module


def test_sources_may_hold_id_0(float64):
    """Where a vocabulary has a token of id 0, decoding is told by the segments what padding is: the first token's logits are
    those of the whole sequence at once. Without segments, id 0 is padding, and they are others."""
    model, arrays = model_of(), batch()
    arrays["inputs"][:, 8:] = 0
    arrays["inputs_segments"][:, 9:] = 0  # of the last four ids 0 the first is a token

    @jax.jit
    def first(model, source):
        return model.step(model.start(source, 1, 4), jnp.zeros((2, 1), jnp.int32), jnp.zeros((), jnp.int32))[0][:, 0]

    whole = np.asarray(compiled(model, arrays))[:, 0]
    logits = first(model, {name: arrays[name] for name in ("inputs", "inputs_segments")})
    assert_allclose(logits, whole, rtol=1e-12)
    assert np.abs(first(model, {"inputs": arrays["inputs"]}) - whole).max() > 1e-6
