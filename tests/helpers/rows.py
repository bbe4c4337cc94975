"""Packed rows, read back from their file and taken apart."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

from data.reading.packing import Example


def read_rows(path: Path) -> Iterator[np.ndarray]:
    """The rows of a file that `packing.write_rows` wrote."""
    reader = array_record_module.ArrayRecordReader(str(path))
    try:
        for record in reader.read_all():
            yield np.frombuffer(record, "<i4")
    finally:
        reader.close()


def unpack(row: np.ndarray, lengths: Sequence[int]) -> list[Example]:
    """The examples of a row of `packing.lay_out_sides`, in order: the inverse of packing."""
    ends = np.cumsum([3 * length for length in lengths])
    sides = [side.reshape(3, -1) for side in np.split(row[: ends[-1]], ends[:-1])]
    return [tuple(side[0, side[1] == n] for side in sides) for n in range(1, int(sides[0][1].max()) + 1)]
