"""Lookups in embedding tables, whole or cut, with the exchanges between devices written down; no table is ever gathered.

B rows of a device, S columns of ids, F tables, M elements of a vector, N bins, R rows of a bin, P devices that a table is cut
over, U distinct ids, C ids that a device asks of another in a round.

| rule of the component | tables are | between devices |
| --- | --- | --- |
| none | whole | nothing; gradients are summed |
| "vocab" | cut by rows | all-to-all of distinct ids, and of their vectors back |
| "embed" | cut by columns | all-gather of ids, all-to-all of sums of vectors |
| "bins" | on devices of their own | all-to-all of ids, and of sums of vectors back |

Backward, vectors' gradients go the same ways in the other direction, and are added up where the rows are. Empty columns (weight
0) are asked of nobody where rows are cut.
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

from models.dlrm.placement import Placement
from models.sharding.component import Component
from models.sharding.layout import Axes, LayoutError

SLACK = 1.25  # places for ids in a round, relative to an even share of them
AXES = ("bins", "vocab", "embed")


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a layout cuts an array of tables, and what its ids come in.

    Attributes:
      name: the dimension that is cut, of `AXES`; "" where tables are whole.
      axes: the mesh axes that cut it.
      spec: the array's PartitionSpec.
      batch: the mesh axes that cut the rows of a batch.
    """

    name: str
    axes: Axes
    spec: PartitionSpec
    batch: Axes


WHOLE = Cut("", (), PartitionSpec(), ())


def is_alone(scope: Component) -> bool:
    """Returns whether there is one device, which needs no exchange: CPUs copy what it would sum."""
    return scope.mesh is None or scope.mesh.size == 1


def cut_of(shape: Sequence[int], rows: int, scope: Component) -> Cut:
    """Returns how an array of tables [N, R, M] is cut, for a batch of so many rows.

    Raises:
      LayoutError: tables are cut in two dimensions, or over devices that have the same rows of the batch.
    """
    if is_alone(scope):
        return WHOLE
    cuts = scope.layout.cut(AXES, shape, component=scope.path, tensor="the tables", manual=True)
    cut = [(name, axes) for name, axes in zip(AXES, cuts, strict=True) if scope.layout.num_shards(axes) > 1]
    (batch,) = scope.layout.cut(("batch",), (rows,), component=scope.path, tensor="ids", manual=True)
    if len(cut) > 1:
        raise LayoutError(
            f"layout {scope.layout.name!r}, component {scope.path!r}: tables are cut in one dimension, not in "
            f"{' and '.join(repr(name) for name, _ in cut)}"
        )
    name, axes = cut[0] if cut else ("", ())
    if not set(axes) <= set(scope.layout.resolve(scope.path).get("batch", ())):
        raise LayoutError(
            f"layout {scope.layout.name!r}, component {scope.path!r}: rule {name!r} -> {axes} cuts tables over devices that have "
            f"the same rows; 'batch' must be cut by these axes, too"
        )
    return Cut(name, axes, PartitionSpec(*(tuple(axes) or None for axes in cuts)), batch)


def rows_of(ids_BS: jax.Array, placement: Placement) -> tuple[np.ndarray, jax.Array]:
    """Returns the bin of each column, and int32 [B, S], the rows of ids in them: ids are modulo their tables' rows."""
    sizes, start, bin_S = (np.array(placement.by_column(x), np.int32) for x in (placement.sizes, placement.start, placement.bin))
    return bin_S, jnp.asarray(start) + ids_BS % jnp.asarray(sizes)


def look_up(table_NRM: jax.Array, ids_BS: jax.Array, weights_BS: jax.Array, placement: Placement, scope: Component) -> jax.Array:
    """Returns [B, F, M] in the scope's dtype: of each table, the weighted sum of the vectors of its ids.

    Args:
      table_NRM: the array of all tables.
      ids_BS: int32, at least 0: ids of this placement's columns, modulo their tables' rows.
      weights_BS: 0 in columns without an id.
      scope: the component of the tables; its layout says how they are cut.

    Raises:
      LayoutError: tables are cut in a way that is not offered, see `cut_of`.
    """
    cut = cut_of(table_NRM.shape, len(ids_BS), scope)
    bin_S, row_BS = rows_of(ids_BS, placement)
    ways = {"": whole, "vocab": _by_rows, "embed": by_columns, "bins": _by_tables}
    local = functools.partial(ways[cut.name], bin_S=bin_S, placement=placement, axes=cut.axes, scope=scope)
    return mapped(local, table_NRM, row_BS, weights_BS, cut, scope)


