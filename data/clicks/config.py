"""Interactions of people with things, each a row: numbers, ids in tables, and whether it was one that counts. Plain data."""

import dataclasses
from typing import ClassVar

from data.config import DataConfig
from data.features import Feature, Features


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClickData(DataConfig):
    """Rows of interactions: dense numbers, ids of several tables, and a label.

    Attributes:
      batch_size: interactions of a global batch.
      hotness: the most ids that a row has of each table, in the tables' order: table f has so many columns of `ids`.
      dense: numbers of a row beside the ids, as the cache has them, log(1 + x) of counts.
    """

    kind: ClassVar[str] = "clicks"

    hotness: tuple[int, ...]
    dense: int

    def __post_init__(self) -> None:
        if wrong := [n for n in self.hotness if not 1 <= n <= MOST]:
            raise ValueError(f"data.hotness: {wrong[0]} is not from 1 to {MOST}")
        if not self.hotness or self.dense < 0:
            raise ValueError(
                f"data.hotness={self.hotness}, data.dense={self.dense}: a row has a table at least, and no less than 0"
            )

    @property
    def columns(self) -> int:
        """S: places for ids in a row, of all tables."""
        return sum(self.hotness)

    def stored(self) -> Features:
        """Returns the arrays of a block of rows as the cache stores it: `counts` says how many ids a row has of each table, and
        `ids` has these alone, of one row and table after the other. The last block of a file is filled up with label -1."""
        return {
            "dense": Feature((BLOCK, self.dense), (None, None), dtype="float32"),
            "label": Feature((BLOCK,), (None,), dtype="float32"),
            "counts": Feature((BLOCK, len(self.hotness)), (None, None), dtype="uint8"),
            "ids": Feature((-1,), (None,)),
        }

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it.

        dense: float32 [D], 0 where a number is missing.
        ids: int32 [S], table after table; 0 in a place that is empty.
        weights: float32 [S], 1 where a place has an id, else 0.
        label: float32, 0 or 1; -1 of a row that fills up a block or a batch, which counts nothing.
        """
        return {
            "dense": Feature((self.dense,), (None,), dtype="float32"),
            "ids": Feature((self.columns,), (None,)),
            "weights": Feature((self.columns,), (None,), dtype="float32"),
            "label": Feature((), (), dtype="float32", fill=-1),
        }

    def tiny(self) -> "ClickData":
        """Returns random data of the same form; the model's tables say how many rows they have."""
        return dataclasses.replace(self, cache="", batch_size=16)


BLOCK = 64  # rows of a record
MOST = 255  # ids that a row has of a table: their number is a byte

CONFIGS = (ClickData,)
EVALS = ()
