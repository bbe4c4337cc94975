"""HSTU: its layer, its losses and its sizes beside definitions written out; what a place sees, and what it does not."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from data.clicks import metrics
from models.errors import UserError
from models.hstu import model as hstu
from models.hstu.config import HstuConfig, Ranking, Retrieval
from models.hstu.model import Hstu, time_buckets
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE
from tests.helpers.contexts import EVALUATION, training
from trainers.hlo import tables

WHERE = Component(ONE_DEVICE)
ITEM = HstuConfig(
    items=30,
    length=6,
    layers=2,
    model_dim=8,
    embedding_dim=8,
    heads=2,
    attention_dim=3,
    linear_dim=4,
    time_buckets=60,
    dropout=0.5,
)
ACTION = dataclasses.replace(ITEM, objective=Ranking(hidden=5), embedding_dim=4, form="dlrm_v3")
BOTH = pytest.mark.parametrize("c", [ITEM, ACTION], ids=["item", "action"])


@functools.cache
def model(c: HstuConfig) -> Hstu:
    """The model with nothing at 0 or 1: norms, biases and all are drawn."""
    made = jax.jit(lambda key: Hstu(c, key, WHERE))(jax.random.key(0))
    leaves, tree = jax.tree.flatten(made)
    rng = np.random.default_rng(0)
    return jax.tree.unflatten(tree, [x + 0.3 * rng.normal(size=x.shape).astype(np.float32) for x in leaves])


def batch_of(c: HstuConfig, rows: int = 4, seed: int = 0) -> dict[str, Any]:
    """Rows of one to all places, of which the last one fills the batch up."""
    rng = np.random.default_rng(seed)
    used_BL = np.arange(c.length) < np.linspace(c.length, 2, rows).astype(int)[:, None]
    used_BL[-1] = False
    drawn = {
        "items": rng.integers(1, c.items, (rows, c.length)),
        "actions": rng.integers(1, 3, (rows, c.length)) * used_BL,
        "times": np.cumsum(rng.integers(0, 5_000, (rows, c.length)), axis=1),
        "start": np.zeros(rows),
    }
    return {name: x.astype(np.int32) for name, x in drawn.items()}


@functools.cache
def outputs(c: HstuConfig) -> Any:
    """The tower's outputs outside training, as a compiled function of a batch."""
    return jax.jit(lambda batch: model(c).outputs(batch, EVALUATION)[0])


@functools.cache
def loss(c: HstuConfig, trains: bool) -> Any:
    return jax.jit(lambda batch: model(c).loss(batch, training() if trains else EVALUATION))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6)


def layer_by_loops(c: HstuConfig, p: dict[str, np.ndarray], x_TD: np.ndarray, times: list[int], used: int) -> np.ndarray:
    """The layer of one row whose first places are used, from its definition."""
    learned, n, k, v = c.form == "dlrm_v3", c.tokens, c.attention_dim, c.linear_dim
    out_TD = x_TD.copy()
    u, value, query, key = np.zeros((n, c.heads, v)), np.zeros((n, c.heads, v)), *np.zeros((2, n, c.heads, k))
    for t in range(n):
        normed = standard(x_TD[t])
        if learned:
            normed = normed * p["norm_scale"] + p["norm_bias"]
        for h in range(c.heads):
            y = silu(normed @ p["uvqk"][:, h] + (p["uvqk_bias"][h] if learned else 0))
            u[t, h], value[t, h], query[t, h], key[t, h] = y[:v], y[v : 2 * v], y[2 * v : 2 * v + k], y[2 * v + k :]
    for t in range(used):
        now = times[t + 1] if t + 1 < used else times[t]
        mixed = np.zeros((c.heads, v))
        for h in range(c.heads):
            for s in range(t + 1):
                bucket = min(int(np.float32(np.log(np.float32(max(abs(now - times[s]), 1)))) / np.float32(0.301)), c.time_buckets)
                score = query[t, h] @ key[s, h] / (np.sqrt(k) if learned else 1) + p["positions"][t - s] + p["times"][bucket]
                mixed[h] += silu(score) / n * value[s, h]
        if learned:
            a = np.stack([standard(mixed[h]) * p["head_scale"][h] + p["head_bias"][h] for h in range(c.heads)])
            y = np.concatenate([u[t], a, u[t] * a], axis=-1)
        else:
            y = u[t] * standard(mixed)
        out_TD[t] += np.einsum("hv,hvd->d", y, p["out"]) + (0 if learned else p["out_bias"])
    return out_TD