def mapped(
    local: Callable[..., jax.Array], table_NRM: jax.Array, row_BS: jax.Array, weights_BS: jax.Array, cut: Cut, scope: Component
) -> jax.Array:
    """Returns [B, F, M] of what each device does with its part of the tables and of the batch."""
    weights_BS = weights_BS.astype(table_NRM.dtype)
    if is_alone(scope):
        return local(table_NRM, row_BS, weights_BS)
    batch = cut.batch or None
    # Unchecked: a table that is whole on some devices gets its gradients summed over them either way.
    return jax.shard_map(
        local,
        mesh=scope.mesh,
        in_specs=(cut.spec, PartitionSpec(batch, None), PartitionSpec(batch, None)),
        out_specs=PartitionSpec(batch, None, None),
        check_vma=False,
    )(table_NRM, row_BS, weights_BS)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _sums(rows_RM: jax.Array, number_BS: jax.Array, weights_BS: jax.Array, hotness: tuple[int, ...], on_cpu: bool) -> jax.Array:
    """Returns [B, F, M], the weighted sums of the vectors of consecutive columns.

    The derivative of a slice is padded with zeros, and on CPUs XLA asks for each element of the sum of all of them which slice it
    is in; here it is repeated. There it also adds up one number at a time what it looks up for that alone.

    Args:
      number_BS: all of them within the rows.
    """

    def weighed(columns: slice) -> jax.Array:
        return rows_RM.at[number_BS[:, columns]].get(mode="promise_in_bounds") * weights_BS[:, columns, None]

    if set(hotness) == {1}:
        return weighed(slice(None))
    columns = [slice(end - n, end) for end, n in zip(np.cumsum(hotness), hotness, strict=True)]
    if on_cpu:
        parts_BSM = [jax.lax.optimization_barrier(weighed(own)) for own in columns]
    else:
        x_BSM = weighed(slice(None))
        parts_BSM = [x_BSM[:, own] for own in columns]
    return jnp.stack([jnp.sum(x_BSM, axis=1) for x_BSM in parts_BSM], axis=1)


def _sums_and_inputs(rows_RM: jax.Array, number_BS: jax.Array, weights_BS: jax.Array, hotness: tuple[int, ...], on_cpu: bool):
    return _sums(rows_RM, number_BS, weights_BS, hotness, on_cpu), (rows_RM, number_BS, weights_BS)


def _of_inputs(hotness: tuple[int, ...], on_cpu: bool, inputs: tuple[jax.Array, ...], dx_BFM: jax.Array):
    rows_RM, number_BS, weights_BS = inputs
    dx_BSM = dx_BFM.at[:, np.repeat(np.arange(len(hotness)), hotness)].get(mode="promise_in_bounds")
    d_RM = jnp.zeros_like(rows_RM).at[number_BS].add(dx_BSM * weights_BS[..., None], mode="promise_in_bounds")
    return d_RM, None, jnp.sum(dx_BSM * rows_RM.at[number_BS].get(mode="promise_in_bounds"), axis=-1)


_sums.defvjp(_sums_and_inputs, _of_inputs)


def _looked_up(table_NRM, row_BS, weights_BS, bin_S: np.ndarray, placement: Placement, scope: Component) -> jax.Array:
    """Returns [B, F, M], the weighted sums of the vectors of rows in their columns' bins."""
    _, rows, size = table_NRM.shape
    number_BS = jnp.asarray(bin_S * rows) + row_BS
    if scope.on_cpu:  # where XLA would compute a number again for each element of its vector
        number_BS = jax.lax.optimization_barrier(number_BS)
    x_BFM: jax.Array = _sums(table_NRM.reshape(-1, size), number_BS, weights_BS, placement.hotness, scope.on_cpu)
    return x_BFM.astype(scope.dtype)


def whole(table_NRM, row_BS, weights_BS, *, bin_S, placement: Placement, axes: Axes, scope: Component) -> jax.Array:
    """Each device sums the vectors of its rows of the batch."""
    return _looked_up(table_NRM, row_BS, weights_BS, bin_S, placement, scope)


def by_columns(table_NRM, row_BS, weights_BS, *, bin_S, placement: Placement, axes: Axes, scope: Component) -> jax.Array:
    """Each device sums its elements of the vectors of all rows of the batch."""
    row_BS, weights_BS = (jax.lax.all_gather(x, axes, axis=0, tiled=True) for x in (row_BS, weights_BS))
    x_BFM = _looked_up(table_NRM, row_BS, weights_BS, bin_S, placement, scope)
    return jax.lax.all_to_all(x_BFM, axes, split_axis=0, concat_axis=2, tiled=True)


