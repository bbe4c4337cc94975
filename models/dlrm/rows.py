"""The rows of embedding tables that a batch reads, and changes of these alone (models.protocol.RowReader).

B rows of the batch on a device, S columns of ids, U distinct rows, K rows that a round brings to a device, P devices that have
different rows. Other letters are those of models/dlrm/lookup.py.

| rule of the component | a device reads the rows of | their gradients |
| --- | --- | --- |
| none, "embed" | the whole batch, whose ids are gathered | are summed over the devices that have the same part of the tables |
| "vocab", "bins" | its own part of the batch, by all-to-all | go to the rows' devices by all-to-all, and are added up there |
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from models.dlrm.lookup import (
    Cut,
    Exchange,
    Moves,
    by_columns,
    cut_of,
    distinct,
    fetch,
    is_alone,
    mapped,
    next_moves,
    numbers,
    rounds,
    rows_of,
    whole,
)
from models.dlrm.placement import Placement
from models.protocol import Batch, RowReader, Rows, RowUpdate
from models.sharding.component import Component
from models.sharding.layout import Axes


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the rows of an array of tables are.

    Attributes:
      peers: P, the devices that have different rows.
      own: bins of a device, and rows of them.
      gathered: mesh axes over which ids are gathered before rows are read.
      exchange: brings rows from their devices; None where each device has all of them.
    """

    cut: Cut
    peers: int
    own: tuple[int, int]
    gathered: Axes
    exchange: Exchange | None

    @property
    def block(self) -> int:
        """Rows of a device."""
        return math.prod(self.own)

    @property
    def specs(self) -> tuple[PartitionSpec, PartitionSpec]:
        """The PartitionSpecs of numbers [U] and vectors [U, M] of rows."""
        numbers = self.cut.axes if self.exchange else None
        return PartitionSpec(numbers), PartitionSpec(numbers, self.cut.axes if self.cut.name == "embed" else None)