@BOTH
def test_layers_are_their_definition(c):
    """Pointwise attention over earlier used places, norm, gate and residual, by loops over places and heads, in double
    precision."""
    with jax.enable_x64(True):
        wide = dataclasses.replace(WHERE, execution=dataclasses.replace(WHERE.execution, dtype="float64"))
        layer = jax.tree.map(lambda x: jnp.asarray(x[0], jnp.float64), model(c).layers)
        layer.scope = wide
        params = {name: np.asarray(x[...]) for name, x in vars(layer).items() if hasattr(x, "get_raw_value")}
        rng = np.random.default_rng(1)
        x_BTD = rng.normal(size=(2, c.tokens, c.model_dim))
        times = np.cumsum(rng.integers(0, 50_000, (2, c.tokens)), axis=1).astype(np.int32)
        used = [c.tokens, c.tokens - 3]
        used_BT = np.arange(c.tokens) < np.array(used)[:, None]
        got = jax.jit(lambda x, used, times: layer(x, used, times, None))(x_BTD, used_BT, times)
    for row in range(2):
        want = layer_by_loops(c, params, x_BTD[row], times[row].tolist(), used[row])
        assert_allclose(got[row, : used[row]], want[: used[row]], rtol=1e-7, atol=1e-7)


def test_time_buckets_are_floors_of_logs():
    seconds = np.array([0, 1, 2, 60, 3_600, 86_400, -60, 2**31 - 1])
    want = [0, 0, 2, 13, 27, 37, 13, 40]
    assert time_buckets(jnp.asarray(seconds, jnp.int32), 40).tolist() == want


def test_inputs_are_items_actions_and_positions_in_turns():
    """A tower whose layers add nothing returns item and action of each interaction, both with its position."""
    c, batch = dataclasses.replace(ACTION, layers=1), batch_of(ACTION)
    flat = model(c)
    flat.layers.out[...] = jnp.zeros_like(flat.layers.out[...])
    got = jax.jit(lambda batch: flat.outputs(batch, EVALUATION)[0])(batch)
    table, widen = np.asarray(flat.tables.table[...])[0], np.asarray(flat.widen[...])  # pyright: ignore[reportOptionalSubscript]
    action, position = np.asarray(flat.actions[...]), np.asarray(flat.positions[...])  # pyright: ignore[reportOptionalSubscript]
    for b, t in np.argwhere(batch["actions"] > 0):
        item = table[batch["items"][b, t]] @ widen * np.sqrt(c.model_dim) + position[t]
        acted = action[batch["actions"][b, t] - 1] * np.sqrt(c.model_dim) + position[t]
        assert_allclose(got[b, 2 * t], item, rtol=1e-4, atol=1e-4)
        assert_allclose(got[b, 2 * t + 1], acted, rtol=1e-4, atol=1e-4)
    assert not np.asarray(got)[batch["actions"].repeat(2, axis=1) == 0].any()


@pytest.mark.integration
def test_rows_in_blocks_of_queries_are_the_same(monkeypatch):
    """Long rows attend some queries at a time: outputs and gradients are those of all at once."""
    batch = batch_of(ACTION)

    def value(m: Hstu) -> jax.Array:
        return m.loss(batch, EVALUATION).value

    whole = jax.jit(jax.value_and_grad(value))(model(ACTION))
    monkeypatch.setattr(hstu, "_LONG", 2)
    monkeypatch.setattr(hstu, "_BLOCK", 4)
    for got, want in zip(jax.tree.leaves(jax.jit(jax.value_and_grad(value))(model(ACTION))), jax.tree.leaves(whole), strict=True):
        assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# --- what a place sees ---


def test_an_output_sees_earlier_items_and_the_time_of_the_next():
    """An item that is changed changes no output before it; a time none but that of the place before it and later ones."""
    batch = batch_of(ITEM)
    before = np.asarray(outputs(ITEM)(batch))[0]
    for place in range(1, ITEM.length):
        other = batch["items"].copy()
        other[0, place] = other[0, place] % 28 + 1
        changed = np.abs(np.asarray(outputs(ITEM)(batch | {"items": other}))[0] - before).max(axis=-1) > 1e-6
        assert changed.tolist() == [t >= place for t in range(ITEM.length)]
        later = batch["times"] + (np.arange(ITEM.length) >= place) * 900_000
        changed = np.abs(np.asarray(outputs(ITEM)(batch | {"times": later}))[0] - before).max(axis=-1) > 1e-6
        assert changed[place - 1] and not changed[: place - 1].any()


