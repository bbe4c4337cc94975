"""Criteo's logs of advertisements, as a log that is read from its files as often as it is needed."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.clicks.ids import Table, mixed
from data.clicks.log import Log, Row, ends
from data.clicks.sources import FIELDS, CriteoRow, count_lines, criteo_files, criteo_rows
from data.task import DataError

HASHED = 100_000
"""Rows of each of the 26 tables by default."""
_LINES = 8192  # whose ids are hashed at once


class CriteoLog(Log):
    """Rows in the order of the files, which is that of time.

    Numbers are log(1 + x), 0 where one is missing or negative, as in Facebook's DLRM (arXiv 1906.00091); a missing category is a
    value like others.
    """

    def __init__(self, source: Path, *, hashed: int, validation: float, test: float):
        self.files = criteo_files(source)
        count = count_lines(self.files)
        if not count:
            raise DataError(f"{source}: no line in it")
        numbers, categories = FIELDS
        self.size = hashed or HASHED
        self.tables = [Table(name=f"C{i}", rows=self.size) for i in range(1, categories + 1)]
        self.dense = [f"I{i}" for i in range(1, numbers + 1)]
        self._parts = ends(count, validation, test)
        self.sizes = {split: len(part) for split, part in self._parts.items()}

    def rows(self, split: str) -> Iterator[Row]:
        part = self._parts[split]
        rows = criteo_rows(self.files, part.start, part.stop)
        while some := list(itertools.islice(rows, _LINES)):
            yield from self._hashed(some)

    def _hashed(self, rows: list[CriteoRow]) -> Iterator[Row]:
        dense_RD = np.log1p(np.maximum(np.nan_to_num(np.array([row.numbers for row in rows])), 0)).astype(np.float32)
        values_RF = np.array([row.categories for row in rows], np.int64)
        # A table's number is mixed in before, so that a value has another row in each.
        tables_F = mixed(np.arange(values_RF.shape[1]))
        ids_RF = (mixed(values_RF.astype(np.uint64) ^ tables_F) % np.uint64(self.size)).astype(np.int64).tolist()
        for row, dense_D, ids_F in zip(rows, dense_RD, ids_RF, strict=True):
            yield Row(dense_D, [(i,) for i in ids_F], row.label)
