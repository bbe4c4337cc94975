"""Places of embedding tables in one array [bins, rows, M]: plain numbers, no JAX.

Tables that are looked up alike are one array, so that a step has one exchange for all of them. Each lies whole in one bin, and
the places do not depend on the layout: it may cut the array by bins (tables on devices), by rows or by columns.
"""

import dataclasses
from collections.abc import Sequence

_MOST = 512  # a power of two; arrays of many rows are divisible by meshes of so many devices


@dataclasses.dataclass(frozen=True)
class Placement:
    """The places of some tables.

    Attributes:
      bins: blocks of the array.
      rows: of a block; those behind its last table belong to none.
      tables: the tables' numbers in the model.
      sizes: rows of each table.
      spans: (first column, the one behind the last) of each table in `ids`.
      bin: the bin of each table.
      start: its first row there.
    """

    bins: int
    rows: int
    tables: tuple[int, ...]
    sizes: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    bin: tuple[int, ...]
    start: tuple[int, ...]

    @property
    def hotness(self) -> tuple[int, ...]:
        """The columns of each table."""
        return tuple(end - start for start, end in self.spans)

    @property
    def columns(self) -> tuple[int, ...]:
        """The columns of `ids` that belong to these tables, table after table."""
        return tuple(column for span in self.spans for column in range(*span))

    def by_column(self, values: Sequence[int]) -> tuple[int, ...]:
        """Returns a value for each of `columns` from one for each table."""
        return tuple(value for value, n in zip(values, self.hotness, strict=True) for _ in range(n))


def place(sizes: Sequence[int], tables: Sequence[int], spans: Sequence[tuple[int, int]], bins: int) -> Placement:
    """Returns the places of tables: the largest first, each in the bin with the fewest rows so far.

    Args:
      sizes: rows of each table.
      tables: their numbers in the model.
      spans: their columns.
      bins: blocks to pack them into.
    """
    load, bin_of, start = [0] * bins, [0] * len(sizes), [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        bin_of[i] = min(range(bins), key=lambda b: (load[b], b))
        start[i] = load[bin_of[i]]
        load[bin_of[i]] += sizes[i]
    return Placement(bins, _rounded(max(load)), tuple(tables), tuple(sizes), tuple(spans), tuple(bin_of), tuple(start))


def _rounded(rows: int) -> int:
    """Returns a number of rows that meshes of a power of two divide: of 8 devices, and of more the more rows there are."""
    step = 8
    while step < _MOST and rows >= 16 * step:
        step *= 2
    return -(-rows // step) * step
