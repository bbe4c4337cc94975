"""Properties of the decoder's loss, on a tiny one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_softmax

from configs import registry
from models.gpt.model import following
from models.parts.attention.mask import AttentionMask, zigzag
from models.protocol import Context
from models.sharding.params import describe, with_params
from tests.helpers.models import compiled
from trainers.hlo.equality import exact
from trainers.plan import abstract_model, fresh_state, make_plan

# In the layers alone, where the paper says so (Table 27): the two tables have 32,000 x dim, and their norms and biases.
LAMDA = {"lamda_2b": (10, 2560, 40), "lamda_8b": (16, 4096, 64), "lamda_137b": (64, 8192, 128)}


@pytest.mark.parametrize("name", LAMDA)
def test_lamdas_sizes_are_those_of_its_table(name):
    """Attention of 4 matrices of dim x 128 heads, a gated network of 3 of dim x 8 dim; norms, relative biases and the table."""
    layers, dim, heads = LAMDA[name]
    block = 4 * dim * heads * 128 + 3 * dim * 8 * dim + 2 * dim + 32 * heads
    total = sum(info.size for info in describe(abstract_model(registry.load(f"lamda.{name}"))))
    assert total == layers * block + 32_000 * dim + dim


@pytest.fixture(scope="module")
def model():
    with jax.enable_x64(True):
        plan = make_plan(exact(registry.tiny(registry.load("gpt.smollm2_135m"))), jax.devices()[:1])
        yield with_params(plan.model, fresh_state(plan).params)


@pytest.fixture(scope="module")
def prefix_model():
    with jax.enable_x64(True):
        e = registry.tiny(registry.load("gpt.smollm2_135m"))
        e = dataclasses.replace(e, model=dataclasses.replace(e.model, prefix=True))  # pyright: ignore[reportArgumentType]
        plan = make_plan(exact(e), jax.devices()[:1])
        yield with_params(plan.model, fresh_state(plan).params)


@jax.jit
def loss_of(model, batch):
    return model.loss(batch, Context.evaluation())


def nats_of(logits, batch) -> np.ndarray:
    """The cross-entropy of each token of a row but the first."""
    return -log_softmax(logits[0, :-1], axis=-1)[np.arange(15), batch["tokens"][0, 1:]]


@pytest.fixture
def batch():
    """Two documents of 7 and 6 tokens in a row of 16, of which the marked tokens count."""
    rng = np.random.default_rng(0)
    row = {
        "tokens": rng.integers(3, 64, 16),
        "segments": np.array([1] * 7 + [2] * 6 + [0] * 3),
        "positions": np.array([*range(7), *range(6), 0, 0, 0]),
        "loss_weights": np.array([1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1]),
    }
    return {name: x.astype(np.int32)[None] for name, x in row.items()}


def test_marked_tokens_alone_count(model, batch, float64):
    """The loss is the mean cross-entropy of marked tokens that follow another of their document; the totals count them."""
    counted = [3, 4, 6, 9, 12]  # not 0 and 7, which begin documents, and not the padding
    nats = nats_of(np.asarray(compiled(model, batch)), batch)
    assert int(model.totals(batch)["tokens"]) == len(counted)
    assert_allclose(loss_of(model, batch).value, np.mean([nats[i - 1] for i in counted]), rtol=1e-12)


def test_marks_are_weights(model, batch, float64):
    """A token that counts three times is in the mean three times."""
    batch["loss_weights"][0, 4] = 3
    nats = nats_of(np.asarray(compiled(model, batch)), batch)
    counted = [3, 4, 4, 4, 6, 9, 12]
    loss = loss_of(model, batch)
    assert_allclose(loss.value, np.mean([nats[i - 1] for i in counted]), rtol=1e-12)
    assert float(loss.metrics["cross_entropy"].over) == int(model.totals(batch)["tokens"]) == len(counted)


def test_without_marks_all_tokens_count(model, batch, float64):
    """Marks everywhere and no marks are the same."""
    everywhere = batch | {"loss_weights": np.ones_like(batch["loss_weights"])}
    nowhere = {name: x for name, x in batch.items() if name != "loss_weights"}
    for a, b in zip(following(everywhere), following(nowhere), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loss_of(model, everywhere).value == loss_of(model, nowhere).value


def changed(model, batch, place: int) -> list[int]:
    """The places of a row whose logits change with the token at one of them."""
    other = batch["tokens"].copy()
    other[0, place] = (other[0, place] + 1) % 64
    before, after = (np.asarray(compiled(model, b)) for b in (batch, batch | {"tokens": other}))
    apart = np.abs(after - before).max(axis=2)[0, :13]  # no padding
    return np.flatnonzero(apart > 1e-12).tolist()


def test_a_prefix_sees_all_of_itself(prefix_model, model, batch, float64):
    """The tokens before a document's first marked one are seen by the whole document; what follows by later places alone."""
    batch["loss_weights"][0, :13] = [0, 0, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 1]
    first, second = list(range(7)), list(range(7, 13))
    seen = {2: first, 0: first, 3: first[3:], 4: first[4:], 8: second, 9: second[2:], 11: second[4:]}
    for place, by in seen.items():
        assert changed(prefix_model, batch, place) == by
    unmarked = {name: x for name, x in batch.items() if name != "loss_weights"}
    assert changed(prefix_model, unmarked, 2) == changed(model, batch, 2) == first[2:]


def test_a_prompt_is_a_prefix(prefix_model, float64):
    """Logits of continuations, a token at a time from the cache, are those of whole rows whose prompt is not predicted."""
    rng = np.random.default_rng(0)
    ids, prompts, steps = rng.integers(3, 64, (2, 12)).astype(np.int32), np.array([7, 4], np.int32), 4
    places = np.broadcast_to(np.arange(12, dtype=np.int32), ids.shape)
    batch = {"tokens": ids, "positions": places, "segments": np.ones_like(ids)}
    whole = np.asarray(compiled(prefix_model, batch | {"loss_weights": (places >= prompts[:, None]).astype(np.int32)}))
    cache = jax.jit(prefix_model.start, static_argnums=(1, 2))({"tokens": ids[:, :7], "lengths": prompts}, 1, steps)
    step = jax.jit(lambda cache, ids, at: prefix_model.step(cache, ids, at))
    for at in range(steps):
        last = ids[np.arange(2), prompts + at - 1][:, None]
        logits, cache = step(cache, last, np.int32(at))
        assert_allclose(logits[:, 0], whole[np.arange(2), prompts + at - 1], atol=1e-9)


def test_a_prefix_keeps_its_place_in_zigzag_order():
    """The mask of rows in another order is the mask, in that order."""
    segments = jnp.array([[1] * 10 + [2] * 6])
    prefix = jnp.array([[True] * 4 + [False] * 6 + [True] * 2 + [False] * 4])
    mask = AttentionMask.for_rows(segments, segments, causal=True).with_prefix(prefix)
    order = np.asarray(zigzag(jnp.arange(16)[None], 4))[0]
    turned = dataclasses.replace(
        AttentionMask.for_rows(segments[:, order], segments[:, order], causal=True),
        index_BL=jnp.asarray(order[None]),
        index_BS=zigzag(mask.index_BS, 4),
        in_order=False,
    )
    np.testing.assert_array_equal(turned.matrix(), np.asarray(mask.matrix())[:, order][:, :, order])
