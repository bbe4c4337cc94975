"""DLRM (arXiv 1906.00091) with DCNv2's cross layers (arXiv 2008.13535). B examples, D dense numbers, S ids, F tables, M elements
of a vector, X elements of all vectors side by side, R rank.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.dlrm.config import DlrmConfig
from models.dlrm.lookup import look_up
from models.dlrm.placement import Placement
from models.dlrm.rows import TableReader
from models.parts.layers import add_bias, project
from models.parts.losses import Loss, Ratio, Totals, per
from models.protocol import Batch, Context, HasOutputs, ReadsRows
from models.sharding.component import Component
from models.sharding.params import Initializer, normal, param, scan, stack_modules, zeros


def glorot(inputs: int, outputs: int) -> Initializer:
    """Returns Glorot's Gaussian initializer of a matrix."""
    return normal(math.sqrt(2 / (inputs + outputs)))


class Tables(nnx.Module):
    """Embedding tables of one group, in one array [bins, rows, M]; vectors begin uniform in +-1 / sqrt(rows of their table)."""

    def __init__(self, c: DlrmConfig, placement: Placement, key: jax.Array, scope: Component):
        self.scope, self.placement = scope, placement

        def uniform(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
            row_NR = jnp.broadcast_to(jnp.arange(shape[1]), shape[:2])
            bin_NR = jnp.arange(shape[0])[:, None]
            scale_NR = jnp.zeros(shape[:2], dtype)
            for b, start, rows in zip(placement.bin, placement.start, placement.sizes, strict=True):
                is_own = (bin_NR == b) & (row_NR >= start) & (row_NR < start + rows)
                scale_NR = jnp.where(is_own, rows**-0.5, scale_NR)
            return scale_NR[..., None] * jax.random.uniform(key, shape, dtype, -1.0, 1.0)

        self.shape = (placement.bins, placement.rows, c.embedding_dim)
        self.table = param(key, self.shape, ("bins", "vocab", "embed"), uniform, scope)

    @property
    def name(self) -> str:
        """The name of the table among the model's parameters."""
        return f"{self.scope.path}.table"

    def reader(self, examples: int) -> TableReader:
        """Returns what reads the rows of batches of so many examples."""
        return TableReader(self.placement, self.shape, examples, self.scope)

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns [B, F, M], a vector for each table of the group."""
        columns = np.array(self.placement.columns)
        ids_BS, weights_BS = batch["ids"][:, columns], batch["weights"][:, columns]
        with jax.named_scope(self.scope.path):  # by which a program's readers know whose exchanges these are
            if self.name in batch:  # rows that were read before, in the table's place
                return self.reader(len(ids_BS)).look_up(self.table[...], batch[self.name], weights_BS)
            return look_up(self.table[...], ids_BS, weights_BS, self.placement, self.scope)


class AllTables(nnx.Module):
    """The groups of tables, each a component."""

    def __init__(self, c: DlrmConfig, key: jax.Array, scope: Component):
        groups = c.placements
        for (name, placement), k in zip(groups.items(), jax.random.split(key, len(groups)), strict=True):
            setattr(self, name, Tables(c, placement, k, scope / name))
        self.groups = tuple(groups)
        numbers = [number for placement in groups.values() for number in placement.tables]
        self.order = tuple(numbers.index(i) for i in range(len(numbers)))

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns [B, F, M], in the order of the model's tables."""
        x_BFM = jnp.concatenate([getattr(self, name)(batch) for name in self.groups], axis=1)
        return x_BFM[:, np.array(self.order)]


class Linear(nnx.Module):
    """x w + b."""

    def __init__(self, inputs: int, outputs: int, key: jax.Array, scope: Component):
        self.scope = scope
        self.weight = param(key, (inputs, outputs), ("embed", "mlp"), glorot(inputs, outputs), scope)
        self.bias = param(key, (outputs,), ("mlp",), zeros, scope)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.scope.shard(add_bias(project(x, self.weight[...], self.scope), self.bias), "batch", "act_mlp")


class Mlp(nnx.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, inputs: int, widths: tuple[int, ...], key: jax.Array, scope: Component):
        self.depth = len(widths)
        sizes = zip((inputs, *widths), widths, jax.random.split(key, len(widths)), strict=False)
        for i, (before, after, k) in enumerate(sizes):
            setattr(self, f"layer_{i}", Linear(before, after, k, scope / f"layer_{i}"))

    def __call__(self, x: jax.Array) -> jax.Array:
        for i in range(self.depth):
            x = getattr(self, f"layer_{i}")(x if i == 0 else jax.nn.relu(x))
        return x


class CrossLayer(nnx.Module):
    """x0 * (W (V x) + b) + x, of low rank (DCNv2, equation 2)."""

    def __init__(self, size: int, rank: int, key: jax.Array, scope: Component):
        k1, k2 = jax.random.split(key)
        self.scope = scope
        self.down = param(k1, (size, rank), ("embed", "rank"), glorot(size, rank), scope)
        self.up = param(k2, (rank, size), ("rank", "embed"), glorot(rank, size), scope)
        self.bias = param(key, (size,), ("embed",), zeros, scope)

    def __call__(self, x_BX: jax.Array, x0_BX: jax.Array) -> jax.Array:
        low_BR = project(x_BX, self.down[...], self.scope, dense=True)
        y_BX = add_bias(project(low_BR, self.up[...], self.scope, dense=True), self.bias)
        return self.scope.shard(x0_BX * y_BX + x_BX, "batch", "act_embed")


def dot_products(x_BFM: jax.Array) -> jax.Array:
    """Returns [B, F (F - 1) / 2], the products of all pairs of different vectors (DLRM, section 2.1.4)."""
    first, second = np.tril_indices(x_BFM.shape[1], -1)
    return jnp.einsum("BFM,BGM->BFG", x_BFM, x_BFM)[:, first, second]


class Dlrm(nnx.Module, HasOutputs, ReadsRows):
    """Dense numbers by a network, ids by tables, the interaction of their vectors, and a network to the logit of a click."""

    coupled = ()

    def __init__(self, c: DlrmConfig, key: jax.Array, scope: Component):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        self.c, self.scope = c, scope
        self.tables = AllTables(c, k1, scope / "tables")
        self.bottom = Mlp(c.dense_features, c.bottom, k2, scope / "bottom") if c.dense_features else None

        def layer(key: jax.Array) -> CrossLayer:
            return CrossLayer(c.interacting, c.cross_rank, key, scope / "cross")

        self.cross = stack_modules(layer, k3, c.cross_layers) if c.interaction == "cross" else None
        self.top = Mlp(c.interacting, c.top, k4, scope / "top")

    def row_readers(self, examples: int) -> dict[str, TableReader]:
        """Returns what reads the rows of each group of tables."""
        groups = [getattr(self.tables, name) for name in self.tables.groups]
        return {group.name: group.reader(examples) for group in groups}

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns the logits [B] of a click, float32 at least."""
        x_BFM, dense_BM = self.tables(batch), []
        if self.bottom is not None:
            dense_BM = [jax.nn.relu(self.bottom(batch["dense"].astype(self.scope.dtype)))]
            x_BFM = jnp.concatenate([dense_BM[0][:, None], x_BFM], axis=1)
        if self.cross is None:
            x_BX = jnp.concatenate([*dense_BM, dot_products(x_BFM)], axis=-1)
        else:

            def cross(x_BX: jax.Array, layer: CrossLayer, x0_BX: jax.Array):
                return layer(x_BX, x0_BX), None

            x_BX = self.scope.shard(x_BFM.reshape(len(x_BFM), -1), "batch", None)
            x_BX, _ = scan(cross, x_BX, self.cross, x_BX, scope=self.scope / "cross", staged=False)
        logits_B = self.top(x_BX)[:, 0]
        return logits_B.astype(jnp.promote_types(logits_B.dtype, jnp.float32))

    def totals(self, batch: Batch) -> Totals:
        return {"examples": jnp.sum(batch["label"] >= 0)}

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns examples, and ids that are looked up."""
        is_example_B = batch["label"] >= 0
        return {"examples": jnp.sum(is_example_B), "ids": jnp.sum((batch["weights"] != 0) & is_example_B[:, None])}

    def loss(self, batch: Batch, context: Context, totals: Totals | None = None) -> Loss:
        """Returns the cross-entropy of the labels; rows with a label below 0 fill a batch up and count nothing.

        The metric "calibration" is the sum of probabilities over that of labels, "accuracy" that of decisions at one half.
        """
        totals = self.totals(batch) if totals is None else totals
        logits_B = self(batch)
        is_example_B = batch["label"] >= 0
        label_B = jnp.maximum(batch["label"], 0).astype(logits_B.dtype)

        def summed(x_B: jax.Array) -> jax.Array:
            return jnp.sum(jnp.where(is_example_B, x_B, 0))

        total = summed(jax.nn.softplus(logits_B) - label_B * logits_B)
        count = jnp.sum(is_example_B).astype(logits_B.dtype)
        right_B = ((logits_B > 0) == (label_B > 0.5)).astype(logits_B.dtype)
        metrics = {
            "cross_entropy": Ratio(total, count),
            "accuracy": Ratio(summed(right_B), count),
            "calibration": Ratio(summed(jax.nn.sigmoid(logits_B)), summed(label_B)),
        }
        value = per(total, totals["examples"])
        return Loss(value, jnp.zeros_like(value), metrics)
