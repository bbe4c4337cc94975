"""Properties of the decoder's loss, on a tiny one."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from configs import registry
from models.gpt.model import following
from models.parts.losses import cross_entropy
from models.protocol import Context
from models.sharding.params import describe, merge
from trainers.plan import abstract_model, fresh_state, make_plan
from trainers.programs.equality import exact

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
        yield merge(plan.model, fresh_state(plan).params)


@pytest.fixture
def batch():
    """Two documents of 7 and 6 tokens in a row of 16, of which the marked tokens count."""
    rng = np.random.default_rng(0)
    row = {
        "tokens": rng.integers(3, 64, 16),
        "segments": np.array([1] * 7 + [2] * 6 + [0] * 3),
        "positions": np.array([*range(7), *range(6), 0, 0, 0]),
        "predicted": np.array([1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1]),
    }
    return {name: x.astype(np.int32)[None] for name, x in row.items()}


def test_marked_tokens_alone_count(model, batch, float64):
    """The loss is the mean cross-entropy of marked tokens that follow another of their document; the totals count them."""
    counted = [3, 4, 6, 9, 12]  # not 0 and 7, which begin documents, and not the padding
    logits = model(batch)
    _, nats = cross_entropy(logits[:, :-1], batch["tokens"][:, 1:])
    assert int(model.totals(batch)["tokens"]) == len(counted)
    loss = model.loss(batch, Context.evaluation())
    assert_allclose(loss.value, np.mean([nats[0, i - 1] for i in counted]), rtol=1e-12)


def test_marks_are_weights(model, batch, float64):
    """A token that counts three times is in the mean three times."""
    batch["predicted"][0, 4] = 3
    _, nats = cross_entropy(model(batch)[:, :-1], batch["tokens"][:, 1:])
    counted = [3, 4, 4, 4, 6, 9, 12]
    loss = model.loss(batch, Context.evaluation())
    assert_allclose(loss.value, np.mean([nats[0, i - 1] for i in counted]), rtol=1e-12)
    assert float(loss.metrics["cross_entropy"].over) == int(model.totals(batch)["tokens"]) == len(counted)


def test_without_marks_all_tokens_count(model, batch, float64):
    """Marks everywhere and no marks are the same."""
    everywhere = batch | {"predicted": np.ones_like(batch["predicted"])}
    nowhere = {name: x for name, x in batch.items() if name != "predicted"}
    for a, b in zip(following(everywhere), following(nowhere), strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.loss(everywhere, Context.evaluation()).value == model.loss(nowhere, Context.evaluation()).value
