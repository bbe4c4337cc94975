"""Rows of DLRM's tables that a batch reads: lookups, gradients and changes are those of whole tables, under every layout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from models.dlrm.config import DlrmConfig, Table
from models.dlrm.layouts import LAYOUTS
from models.dlrm.lookup import look_up
from models.dlrm.rows import TableReader
from models.execution import Execution
from models.sharding.component import Component, make_mesh
from models.sharding.layout import Layout
from models.sharding.layouts import ONE_DEVICE

EXACT = Execution(dtype="float64")
HOTNESS, ROWS, EXAMPLES = (3, 1, 2, 1), (600, 900, 700, 500), 16
C = DlrmConfig(
    tables=tuple(Table(rows=n, hotness=h) for n, h in zip(ROWS, HOTNESS, strict=True)),
    embedding_dim=8,
    bottom=(8,),
    top=(1,),
    small=10,
    large=100,
    bins=(1, 1, 8),
)
PLACEMENT = C.placements["large"]
SHAPE = (PLACEMENT.bins, PLACEMENT.rows, C.embedding_dim)


def drawn(ids: str) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shape = EXAMPLES, C.slots
    draws = {
        "spread": rng.integers(0, 1000, shape),
        "one row": np.full(shape, 77),
        "neighbours": np.arange(EXAMPLES * C.slots).reshape(shape) % 60,
    }
    weights = rng.uniform(0.5, 1, shape) * (rng.random(shape) < 0.8)
    return {"ids": jnp.asarray(draws[ids], jnp.int32), "weights": jnp.asarray(weights)}


def adagrad(g_KM: jax.Array, rows: Any, shared: jax.Array) -> list[jax.Array]:
    table_KM, squares_K = rows
    squares_K = squares_K + jnp.mean(g_KM * g_KM, axis=-1)
    return [table_KM - shared * g_KM / jnp.sqrt(squares_K)[..., None], squares_K]


def changed_whole(table: jax.Array, squares: jax.Array, batch: Any, pull: jax.Array) -> Any:
    """The same step by the gradient of the whole table on one device."""
    where = Component(ONE_DEVICE, execution=EXACT)

    def pulled(table: jax.Array) -> Any:
        x_BFM = look_up(table, batch["ids"], batch["weights"], PLACEMENT, where)
        return jnp.sum(x_BFM * pull), x_BFM

    g, x_BFM = jax.grad(pulled, has_aux=True)(table)
    return x_BFM, jnp.sum(g * g), adagrad(g, (table, squares), jnp.asarray(0.1))


def changed_by_rows(layout: Layout) -> Any:
    where = Component(layout, mesh=make_mesh(layout) if layout.devices > 1 else None, execution=EXACT) / "tables.large"
    reader = TableReader(PLACEMENT, SHAPE, EXAMPLES, where)

    def step(table: jax.Array, squares: jax.Array, batch: Any, pull: jax.Array) -> Any:
        rows = reader.read(table, batch)

        def pulled(values: jax.Array) -> Any:
            x_BFM = reader.look_up(values, rows.index, batch["weights"])
            return jnp.sum(x_BFM * pull), x_BFM

        g, x_BFM = jax.grad(pulled, has_aux=True)(rows.values)
        gradient, norm = reader.summed(rows, g)
        return x_BFM, norm, reader.change(gradient, [table, squares], jnp.asarray(0.1), adagrad)

    return jax.jit(step)


@pytest.mark.integration
@pytest.mark.parametrize("ids", ["spread", "one row", "neighbours"])
@pytest.mark.parametrize("layout", ["one_device", *LAYOUTS])
def test_rows_are_read_and_changed_as_whole_tables_are(layout, ids, float64):
    """Sums of vectors, the gradient's norm, the table and its sums of squares equal those of whole tables to 1e-9; rows that no
    id names keep every bit. Ids that are neighbours are of one device, and take several rounds."""
    rng = np.random.default_rng(1)
    batch, pull = drawn(ids), jnp.asarray(rng.normal(size=(EXAMPLES, len(ROWS), SHAPE[-1])))
    table, squares = jnp.asarray(rng.normal(size=SHAPE)), jnp.full(SHAPE[:2], 0.1)
    arguments = table, squares, batch, pull
    got = changed_by_rows(LAYOUTS[layout](2, 4) if layout in LAYOUTS else ONE_DEVICE)(*arguments)
    want = jax.jit(changed_whole)(*arguments)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    untouched = np.asarray(want[2][1] == squares)
    assert 0.5 < untouched.mean() < 1
    assert_array_equal(np.asarray(got[2][0])[untouched], np.asarray(table)[untouched])
    assert_array_equal(np.asarray(got[2][1])[untouched], np.asarray(squares)[untouched])
