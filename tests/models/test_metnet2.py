"""MetNet-2: its size, what each part may see, and the counts that its scores are made of."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_softmax

from configs import registry
from data.reading.examples import open_source
from models.errors import UserError
from models.metnet2.config import RAIN, Edges, EqualBins, MetNet2Config
from models.metnet2.model import CUTS, MetNet2
from models.parts.nested import changed
from models.protocol import Context
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE
from tests.helpers.contexts import EVALUATION, training
from trainers.hlo import tables

WHERE = Component(ONE_DEVICE)


@functools.cache
def tiny() -> tuple[MetNet2, dict[str, jax.Array]]:
    """A model and a batch of four windows."""
    e = registry.tiny(registry.load("metnet2.quickstart"))
    source = open_source(e.data, e.model)
    rows = [source.row(i) for i in range(4)]
    batch = {name: jnp.asarray(np.stack([row[name] for row in rows])) for name in rows[0]}
    return model_of(e.model, 0), batch


def model_of(c: Any, seed: int) -> MetNet2:
    return jax.jit(lambda key: MetNet2(c, key, WHERE))(jax.random.key(seed))


@jax.jit
def logits(model: MetNet2, batch: dict[str, jax.Array]) -> jax.Array:
    return model(batch)


@jax.jit
def loss(model: MetNet2, batch: dict[str, jax.Array], context: Context) -> Any:
    return model.loss(batch, context)


def test_the_papers_model_has_the_parameters_of_its_shapes():
    """Counted by hand from the table of its README."""

    def block(size: int) -> int:
        return 2 * (9 * size * size + size) + 2 * (2 * 2048 * size + size)

    frames = 9 * (53 + 53 + 128) * 4 * 128 + 4 * 128
    context = 128 * 384 + 384 + 3 * 8 * block(384)
    detail = 384 * 512 + 512 + 8 * block(512)
    head = 2 * 2048 * 512 + 512 + 512 * 4096 + 4096 + 4096 * 512 + 512
    described = tables.describe(registry.load("metnet2.paper"))
    assert described["parameters"] == frames + context + detail + head + 360 * 2048 == 218_914_176


def test_a_dry_position_is_normed_alone():
    """Changing the rain at one position changes logits no farther away than convolutions reach: no statistic is over space."""
    model, batch = tiny()
    c = changed(model.c, {"context.dilations": (1,), "detail.blocks": 1})
    small, inputs = model_of(c, 1), np.array(batch["inputs"])
    inputs[0, -1, 9, 9, 0] += 10.0
    before, after = (np.asarray(logits(small, b)) for b in (batch, batch | {"inputs": inputs}))
    differs = np.argwhere(np.abs(after - before).max(axis=-1) > 0)
    assert len(differs) and set(differs[:, 0]) == {0}
    # LSTM 1, two convolutions of the context block 2, then 2 points of the detail block; the centre begins at position 8.
    reach = [1 * 2 - 3 * 2 - 2, 1 * 2 + 1 + 3 * 2 + 2]
    assert differs[:, 1:].min() >= max(reach[0], 0) and differs[:, 1:].max() <= reach[1]


def test_what_was_not_seen_has_no_weight():
    """Targets at missing points change neither the loss nor its gradient, whatever they are."""
    model, batch = tiny()

    @jax.jit
    def gradient(model: MetNet2, batch: dict[str, jax.Array]) -> Any:
        return jax.value_and_grad(lambda m: m.loss(batch, training()).value)(model)

    other = batch | {"targets": np.where(batch["weights"] > 0, batch["targets"], np.float32(1e3))}
    for a, b in zip(jax.tree.leaves(gradient(model, batch)), jax.tree.leaves(gradient(model, other)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.integration
def test_rows_that_fill_a_batch_up_change_nothing():
    """Rows of zeros without weight add nothing to loss, counts or units."""
    model, batch = tiny()
    both = {name: jnp.asarray(np.concatenate([x, np.zeros_like(x)])) for name, x in batch.items()}
    one, two = (loss(model, b, EVALUATION) for b in (batch, both))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert {k: int(v) for k, v in model.units(both).items()} == {k: int(v) for k, v in model.units(batch).items()}


def test_every_part_of_the_input_matters():
    """Frames, masks, the lead time and the frame that was carried on each change the forecast."""
    model, batch = tiny()
    plain = logits(model, batch)
    changed = {
        "inputs": batch["inputs"] + 1,
        "seen": 1 - batch["seen"],
        "lead_time": batch["lead_time"] % 6 + 1,
        "ahead": batch["ahead"] + 1,
    }
    assert plain.shape == (4, 32, 32, model.c.bins.count)
    for name, value in changed.items():
        assert not np.allclose(logits(model, batch | {name: value}), plain, atol=1e-4), name


def test_the_loss_is_the_classes_cross_entropy():
    """A rate on an edge is in the class above it; the last class has no end."""
    model, batch = tiny()
    logp = log_softmax(np.asarray(logits(model, batch)), axis=-1)
    classes = np.searchsorted(model.c.bins.lower_edges, np.asarray(batch["targets"]), side="right")
    weights = np.asarray(batch["weights"])
    want = -(np.take_along_axis(logp, classes[..., None], -1)[..., 0] * weights).sum() / weights.sum()
    assert_allclose(loss(model, batch, training()).value, want, rtol=1e-5)


@pytest.mark.integration
def test_counts_are_those_of_a_loop_over_points():
    """Decisions at each probability, Brier score and CRPS, by lead time."""
    model, batch = tiny()
    counts = jax.jit(model.counts)(given := logits(model, batch), batch)
    probs = np.asarray(jax.nn.softmax(given, axis=-1), np.float64)
    edges, weights, targets = np.array(model.c.bins.lower_edges), np.asarray(batch["weights"]), np.asarray(batch["targets"])
    below = np.cumsum(probs, axis=-1)[..., :-1]
    widths = np.diff([0.0, *edges])
    error = ((below - (targets[..., None] < edges)) ** 2 * widths).sum(axis=-1)
    for lead in range(1, model.c.leads + 1):
        of_lead = np.asarray(batch["lead_time"] == lead)[:, None, None] * weights
        assert_allclose(counts["crps"].sum[lead - 1], (error * of_lead).sum(), rtol=1e-4, atol=1e-4)
        for q, threshold in enumerate(RAIN):
            over, came = 1 - below[..., list(edges).index(threshold)], targets >= threshold
            assert_allclose(counts["brier"].sum[lead - 1, q], ((over - came) ** 2 * of_lead).sum(), rtol=1e-3, atol=1e-3)
            assert counts["exceeded"].over[lead - 1, q, 0] == of_lead.sum()
            for p in (0, 3, CUTS - 1):
                hits = ((over >= p / CUTS) & came) * of_lead
                assert abs(counts["exceeded"].sum[lead - 1, q, p] - hits.sum()) <= 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"thresholds": (0.3,)}, r"model.thresholds: 0.3 is no edge of a class; the nearest is 0.[24]"),
        ({"bins": Edges, "bins.lower_edges": (2.0, 1.0)}, "lower_edges: 2 values, where each must be above the one before"),
        ({"bins": EqualBins, "bins.count": 0}, "count=0: must be at least 1"),
        ({"detail.upsample": 0}, "upsample=0: must be at least 1"),
    ],
)
def test_impossible_sizes_are_refused(fields, message):
    """With the nearest that is possible."""
    with pytest.raises(UserError, match=message):
        changed(MetNet2Config(channels=1, masks=1), fields)
