"""DLRM: its size, lookups, interactions and loss beside definitions written out."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from configs.dlrm import HOTNESS, ROWS
from models.dlrm.config import DlrmConfig, Table
from models.dlrm.layouts import row_wise
from models.dlrm.lookup import Exchange, fetch, look_up
from models.dlrm.model import CrossLayer, Dlrm, dot_products
from models.dlrm.placement import place
from models.errors import UserError
from models.protocol import Context
from models.sharding.component import Component, make_mesh
from models.sharding.layouts import ONE_DEVICE
from tests.helpers.contexts import EVALUATION, training
from tests.helpers.models import compiled
from trainers.hlo import tables

WHERE = Component(ONE_DEVICE)
SMALL = DlrmConfig(
    tables=(Table(rows=3), Table(rows=90, hotness=3), Table(rows=20, hotness=2), Table(rows=70)),
    dense_features=2,
    embedding_dim=4,
    bottom=(8, 4),
    cross_layers=2,
    cross_rank=3,
    top=(8, 1),
    small=10,
    large=64,
    bins=(2, 2, 2),
)


@functools.cache
def model(c: DlrmConfig = SMALL) -> Dlrm:
    return jax.jit(lambda key: Dlrm(c, key, WHERE))(jax.random.key(0))


@jax.jit
def loss_of(m: Dlrm, batch: dict[str, Any], context: Context) -> Any:
    return m.loss(batch, context)


def batch_of(c: DlrmConfig, rows: int, seed: int = 0) -> dict[str, Any]:
    """Rows with ids beyond their tables' rows, empty columns, and weights that are no whole numbers."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 2, size=(rows, c.slots)) * (rng.random((rows, c.slots)) < 0.7)
    return {
        "dense": rng.normal(size=(rows, c.dense_features)).astype(np.float32),
        "ids": rng.integers(0, 1000, size=(rows, c.slots)).astype(np.int32),
        "weights": weights.astype(np.float32),
        "label": (rng.random(rows) < 0.5).astype(np.float32),
    }


def vectors(m: Dlrm, batch: dict[str, Any]) -> np.ndarray:
    """[B, F, M] by loops over examples, tables and columns."""
    c, out, column = m.c, np.zeros((len(batch["label"]), len(m.c.tables), m.c.embedding_dim)), 0
    for f, table in enumerate(c.tables):
        name = c.group(table)
        placement, array = c.placements[name], np.asarray(getattr(m.tables, name).table[...])
        at = placement.tables.index(f)
        for _ in range(table.hotness):
            for b, (i, w) in enumerate(zip(batch["ids"][:, column], batch["weights"][:, column], strict=True)):
                out[b, f] += w * array[placement.bin[at], placement.start[at] + i % table.rows]
            column += 1
    return out


def test_mlperfs_model_has_the_parameters_of_its_shapes():
    """204,184,588 rows in 26 tables, counted without the rows that only fill bins up, and 16,044,545 beside them."""
    e = registry.load("dlrm.dcnv2")
    assert sum(ROWS) == 204_184_588 and len(ROWS) == len(HOTNESS) == 26 and sum(HOTNESS) == 214
    bottom = 14 * 512 + 513 * 256 + 257 * 128
    size = 27 * 128
    cross = 3 * (2 * size * 512 + size)
    top = (size + 1) * 1024 + 1025 * 1024 + 1025 * 512 + 513 * 256 + 257
    assert isinstance(e.model, DlrmConfig)
    placements = e.model.placements.values()
    filling = sum(p.bins * p.rows - sum(p.sizes) for p in placements)
    described = tables.describe(e)["parameters"]
    assert described - 128 * filling == 128 * 204_184_588 + bottom + cross + top == 26_151_671_809
    assert filling < 0.0003 * sum(ROWS)


def test_tables_lie_whole_and_apart_in_their_bins():
    """Every row has a place of its own, in bins of about equal load."""
    sizes = (5, 40, 17, 3, 3, 30)
    placement = place(sizes, range(6), [(i, i + 1) for i in range(6)], bins=3)
    places = [
        (b, start + row) for b, start, size in zip(placement.bin, placement.start, sizes, strict=True) for row in range(size)
    ]
    assert len(set(places)) == sum(sizes) and max(row for _, row in places) < placement.rows == 40
    assert placement.rows % 8 == 0 and {b for b, _ in places} == {0, 1, 2}


