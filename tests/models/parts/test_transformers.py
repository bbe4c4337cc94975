"""Properties of encoders and decoders of every variant: what a token may see, and that packing, padding and caching are free."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from models.errors import UserError
from models.execution import Execution
from models.parts import nested
from models.parts.activations import DENSE
from models.parts.attention.config import Learned, Rotary
from models.parts.attention.logits import relative_buckets
from models.parts.attention.rotary import rotate, rotation
from tests.helpers.contexts import EVALUATION
from tests.helpers.models import ALONE, batch_of, compiled, fixture, model_of

GPT = ["gpt.quickstart", "gpt.gpt2_124m", "gpt.gspmd_64b", "gpt.lingvo_175b", "gpt.palm_8b"]
EXPERTS = ["gpt.moe_quickstart", "gpt.mixtral_8x7b", "gpt.gpt_oss_20b", "gpt.deepseek_v3", "gpt.glam_64b_64e"]
GPT += ["gpt.gemma3_4b", "gpt.olmo2_7b", "gpt.bloom_7b1", *EXPERTS]
# Further kin of those before them, for `make test-slow`.
KIN = ("gpt.lingvo_175b", "gpt.mixtral_8x7b", "gpt.glam_64b_64e", "llama_llama3", "mistral", "phi3", "bert.mlperf_200b")
# Released dense decoders beside Gemma 3 and OLMo 2: parity fixtures, of odd sizes, each with all its kinds of layers.
RELEASED = ["llama_llama3", "mistral", "qwen2_window", "qwen3", "gemma2", "phi3", "phi3_long", "smollm3"]
BERT = ["bert.base", "bert.mlperf_200b", "bert.mlperf_480b"]


def tiers(*names: str) -> list:
    """Cases of `make test`, and of `make test-slow`."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in KIN else name for name in names]


def changed(tokens: np.ndarray) -> np.ndarray:
    """The same but for the token at position 5 of the first row."""
    tokens = tokens.copy()
    tokens[0, 5] += 1
    return tokens


def outputs(model, batch) -> np.ndarray:
    """Logits of a decoder, vectors of an encoder."""
    return np.asarray(compiled(model, batch))


@pytest.mark.integration
@pytest.mark.parametrize("name", tiers(*GPT))
def test_a_decoder_sees_only_what_came_before(name, float64):
    """Changing the token at position 5 changes the logits from there on, in its own document, and no others."""
    model, batch = model_of(name), batch_of([8, 4], [12])
    before = outputs(model, batch)
    after = outputs(model, batch | {"tokens": changed(batch["tokens"])})
    assert_array_equal(before[0, :5], after[0, :5])
    assert_array_equal(before[0, 8:], after[0, 8:])
    assert np.abs(before[0, 5:8] - after[0, 5:8]).max(axis=-1).min() > 1e-6


@pytest.mark.parametrize("name", tiers(*BERT))
def test_an_encoder_sees_the_whole_example(name, float64):
    """Changing one token changes the vectors of its example, before it and after, and no others."""
    model, batch = model_of(name), batch_of([8, 4], [12])
    before = outputs(model, batch)
    after = outputs(model, batch | {"tokens": changed(batch["tokens"])})
    assert_array_equal(before[0, 8:], after[0, 8:])
    assert np.abs(before[0, :8] - after[0, :8]).max(axis=-1).min() > 1e-6


@pytest.mark.parametrize("name", tiers(*GPT, *BERT))
def test_padding_does_not_matter(name, float64):
    """Whatever stands in padding changes no output of a real token, and no loss."""
    model, batch = model_of(name), batch_of([7], [12])
    other = batch | {"tokens": np.where(batch["segments"] == 0, 9, batch["tokens"]).astype(np.int32)}
    real = batch["segments"] > 0
    assert_array_equal(outputs(model, batch)[real], outputs(model, other)[real])


