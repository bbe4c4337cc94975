"""Sizes of DLRM."""

import dataclasses
from typing import ClassVar, Literal

from models.dlrm.placement import Placement, place
from models.errors import UserError

GROUPS = ("small", "middle", "large")
"""Components that tables belong to by their rows: "tables.small" and so on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """An embedding table: the vectors of one feature's ids, which are taken modulo its rows.

    Attributes:
      rows: vectors of the table.
      hotness: the most ids that an example has of the feature; their vectors are summed, each times its weight.
    """

    rows: int
    hotness: int = 1

    def __post_init__(self) -> None:
        for name in ("rows", "hotness"):
            if (value := getattr(self, name)) < 1:
                raise UserError(f"model.tables: {name}={value}: must be at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DlrmConfig:
    """DLRM: the probability that a thing is clicked, from dense numbers and from ids in tables.

    Attributes:
      tables: one for each feature of ids, in the order of the columns of `ids`: each has `hotness` of them.
      dense_features: numbers of an example; 0 leaves the network on them out.
      embedding_dim: M, elements of a vector.
      bottom: widths of the network on dense numbers; the last is M.
      interaction: "cross" multiplies by low-rank cross layers (DCNv2); "dot" takes the products of all pairs of vectors (DLRM).
      cross_layers: layers of "cross".
      cross_rank: rank of their matrices.
      top: widths of the network behind the interaction; the last is 1, the logit.
      small: tables of fewer rows are of the component "tables.small".
      large: tables of so many rows are of "tables.large"; those between are of "tables.middle".
      bins: blocks of equal size into which the tables of each of `GROUPS` are packed whole, so that a layout may put tables on
        devices of their own: as many devices as divide it.
    """

    family: ClassVar[str] = "dlrm"
    sized_by_data: ClassVar[dict[str, str]] = {"tables": "tables", "dense": "dense_features"}

    tables: tuple[Table, ...]
    dense_features: int = 13
    embedding_dim: int = 128
    bottom: tuple[int, ...] = (512, 256, 128)
    interaction: Literal["cross", "dot"] = "cross"
    cross_layers: int = 3
    cross_rank: int = 512
    top: tuple[int, ...] = (1024, 1024, 512, 256, 1)
    small: int = 2_000
    large: int = 100_000
    bins: tuple[int, int, int] = (1, 1, 1)

    def __post_init__(self) -> None:
        for name, least in (("dense_features", 0), ("embedding_dim", 1), ("cross_layers", 1), ("cross_rank", 1)):
            if (value := getattr(self, name)) < least:
                raise UserError(f"model.{name}={value}: must be at least {least}")
        if not self.tables or min(self.bins) < 1:
            raise UserError(f"model: {len(self.tables)} tables in {self.bins} bins; there must be one of each at least")
        if self.interaction == "dot" and len(self.tables) + (self.dense_features > 0) < 2:
            raise UserError("model.interaction='dot': one table alone has no pair to be multiplied; 'cross' takes it")
        if self.bottom[-1:] != (self.embedding_dim,):
            raise UserError(f"model.bottom={self.bottom}: must end with embedding_dim={self.embedding_dim}")
        if self.top[-1:] != (1,):
            raise UserError(f"model.top={self.top}: must end with 1, the logit")
        for name, placement in self.placements.items():
            if (rows := placement.bins * placement.rows) >= 2**31:
                raise UserError(f"model.tables: {rows:,} rows of tables.{name}; ids are 32-bit, and the most is {2**31 - 1:,}")

    def group(self, table: Table) -> str:
        """Returns the one of `GROUPS` that a table belongs to."""
        return "small" if table.rows < self.small else "middle" if table.rows < self.large else "large"

    @property
    def placements(self) -> dict[str, Placement]:
        """The places of the tables of each group that has any, by its name."""
        columns, hotness = [0], [table.hotness for table in self.tables]
        for n in hotness:
            columns.append(columns[-1] + n)
        placements = {}
        for name, bins in zip(GROUPS, self.bins, strict=True):
            numbers = [i for i, table in enumerate(self.tables) if self.group(table) == name]
            if numbers:
                spans = [(columns[i], columns[i + 1]) for i in numbers]
                placements[name] = place([self.tables[i].rows for i in numbers], numbers, spans, bins)
        return placements

    @property
    def slots(self) -> int:
        """S, the columns of `ids`."""
        return sum(table.hotness for table in self.tables)

    @property
    def interacting(self) -> int:
        """Elements that the interaction gives to the network behind it."""
        has_dense = self.dense_features > 0
        vectors = len(self.tables) + has_dense
        if self.interaction == "cross":
            return vectors * self.embedding_dim
        return has_dense * self.embedding_dim + vectors * (vectors - 1) // 2

    def tiny(self) -> "DlrmConfig":
        """Returns a small model with as many tables, of the same groups, and the same columns."""
        rows = {"small": 3, "middle": 17, "large": 65}

        def shrunk(i: int, table: Table) -> Table:
            name = self.group(table)
            return dataclasses.replace(table, rows=rows[name] + i % rows[name])

        return dataclasses.replace(
            self,
            tables=tuple(shrunk(i, table) for i, table in enumerate(self.tables)),
            embedding_dim=16,
            bottom=(32, 16),
            cross_layers=min(self.cross_layers, 2),
            cross_rank=8,
            top=(32, 1),
            small=12,
            large=64,
            bins=(8, 8, 8),
        )


CONFIG = DlrmConfig