def test_vectors_begin_as_their_tables_say():
    """Uniform in +-1 / sqrt(rows), and 0 in rows that belong to no table."""
    for name, placement in SMALL.placements.items():
        array = np.abs(np.asarray(getattr(model().tables, name).table[...]))
        used = np.zeros(array.shape[:2], bool)
        for b, start, rows in zip(placement.bin, placement.start, placement.sizes, strict=True):
            own = array[b, start : start + rows]
            used[b, start : start + rows] = True
            assert own.max() <= rows**-0.5 and (rows < 20 or own.max() > 0.9 * rows**-0.5), (name, rows)
        assert not array[~used].any()


def test_lookups_are_weighted_sums_of_vectors():
    """Against loops; ids beyond a table's rows are taken modulo, and what stands in empty columns does not matter."""
    batch = batch_of(SMALL, 6)
    looked_up = jax.jit(lambda m, b: m.tables(b))
    got = looked_up(model(), batch)
    assert_allclose(got, vectors(model(), batch), rtol=1e-5, atol=1e-6)
    other = batch | {"ids": np.where(batch["weights"] == 0, 1, batch["ids"]).astype(np.int32)}
    assert_array_equal(looked_up(model(), other), got)


@pytest.mark.integration
@pytest.mark.parametrize("ids", ["spread", "one row", "one device"])
def test_no_lookup_is_dropped_however_uneven_ids_are(ids):
    """With rows over eight devices, lookups and gradients are those of one device: for spread ids, for the same id everywhere,
    and for many different ids of one device, which take several rounds."""
    c = dataclasses.replace(SMALL, tables=(Table(rows=4096, hotness=4),), bins=(1, 1, 1))
    placement = c.placements["large"]
    rng = np.random.default_rng(0)
    draws = {
        "spread": rng.integers(0, 4096, (64, 4)),
        "one row": np.full((64, 4), 77),
        "one device": np.arange(256).reshape(64, 4),
    }
    ids_BS = draws[ids]
    weights_BS = rng.uniform(0.5, 1, (64, 4)).astype(np.float32)
    table = rng.normal(size=(1, 4096, 4)).astype(np.float32)
    pull_BFM = rng.normal(size=(64, 1, 4)).astype(np.float32)
    layout = row_wise(2, 4)
    cut = Component(layout, mesh=make_mesh(layout)) / "tables"

    def gradient(scope: Component):
        def pulled(table: jax.Array) -> tuple[jax.Array, jax.Array]:
            x_BFM = look_up(table, jnp.asarray(ids_BS, jnp.int32), jnp.asarray(weights_BS), placement, scope)
            return jnp.sum(x_BFM * pull_BFM), x_BFM

        return jax.jit(jax.grad(pulled, has_aux=True))(table)

    for got, want in zip(gradient(cut), gradient(WHERE), strict=True):
        assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_rounds_ask_for_every_number_once():
    """Two devices with places for two rows in a round, of which one asks for all rows of the other: five rounds."""
    rows_RM = np.arange(40, dtype=np.float32).reshape(20, 2)
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    number_U = np.array([*range(10, 20), *[20] * 2, 0, 3, 9, 11, 19, *[20] * 7], np.int32)
    spec = jax.sharding.PartitionSpec("x")

    def local(rows_RM: jax.Array, number_U: jax.Array) -> jax.Array:
        return fetch(rows_RM, number_U, Exchange(("x",), 2, 2, jnp.float32))

    got = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False))(rows_RM, number_U)
    want = np.where(number_U[:, None] < 20, rows_RM[np.minimum(number_U, 19)], 0)
    assert_array_equal(got, want)