def test_an_action_is_predicted_from_its_item_and_from_earlier_actions():
    """The output of an item does not change with the action on it, but those of all later items do."""
    batch = batch_of(ACTION)
    before = np.asarray(outputs(ACTION)(batch))[0, ::2]
    for place in range(ACTION.length):
        other = batch["actions"].copy()
        other[0, place] = 3 - other[0, place]
        changed = np.abs(np.asarray(outputs(ACTION)(batch | {"actions": other}))[0, ::2] - before).max(axis=-1) > 1e-6
        assert changed.tolist() == [t > place for t in range(ACTION.length)]


@BOTH
def test_empty_places_and_rows_change_nothing(c):
    """Outputs, loss, metrics and units do not depend on what stands there, nor on a row of such places."""
    batch = batch_of(c)
    used = batch["actions"] > 0
    other = batch | {name: np.where(used, batch[name], 7).astype(np.int32) for name in ("items", "times")}
    tokens = used.repeat(c.tokens // c.length, axis=1)
    assert_array_equal(np.asarray(outputs(c)(batch))[tokens], np.asarray(outputs(c)(other))[tokens])
    without = {name: x[:-1] for name, x in batch.items()}
    for a, b in ((batch, other), (batch, without)):
        for x, y in zip(jax.tree.leaves(loss(c, False)(a)), jax.tree.leaves(loss(c, False)(b)), strict=True):
            assert_allclose(x, y, rtol=1e-5, atol=1e-7)
    assert {k: int(v) for k, v in model(c).units(batch).items()} == {"interactions": int(used.sum()), "rows": 3}


@BOTH
def test_dropout_is_of_training_alone(c):
    """A pass that trains is random, by its key; one that scores is not."""
    batch = batch_of(c)
    draws = jax.jit(lambda key: model(c).loss(batch, training(key)).value)
    one, again, other = (float(draws(jax.random.key(n))) for n in (0, 0, 1))
    assert one == again != other and float(loss(c, False)(batch).value) not in (one, other)


# --- objectives ---


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-6)


@pytest.mark.parametrize("negatives", [0, 5])
def test_the_loss_of_next_items_is_a_softmax_of_cosines(negatives):
    """Over all items but row 0, or over the row's negatives that are not the item itself; at places from `start` on."""
    c = ITEM
    m, batch = model(c), batch_of(c)
    batch["start"] = np.array([0, 3, 1, 0], np.int32)
    if negatives:
        batch["negatives"] = np.random.default_rng(2).integers(1, c.items, (4, negatives)).astype(np.int32)
        batch["negatives"][0, 0] = batch["items"][0, 2]  # its own
    x, table = unit(np.asarray(outputs(c)(batch))), unit(np.asarray(m.tables.table[...])[0])
    losses, hits = [], []
    for b in range(4):
        for t in range(max(1, batch["start"][b]), int((batch["actions"][b] > 0).sum())):
            target = batch["items"][b, t]
            others = [i for i in (batch["negatives"][b] if negatives else range(1, c.items)) if i != target]
            own, logits = x[b, t - 1] @ table[target] / 0.05, x[b, t - 1] @ table[others].T / 0.05
            losses.append(np.logaddexp.reduce([own, *logits]) - own)
            hits.append(own >= logits.max())
    got = loss(c, False)(batch)
    assert_allclose(got.value, np.mean(losses), rtol=1e-4)
    assert_allclose(got.metrics["accuracy"].value, np.mean(hits), rtol=1e-6)


