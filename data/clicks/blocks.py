"""Rows as they are stored, a block of them in a record, and as a model gets them.

A row has few numbers, and a record costs as much to find as a block to read. K rows, F tables, S columns of ids.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from data.clicks.config import BLOCK, ClickData
from data.clicks.log import Row
from data.features import Example
from data.reading.examples import StoredExamples
from data.task import DataError


def record_of(rows: Sequence[Row]) -> bytes:
    """Returns up to BLOCK rows as they are stored (ClickData.stored); rows that are missing have label -1, as no row has."""
    missing = BLOCK - len(rows)
    ids = list(chain.from_iterable(chain.from_iterable(row.ids for row in rows)))
    counts = [bytes(map(len, row.ids)) for row in rows]
    return b"".join(
        (
            *(row.dense.astype("<f4").tobytes() for row in rows),
            bytes(4 * missing * len(rows[0].dense)),
            struct.pack(f"<{BLOCK}f", *(row.label for row in rows), *[-1.0] * missing),
            *counts,
            bytes(missing * len(counts[0])),
            struct.pack(f"<{len(ids)}i", *ids),
        )
    )


def expanded(block: Example, hotness: Sequence[int], rows: Sequence[int] | None = None) -> Example:
    """Returns stored rows as a model gets them (ClickData.features), K in front.

    Args:
      block: dense [K, D], label [K], counts [K, F], ids.
      hotness: columns of each table.
      rows: of each table, if ids are to be checked.

    Raises:
      DataError: a row has more ids of a table than columns, or one outside it.
    """
    counts_KF, ids = block["counts"].astype(np.int64), block["ids"]
    if (counts_KF > np.array(hotness)).any() or counts_KF.sum() != len(ids):
        most = counts_KF.max(axis=0, initial=0).tolist()
        raise DataError(f"up to {most} ids of the tables, which have {list(hotness)} columns; {len(ids)} for {counts_KF.sum()}")
    number, slots, counts = len(counts_KF), sum(hotness), counts_KF.ravel()
    if rows is not None:
        limits = np.repeat(np.tile(rows, number), counts)
        if (outside := (ids < 0) | (ids >= limits)).any():
            at = int(np.argmax(outside))
            table = int(np.repeat(np.tile(np.arange(len(hotness)), number), counts)[at])
            raise DataError(f"id {ids[at]} is outside table {table} of {limits[at]:,} rows")
    if len(ids) == number * slots:  # no column is empty
        filled, weights = ids.astype(np.int32).reshape(number, slots), np.ones((number, slots), np.float32)
        return {"dense": block["dense"], "ids": filled, "weights": weights, "label": block["label"]}
    columns = np.add.outer(slots * np.arange(number), np.cumsum(hotness) - np.array(hotness)).ravel()
    places = np.repeat(columns - (np.cumsum(counts) - counts), counts) + np.arange(len(ids))
    filled, weights = np.zeros(number * slots, np.int32), np.zeros(number * slots, np.float32)
    filled[places], weights[places] = ids, 1.0
    return {
        "dense": block["dense"],
        "ids": filled.reshape(number, slots),
        "weights": weights.reshape(number, slots),
        "label": block["label"],
    }


def split(block: Example) -> list[Example]:
    """Returns the rows of an expanded block."""
    return [{name: array[at] for name, array in block.items()} for at in range(len(block["label"]))]


class HeldOutRows(Sequence[Example]):
    """The first rows of a file of blocks as a model gets them; the last block that was read is kept."""

    def __init__(self, file: Path, data: ClickData, tables: Sequence[int], size: int):
        self.size = size
        blocks = -(-size // BLOCK)
        self.blocks = StoredExamples(file, data.stored(), lambda block: expanded(block, data.hotness, tables), blocks)
        self._last: tuple[int, list[Example]] = (-1, [])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: Any) -> Any:
        places = range(self.size)[at]
        return self._row(places) if isinstance(places, int) else list(map(self._row, places))

    def __iter__(self) -> Iterator[Example]:
        return map(self._row, range(self.size))

    def _row(self, at: int) -> Example:
        number, place = divmod(at, BLOCK)
        if self._last[0] != number:
            self._last = number, split(self.blocks[number])
        return self._last[1][place]