def test_cross_layers_are_their_definition():
    """x0 * (W (V x) + b) + x, in NumPy."""
    layer = jax.jit(lambda key: CrossLayer(6, 2, key, WHERE))(jax.random.key(1))
    rng = np.random.default_rng(0)
    layer.bias[...] = jnp.asarray(rng.normal(size=6), jnp.float32)
    x, x0 = rng.normal(size=(2, 5, 6)).astype(np.float32)
    down, up, bias = (np.asarray(p[...]) for p in (layer.down, layer.up, layer.bias))
    want = np.stack([x0[b] * (up.T @ (down.T @ x[b]) + bias) + x[b] for b in range(5)])
    assert_allclose(jax.jit(lambda layer, x, x0: layer(x, x0))(layer, x, x0), want, rtol=1e-5, atol=1e-6)


def test_dot_interaction_has_each_pair_once():
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    want = np.stack([[x[b, i] @ x[b, j] for i in range(4) for j in range(i)] for b in range(3)])
    assert_allclose(dot_products(jnp.asarray(x)), want, rtol=1e-5, atol=1e-6)


@pytest.mark.integration
@pytest.mark.parametrize(("interaction", "dense_features"), [("cross", 2), ("dot", 2), ("cross", 0), ("dot", 0)])
def test_the_whole_network_is_its_definition(interaction, dense_features):
    """Logits and loss of both interactions, with dense numbers and without, in NumPy."""
    c = dataclasses.replace(SMALL, interaction=interaction, dense_features=dense_features)
    m, batch = model(c), batch_of(c, 6)

    def mlp(x: np.ndarray, part) -> np.ndarray:
        for i in range(part.depth):
            layer = getattr(part, f"layer_{i}")
            x = (x if i == 0 else np.maximum(x, 0)) @ np.asarray(layer.weight[...]) + np.asarray(layer.bias[...])
        return x

    dense, x = np.zeros((6, 0)), vectors(m, batch)
    if dense_features:
        dense = np.maximum(mlp(batch["dense"], m.bottom), 0)
        x = np.concatenate([dense[:, None], x], axis=1)
    if m.cross is not None:
        flat = x0 = x.reshape(6, -1)
        for down, up, bias in zip(m.cross.down[...], m.cross.up[...], m.cross.bias[...], strict=True):
            flat = x0 * (flat @ np.asarray(down) @ np.asarray(up) + np.asarray(bias)) + flat
    else:
        flat = np.concatenate(
            [dense, np.stack([(x[:, i] * x[:, j]).sum(-1) for i in range(x.shape[1]) for j in range(i)], -1)], -1
        )
    logits = mlp(flat, m.top)[:, 0]
    assert_allclose(compiled(m, batch), logits, rtol=1e-4, atol=1e-5)
    p, y = 1 / (1 + np.exp(-logits)), batch["label"]
    loss = loss_of(m, batch, training())
    assert_allclose(loss.value, -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)), rtol=1e-4)
    assert_allclose(loss.metrics["calibration"].value, p.sum() / y.sum(), rtol=1e-4)
    assert_allclose(loss.metrics["accuracy"].value, np.mean((p > 0.5) == y), rtol=1e-6)


def test_rows_that_fill_a_batch_up_change_nothing():
    """They have label -1: loss, metrics and units are those without them."""
    batch = batch_of(SMALL, 6)
    filled: dict[str, Any] = {k: np.concatenate([x, np.full_like(x[:2], -1 if k == "label" else 0)]) for k, x in batch.items()}
    one, two = (loss_of(model(), b, EVALUATION) for b in (batch, filled))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert_allclose(a, b, rtol=1e-6)
    assert {k: int(v) for k, v in model().units(filled).items()} == {k: int(v) for k, v in model().units(batch).items()}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(tables=()), "0 tables"),
        (dict(bottom=(8, 5)), r"bottom=\(8, 5\): must end with embedding_dim=4"),
        (dict(top=(8, 2)), r"top=\(8, 2\): must end with 1"),
        (dict(cross_rank=0), "cross_rank=0: must be at least 1"),
        (dict(tables=(Table(rows=2**31),)), "ids are 32-bit"),
    ],
)
def test_impossible_sizes_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(SMALL, **fields)


def test_a_table_has_rows():
    with pytest.raises(UserError, match="rows=0: must be at least 1"):
        Table(rows=0)