def test_held_out_items_are_ranked_among_all():
    """NDCG and hit rate of the place `start` are those of the literal ranking, without barred items and row 0."""
    c = dataclasses.replace(ITEM, items=60)
    m = model(c)
    batch = batch_of(c, rows=40)
    used = (batch["actions"] > 0).sum(axis=1)
    batch["start"] = np.maximum(used - 1, 0).astype(np.int32)
    barred = np.where(np.arange(c.length) < batch["start"][:, None], batch["items"], 0)
    barred[barred == batch["items"][np.arange(40), batch["start"]][:, None]] = 0
    batch["items"][5, batch["start"][5]] = 0  # an item that training lacks
    logits = np.asarray(jax.jit(lambda b: m(b))(batch | {"barred": barred}))
    ranks = []
    for b in np.flatnonzero(used > 1):
        target = batch["items"][b, batch["start"][b]]
        left = [i for i in range(1, c.items) if i not in barred[b]]
        ranks.append(sorted(left, key=lambda i: -logits[b, i]).index(target) + 1 if target else c.items)
    assert 0.1 < np.mean(np.array(ranks) <= 10) < 0.9
    got = loss(c, False)(batch | {"barred": barred}).metrics
    for name, want in metrics.of_ranks(np.array(ranks)).items():
        assert_allclose(got[name].value, want, rtol=1e-5)


def test_the_loss_of_actions_is_a_cross_entropy():
    """Logits are made of items' outputs by the head; used places from `start` on count; the model's outputs are those there."""
    c = ACTION
    m, batch = model(c), batch_of(c)
    batch["start"] = np.array([2, 0, 1, 0], np.int32)
    x = np.asarray(outputs(c)(batch))[:, ::2]
    head = {name: np.asarray(getattr(m.head, name)[...]) for name in ("into", "into_bias", "out", "out_bias")}
    x = np.array([[standard(place) for place in row] for row in x])
    logits = (silu(x @ head["into"] + head["into_bias"]) @ head["out"] + head["out_bias"])[..., 0]
    is_place = (batch["actions"] > 0) & (np.arange(c.length) >= batch["start"][:, None])
    p, label = 1 / (1 + np.exp(-logits[is_place])), batch["actions"][is_place] == 2
    got = loss(c, False)(batch)
    assert_allclose(got.value, -np.mean(np.log(np.where(label, p, 1 - p))), rtol=1e-4)
    assert_allclose(got.metrics["accuracy"].value, np.mean((p > 0.5) == label), rtol=1e-6)
    assert_allclose(got.metrics["calibration"].value, p.sum() / label.sum(), rtol=1e-4)
    assert_allclose(jax.jit(lambda b: m(b))(batch), logits[np.arange(4), batch["start"]], rtol=1e-4, atol=1e-5)


# --- sizes ---


@pytest.mark.parametrize(
    ("name", "rows", "others"),
    [
        ("hstu.ml_1m", (3_707, 3_840, 50), 200 * 50 + 2 * (50 * 200 + 51 * 50 + 200 + 129)),
        ("hstu.ml_1m_large", (3_707, 3_840, 50), 200 * 50 + 8 * (50 * 200 + 51 * 50 + 200 + 129)),
        (
            "hstu.dlrmv4",
            (10_000_000, 10_000_384, 256),
            256 * 512 + 4096 * 512 + 2 * 512 + 3 * (512 * 2048 + 2048 + 1536 * 512 + 8192 + 129 + 2 * 512 + 2 * 4) + 513 * 513,
        ),
    ],
)
def test_registered_models_have_the_parameters_of_their_shapes(name, rows, others):
    """The tower's, its inputs', and the table's with the rows that belong to no item; docstrings have the sums."""
    e = registry.load(name)
    items, placed, size = rows
    assert isinstance(e.model, HstuConfig) and e.model.items == items and e.model.placement.rows == placed
    count = tables.describe(e)["parameters"]
    assert count == placed * size + others
    assert f"{count:,}" in (registry.lookup(name).__doc__ or "")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(items=1), "model.items=1: must be at least 2"),
        (dict(heads=0), "model.heads=0: must be at least 1"),
        (dict(dropout=1.0), "model.dropout=1.0: must be from 0"),
        (dict(embedding_dim=4), "model.embedding_dim=4: .* the nearest is 8"),
        (dict(form="softmax"), "model.form='softmax': expected 'paper' or 'dlrm_v3'"),
        (dict(items=2**31), "ids are 32-bit"),
    ],
)
def test_impossible_sizes_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(ITEM, **fields)


def test_objectives_need_numbers_that_mean_something():
    with pytest.raises(UserError, match=r"temperature=0\.0: must be more than 0"):
        Retrieval(temperature=0.0)
    with pytest.raises(UserError, match="hidden=0: must be at least 1"):
        Ranking(hidden=0)