@dataclasses.dataclass(frozen=True)
class TableReader(RowReader):
    """Reads the rows of an array of tables.

    Attributes:
      shape: of the array, [N, R, M].
      examples: of a batch, on all devices.
    """

    placement: Placement
    shape: tuple[int, int, int]
    examples: int
    scope: Component

    @property
    def reads(self) -> int:
        """The most rows that an example reads."""
        return len(self.placement.columns)

    @functools.cached_property
    def place(self) -> Place:
        """Where the rows are."""
        cut, (bins, rows, _) = cut_of(self.shape, self.examples, self.scope), self.shape
        if cut.name not in ("vocab", "bins"):
            return Place(cut, 1, (bins, rows), cut.batch, None)
        layout = self.scope.layout
        peers, devices = layout.num_shards(cut.axes), layout.num_shards(cut.batch)
        own = (bins, rows // peers) if cut.name == "vocab" else (bins // peers, rows)
        # Devices with the same part of the tables read the same rows, so that each has the sum of their gradients.
        gathered = tuple(axis for axis in cut.batch if axis not in cut.axes)
        ids = self.examples // devices * layout.num_shards(gathered) * self.reads
        return Place(cut, peers, own, gathered, Exchange.of(cut.axes, peers, ids, self.scope.dtype))

    def read(self, param: jax.Array, batch: Batch) -> Rows:
        """Returns the rows that a batch reads: the whole batch, or on each device its own part."""
        place, columns = self.place, np.array(self.placement.columns)
        bin_S, row_BS = rows_of(batch["ids"][:, columns], self.placement)
        number_BS = numbers(row_BS, batch["weights"][:, columns], bin_S, place.own, place.peers)

        def local(table_NRM: jax.Array, number_BS: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            every_BS = jax.lax.all_gather(number_BS, place.gathered, axis=0, tiled=True) if place.gathered else number_BS
            number_U, index_BS = distinct(every_BS, place.peers * place.block)
            if place.gathered:
                index_BS = index_BS.reshape(-1, *number_BS.shape)[jax.lax.axis_index(place.gathered)]
            rows_RM = table_NRM.reshape(-1, table_NRM.shape[-1])
            if place.exchange:
                return number_U, fetch(rows_RM, number_U, place.exchange), index_BS
            return number_U, rows_RM.at[number_U].get(mode="fill", fill_value=0), index_BS

        ids = PartitionSpec(place.cut.batch or None, None)
        read = self._mapped(local, (place.cut.spec, ids), (*place.specs, ids))
        with jax.named_scope(self.scope.path):
            return Rows(*read(param, number_BS))

    def look_up(self, values_UM: jax.Array, index_BS: jax.Array, weights_BS: jax.Array) -> jax.Array:
        """Returns [B, F, M] as `models.dlrm.lookup.look_up` does, from `Rows.values` and `Rows.index`."""
        cut, bin_S = self.place.cut, np.zeros(self.reads, np.int32)
        way = by_columns if cut.name == "embed" else whole
        local = functools.partial(way, bin_S=bin_S, placement=self.placement, axes=cut.axes, scope=self.scope)
        cut = dataclasses.replace(cut, spec=PartitionSpec(None, *self.place.specs[1]))
        return mapped(local, values_UM[None], index_BS, weights_BS, cut, self.scope)

    def summed(self, rows: Rows, gradient: jax.Array) -> tuple[Any, jax.Array]:
        """Returns the gradient by rows, and the sum of its squares.

        Where rows are exchanged, it is (what devices have of the rows that they read, what a first round brings of it to the
        rows' devices, where the next round begins).
        """
        block, peers, exchange = self.place.block, self.place.peers, self.place.exchange
        if exchange is None:
            return (rows.numbers, gradient), jnp.sum(gradient * gradient)

        def local(number_U: jax.Array, d_UM: jax.Array) -> tuple[Any, jax.Array]:
            moves, next_P = next_moves(jnp.arange(peers, dtype=number_U.dtype) * block, number_U, block, exchange)
            first = _brought(moves, d_UM, block, exchange)

            def add(moves: Moves, squares: jax.Array) -> jax.Array:
                return squares + _squares(_brought(moves, d_UM, block, exchange)[1])

            squares = rounds(add, _squares(first[1]), number_U, block, exchange, since=next_P)
            return ((number_U, d_UM), first, next_P), jax.lax.psum(squares, exchange.axes)

        out = ((self.place.specs, self.place.specs, PartitionSpec()), PartitionSpec())
        with jax.named_scope(self.scope.path):
            return self._mapped(local, self.place.specs, out)(rows.numbers, gradient)

    def change(self, gradient: Any, arrays: Sequence[jax.Array], shared: Any, update: RowUpdate) -> list[jax.Array]:
        """Returns arrays with the rows changed that the gradient is of, each device its own."""
        block, exchange = self.place.block, self.place.exchange
        with jax.named_scope(self.scope.path):
            if exchange is None:
                return _changed(gradient[0], gradient[1], arrays, shared, update)

            def local(gradient: Any, arrays: Sequence[jax.Array], shared: Any) -> list[jax.Array]:
                (number_U, d_UM), first, next_P = gradient

                def change(moves: Moves, arrays: Sequence[jax.Array]) -> list[jax.Array]:
                    number_K, d_KM = _brought(moves, d_UM, block, exchange)
                    return _changed(number_K, d_KM, arrays, shared, update)

                changed = _changed(first[0], first[1], arrays, shared, update)
                return rounds(change, changed, number_U, block, exchange, since=next_P)

            specs = [PartitionSpec(*self.place.cut.spec[: x.ndim]) for x in arrays]
            of_gradient = (self.place.specs, self.place.specs, PartitionSpec())
            return self._mapped(local, (of_gradient, specs, PartitionSpec()), specs)(gradient, list(arrays), shared)

    def _mapped(self, local: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """Returns a function of arrays that are cut, from one of what each device has of them."""
        if is_alone(self.scope):
            return local
        return jax.shard_map(local, mesh=self.scope.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _squares(d_KM: jax.Array) -> jax.Array:
    return jnp.sum(d_KM * d_KM)


def _brought(moves: Moves, d_UM: jax.Array, block: int, exchange: Exchange) -> tuple[jax.Array, jax.Array]:
    """Returns what a round brings to a device: the numbers [K] of distinct rows, and their gradients [K, M], added up."""
    dy_PCM = d_UM.at[moves.place_PC].get(mode="fill", fill_value=0).astype(exchange.dtype)
    number_K, index_PC = distinct(moves.asked_PC, block)
    d_KM = jnp.zeros((len(number_K), d_UM.shape[-1]), d_UM.dtype)
    return number_K, d_KM.at[index_PC].add(exchange(dy_PCM).astype(d_UM.dtype))


def _changed(
    number_K: jax.Array, d_KM: jax.Array, arrays: Sequence[jax.Array], shared: Any, update: RowUpdate
) -> list[jax.Array]:
    """Returns arrays [N, R, ...] with some of their N R rows changed; a number that is no row's changes nothing."""
    flat = [x.reshape(-1, *x.shape[2:]) for x in arrays]
    rows = update(d_KM, [x.at[number_K].get(mode="fill", fill_value=0) for x in flat], shared)
    changed = [
        x.at[number_K].set(y, mode="drop", indices_are_sorted=True, unique_indices=True) for x, y in zip(flat, rows, strict=True)
    ]
    return [x.reshape(own.shape) for x, own in zip(changed, arrays, strict=True)]