@pytest.mark.parametrize("name", tiers(*GPT, *BERT))
def test_packed_examples_are_alone(name, float64):
    """Two examples in one row have the outputs that each has in a row of its own."""
    model, packed = model_of(name), batch_of([7, 5], [12])
    alone = {k: np.stack([v[0], np.roll(v[0], -7)]) for k, v in packed.items()}
    alone["segments"] = np.stack([packed["segments"][0] == 1, np.roll(packed["segments"][0] == 2, -7)]).astype(np.int32)
    together, each = outputs(model, packed), outputs(model, alone)
    assert_allclose(together[0, :7], each[0, :7], rtol=0, atol=1e-12)
    assert_allclose(together[0, 7:], each[1, :5], rtol=0, atol=1e-12)


@pytest.mark.integration
@pytest.mark.parametrize("name", tiers(*GPT, *RELEASED))
def test_a_cache_changes_nothing(name, float64):
    """Reading a prompt at once and then a token at a time gives the logits of reading all at once, for prompts of unequal
    length and two hypotheses of each."""
    model, batch = fixture(name) if name in RELEASED else model_of(name), batch_of([12], [12])
    whole = outputs(model, batch)
    lengths = np.array([4, 7])
    cache = jax.jit(model.start, static_argnums=(1, 2))({"tokens": batch["tokens"][:, :8], "lengths": jnp.asarray(lengths)}, 2, 5)
    step = jax.jit(lambda cache, ids, at: model.step(cache, ids, at))
    for at in range(5):
        ids = np.stack([batch["tokens"][row, lengths[row] + at - 1] for row in (0, 1)])
        logits, cache = step(cache, np.stack([ids, ids], axis=1), np.int32(at))
        for row in (0, 1):
            want = whole[row, lengths[row] + at - 1]
            assert_allclose(logits[row], [want, want], rtol=0, atol=1e-12)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["gpt.quickstart", "gpt.llama2_70b"])
def test_reordered_hypotheses_have_their_parents_past(name, float64):
    """Whatever parents three hypotheses of two prompts choose at each step, their logits are those of reading their own history.

    Some parents are chosen thrice and some never, prompts have unequal lengths, and a past is handed on more than once.
    """
    model, rng = model_of(name), np.random.default_rng(0)
    prompts, lengths, steps = rng.integers(1, 60, (2, 8)), np.array([5, 8]), 5
    cache = jax.jit(model.start, static_argnums=(1, 2))({"tokens": prompts, "lengths": jnp.asarray(lengths)}, 3, steps)
    step = jax.jit(lambda cache, ids, at: model.step(cache, ids, at))
    histories = [[list(prompt[:length]) for _ in range(3)] for prompt, length in zip(prompts, lengths, strict=True)]
    ids = np.zeros((2, 3), np.int64)
    for at in range(steps):
        logits, cache = step(cache, ids, np.int32(at))
        for row, hypothesis in np.ndindex(2, 3):
            history = histories[row][hypothesis]
            read = batch_of([len(history)])
            read["tokens"][0, : len(history)] = history
            want = outputs(model, read)[0, len(history) - 1]
            assert_allclose(logits[row, hypothesis], want, rtol=0, atol=1e-12)
        parents, ids = rng.integers(0, 3, (2, 3)), rng.integers(1, 60, (2, 3))
        cache = model.reorder(cache, jnp.asarray(parents))
        histories = [[[*histories[row][parents[row, k]], ids[row, k]] for k in range(3)] for row in range(2)]


@pytest.mark.integration
@pytest.mark.parametrize(
    "fields",
    [
        dict(loss_chunks=4),
        dict(unroll=0),
        pytest.param(dict(unroll=2), marks=pytest.mark.slow),
        pytest.param(dict(remat="full"), marks=pytest.mark.slow),
        pytest.param(dict(remat="attention_in+context+gate"), marks=pytest.mark.slow),
        dict(remat="up+ffn_out"),
    ],
    ids=str,
)
def test_what_is_computed_again_changes_nothing(float64, fields):
    """Logits in four parts, layers unrolled, whatever the backward pass keeps or recomputes: another program with the same loss
    and gradients."""

    def traced(**fields):
        model, batch = model_of("gpt.llama2_70b", **fields), batch_of([12], [4, 5])
        return jax.jit(jax.value_and_grad(lambda model: model.loss(batch, EVALUATION).value)).trace(model), model

    def results(trace, model) -> list[jax.Array]:
        return jax.tree.leaves(trace.lower().compile()(model))

    def made_of(trace) -> Counter[str]:
        return Counter(re.findall(r"\b(?:dot_general|scan|checkpoint|remat2?|unroll=\d+)\b", str(trace.jaxpr)))

    plain, other = traced(loss_chunks=1, remat="none"), traced(**fields)
    assert made_of(plain[0]) != made_of(other[0])
    for a, b in zip(results(*plain), results(*other), strict=True):
        assert_allclose(a, b, rtol=0, atol=1e-12)