def _by_tables(table_NRM, row_BS, weights_BS, *, bin_S, placement: Placement, axes: Axes, scope: Component) -> jax.Array:
    """Each device sums the vectors of its own tables for all rows of the batch."""
    own, rows, size = table_NRM.shape
    peers = placement.bins // own
    tables = [[f for f, b in enumerate(placement.bin) if b // own == p] for p in range(peers)]
    table_S = np.repeat(np.arange(len(placement.tables)), placement.hotness)
    columns = [np.flatnonzero(np.isin(table_S, of_peer)) for of_peer in tables]
    # The same number of columns, and of tables, for each peer: those that it has fewer are empty, their weights 0.
    most, most_tables = max(map(len, columns)), max(map(len, tables))
    column_PS = np.full((peers, most), len(table_S))
    sums_PSF = np.zeros((peers, most, most_tables))
    for p, of_peer in enumerate(columns):
        column_PS[p, : len(of_peer)] = of_peer
        sums_PSF[p, np.arange(len(of_peer)), [tables[p].index(f) for f in table_S[of_peer]]] = 1

    def sent(x_BS: jax.Array) -> jax.Array:
        x_BPS = jnp.pad(x_BS, ((0, 0), (0, 1)))[:, column_PS]
        return jax.lax.all_to_all(x_BPS, axes, split_axis=1, concat_axis=0, tiled=True)[:, 0]

    row_BS, weights_BS = sent(jnp.asarray(bin_S % own * rows) + row_BS), sent(weights_BS)
    x_BSM = table_NRM.reshape(-1, size)[row_BS] * weights_BS[..., None]
    sums_SF = jnp.asarray(sums_PSF, x_BSM.dtype)[jax.lax.axis_index(axes)]
    x_BFM = jnp.einsum("BSM,SF->BFM", x_BSM, sums_SF, precision="highest").astype(scope.dtype)
    x_BFM = jax.lax.all_to_all(x_BFM, axes, split_axis=0, concat_axis=1, tiled=True)
    place = {f: p * most_tables + i for p, of_peer in enumerate(tables) for i, f in enumerate(of_peer)}
    return x_BFM[:, np.array([place[f] for f in range(len(placement.tables))])]


# --- cut by rows --------------------------------------------------------------------------------------------------


def _by_rows(table_NRM, row_BS, weights_BS, *, bin_S, placement: Placement, axes: Axes, scope: Component) -> jax.Array:
    """Each device asks the others for the vectors of the distinct rows that it needs, and sums them."""
    bins, own, size = table_NRM.shape
    peers, block = placement.rows // own, bins * own
    number_BS = numbers(row_BS, weights_BS, bin_S, (bins, own), peers)
    number_U, index_BS = distinct(number_BS, peers * block)
    x_UM: jax.Array = fetch(table_NRM.reshape(block, size), number_U, Exchange.of(axes, peers, number_BS.size, scope.dtype))
    x_BFM: jax.Array = _sums(x_UM, index_BS, weights_BS, placement.hotness, scope.on_cpu)
    return x_BFM.astype(scope.dtype)


def numbers(row_BS: jax.Array, weights_BS: jax.Array, bin_S: np.ndarray, own: tuple[int, int], peers: int) -> jax.Array:
    """Returns int32 [B, S], a number for each row, by the device that has it; that of an empty column is behind all of them.

    Args:
      own: bins and rows of them that a device has; it has all of the one or of the other.
    """
    bins, rows = own
    owner_BS = row_BS // rows + jnp.asarray(bin_S // bins)
    number_BS = owner_BS * (bins * rows) + jnp.asarray(bin_S % bins * rows) + row_BS % rows
    return jnp.where(weights_BS == 0, peers * bins * rows, number_BS)


def distinct(number: jax.Array, behind: int) -> tuple[jax.Array, jax.Array]:
    """Returns (numbers [U] in ascending order, each once, and `behind` in places that are left; the index of each number)."""
    size = min(math.prod(number.shape), behind + 1)
    number_U, index = jnp.unique(number, return_inverse=True, size=size, fill_value=behind)
    return number_U, index.reshape(number.shape)


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The exchange of ids and vectors between devices that have rows of the same tables.

    Attributes:
      axes: the mesh axes that it goes over.
      peers: P, the devices along them.
      places: C, the most rows that a device asks of each peer in a round.
      dtype: of vectors as they are sent.
    """

    axes: Axes
    peers: int
    places: int
    dtype: Any

    @classmethod
    def of(cls, axes: Axes, peers: int, n: int, dtype: Any) -> "Exchange":
        """Returns the exchange of up to n ids of each device."""
        return cls(axes, peers, min(n, max(1, math.ceil(SLACK * n / peers))), dtype)

    def __call__(self, x_PC: jax.Array) -> jax.Array:
        """Returns what each peer had for this device in its row of x_PC."""
        return jax.lax.all_to_all(x_PC, self.axes, split_axis=0, concat_axis=0, tiled=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def fetch(rows_RM: jax.Array, number_U: jax.Array, exchange: Exchange) -> jax.Array:
    """Returns the vectors [U, M] of numbered rows, wherever they are; zero for numbers that no device has. Within a shard_map.

    A device asks each of its peers for at most C rows in a round. Distinct ids that are spread evenly take one round; more follow
    as long as any device has something to ask, so that nothing is dropped however uneven they are.

    Args:
      rows_RM: R rows of a device: those numbered p * R to (p + 1) * R - 1 on the device p.
      number_U: int32, in order; only the last may repeat.
    """

    def answered(moves: "Moves", x_UM: jax.Array) -> jax.Array:
        y_PCM = rows_RM.at[moves.asked_PC].get(mode="fill", fill_value=0).astype(exchange.dtype)
        return x_UM.at[moves.place_PC].set(exchange(y_PCM).astype(x_UM.dtype), mode="drop")

    return rounds(answered, jnp.zeros((len(number_U), rows_RM.shape[1]), rows_RM.dtype), number_U, len(rows_RM), exchange)


def _fetch(rows_RM: jax.Array, number_U: jax.Array, exchange: Exchange) -> Any:
    return fetch(rows_RM, number_U, exchange), (rows_RM, number_U)


def _returned(exchange: Exchange, kept: Any, dx_UM: jax.Array) -> Any:
    """Sends the gradients of vectors to their rows, where they are added up."""
    rows_RM, number_U = kept

    def added(moves: "Moves", d_RM: jax.Array) -> jax.Array:
        dy_PCM = dx_UM.at[moves.place_PC].get(mode="fill", fill_value=0).astype(exchange.dtype)
        return d_RM.at[moves.asked_PC].add(exchange(dy_PCM).astype(d_RM.dtype), mode="drop")

    return rounds(added, jnp.zeros_like(rows_RM), number_U, len(rows_RM), exchange), None


fetch.defvjp(_fetch, _returned)


@dataclasses.dataclass(frozen=True)
class Moves:
    """The moves of a round.

    Attributes:
      place_PC: the places among this device's numbers of what it asks of each peer; U where it asks nothing.
      asked_PC: the rows of this device that each peer asks of it; R where it asks nothing.
    """

    place_PC: jax.Array
    asked_PC: jax.Array


def next_moves(from_P: jax.Array, number_U: jax.Array, rows: int, exchange: Exchange) -> tuple[Moves, jax.Array]:
    """Returns the moves of a round, and the number at which the next one begins, of each device's rows; the same on all devices.

    A round goes up to the first number that any device has no place for, so that a row is in one round alone, whoever asks for
    it.

    Args:
      from_P: where the round begins.
      rows: R, of a device.
    """
    start_P = jnp.searchsorted(number_U, from_P).astype(jnp.int32)
    own_P = jnp.arange(exchange.peers, dtype=number_U.dtype) * rows
    full_P = number_U.at[start_P + exchange.places].get(mode="fill", fill_value=exchange.peers * rows)
    everywhere = jax.sharding.get_abstract_mesh().axis_names  # all devices run the same rounds
    to_P = jax.lax.pmin(jnp.minimum(full_P, own_P + rows), everywhere)
    place_PC = start_P[:, None] + jnp.arange(exchange.places, dtype=jnp.int32)
    wanted_PC = number_U.at[place_PC].get(mode="fill", fill_value=exchange.peers * rows)
    is_asked_PC = wanted_PC < to_P[:, None]
    asked_PC = exchange(jnp.where(is_asked_PC, wanted_PC - own_P[:, None], rows).astype(jnp.int32))
    return Moves(jnp.where(is_asked_PC, place_PC, len(number_U)), asked_PC), to_P


def rounds(
    move: Callable[[Moves, Any], Any], x: Any, number_U: jax.Array, rows: int, exchange: Exchange, since: jax.Array | None = None
) -> Any:
    """Returns x after the rounds that bring what all devices ask for: the first one, and those that are needed beside it.

    Args:
      since: where the first round but one begins, if the first is done already.
    """
    first_P = jnp.arange(exchange.peers, dtype=number_U.dtype) * rows

    def moved(from_P: jax.Array, x: Any) -> tuple[jax.Array, Any]:
        moves, to_P = next_moves(from_P, number_U, rows, exchange)
        return to_P, move(moves, x)

    state = moved(first_P, x) if since is None else (since, x)
    return jax.lax.while_loop(lambda at: jnp.any(at[0] < first_P + rows), lambda at: moved(*at), state)[1]