def test_an_unknown_activation_is_refused_with_the_nearest():
    """A misspelt name in `remat` is one line that names the nearest."""
    with pytest.raises(ValueError, match="no activation 'contxt'; did you mean 'context'"):
        Execution(remat="contxt+gate").check((), DENSE)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"offload": "layer_inn"}, "offload='layer_inn': no activation 'layer_inn'; did you mean 'layer_in'"),
        ({"offload": "full", "remat": "full"}, "offload='full': no activation 'full'"),
        ({"offload": "carry", "remat": "full"}, "offload='carry': no activation 'carry'"),
        ({"offload": "none+gate", "remat": "full"}, "offload='none+gate': no activation 'none'"),
        ({"offload": "layer_in"}, "remat='none' keeps what has no name on the device; with offloaded activations it is 'full'"),
        ({"offload": "gate+optimizer", "remat": "context+gate"}, "remat='context+gate' keeps 'gate' on the device; name it once"),
        (
            {"offload": "layer_in", "remat": "full", "remat_of": (("encoder", "dots"),)},
            "offload='layer_in': remat='dots' keeps what has no name",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_offloaded_is_refused(fields, said):
    """In one line that names both settings; the optimizer's state needs no recomputation."""
    Execution(offload="optimizer").check((), DENSE)
    with pytest.raises(UserError, match=re.escape(said)):
        Execution(**fields).check(("encoder",), DENSE)


def test_rotary_products_depend_on_distance_alone(float64):
    """A query at 3 and a key at 1 have the product that the same vectors have at 9 and 7; at distance 0 nothing turns."""
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 8))) for _ in range(2))

    def product(i: int, j: int) -> float:
        turned = [rotate(x, rotation(jnp.array([[at]]), 8, Rotary(base=100.0)), ALONE) for x, at in ((q, i), (k, j))]
        return float(jnp.sum(turned[0] * turned[1]))

    assert product(3, 1) == pytest.approx(product(9, 7), rel=1e-5)
    assert product(4, 4) == pytest.approx(float(jnp.sum(q * k)), rel=1e-5)
    assert abs(product(3, 1) - product(1, 3)) > 1e-3


def test_relative_buckets_are_t5s():
    """8 buckets up to distance 16, one direction: 0 to 3 exactly, then 4-5, 6-7, 8-11, 12 and more."""
    distance = -jnp.arange(20)
    got = relative_buckets(distance, 8, 16, bidirectional=False).tolist()
    assert got == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6] + [7] * 8
    both = relative_buckets(jnp.array([-2, -1, 0, 1, 2]), 8, 16, bidirectional=True).tolist()
    assert both[2] == 0 and both[:2] == [2, 1] and both[3:] == [5, 6]


def test_a_cap_bounds_logits(float64):
    """Output logits of the 200B encoder stay within 30 however large the vectors."""
    model, batch = model_of("bert.mlperf_200b"), batch_of([12])
    huge = jax.tree.map(lambda x: x * 100, model)
    logits = jax.jit(lambda m, b: m(b))(huge, batch | {"slots": np.array([[0, 3]])})
    assert 20 < float(jnp.abs(logits).max()) <= 30


def test_bad_sizes_are_refused_by_name():
    """A number of key/value heads that does not divide, and positions without a table, name the field and what would fit."""
    c = registry.load("gpt.quickstart").model
    with pytest.raises(ValueError, match=r"kv_heads=3: must divide heads=4; nearest is [24]"):
        nested.changed(c, {"attention.kv_heads": 3})
    with pytest.raises(ValueError, match=r"rows=0: must be at least the longest row"):
        nested.changed(c, {"positions": Learned(rows=0)})
