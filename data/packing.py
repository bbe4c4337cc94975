"""Packed rows: several examples side by side in one row of fixed length, told apart by segment ids.

A row is one int32 vector of 3 * Ls + 3 * Lt numbers, for source length Ls and target length Lt:

    source tokens, source segment ids, source positions, target tokens, target segment ids, target positions

Segment ids count the row's examples from 1, the same number on both sides; positions restart at 0 with each
example; where the segment id is 0 there is padding, with token and position 0.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

Example = tuple[np.ndarray, np.ndarray]  # ids of source and target, each int32 and one-dimensional

_WINDOW = 64  # rows that are open at a time


@dataclasses.dataclass
class Tally:
    """What became of a language's examples: packed `pairs` in `rows`, their tokens, and the `dropped` (too long)."""

    pairs: int = 0
    rows: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    dropped: int = 0


def pack(examples: Iterable[Example], source_length: int, target_length: int, tally: Tally) -> Iterator[np.ndarray]:
    """First-fit packing: an example goes into the first open row with room for it on both sides.

    When no open row has room, the fullest one is closed and a new one takes its place, so memory stays bounded.

    Args:
      examples: in the order in which they are placed; shuffle them before.
      source_length, target_length: of a row. An example longer than either is dropped.
      tally: counted up.

    Yields:
      Rows, see the head of this file.
    """
    lengths = np.array([source_length, target_length])
    room = np.tile(lengths, (_WINDOW, 1))  # [row, side]
    rows: list[list[Example]] = [[] for _ in range(_WINDOW)]

    def close(row: int) -> np.ndarray:
        tally.rows += 1
        return _lay_out(rows[row], source_length, target_length)

    for example in examples:
        size = np.array([len(side) for side in example])
        if np.any(size > lengths):
            tally.dropped += 1
            continue
        fits = np.all(room >= size, axis=1)
        row = int(np.argmax(fits))
        if not fits[row]:
            row = int(np.argmin(room.sum(axis=1)))
            yield close(row)
            rows[row], room[row] = [], lengths
        rows[row].append(example)
        room[row] -= size
        tally.pairs += 1
        tally.source_tokens += int(size[0])
        tally.target_tokens += int(size[1])
    for row in range(_WINDOW):
        if rows[row]:
            yield close(row)


def _lay_out(examples: list[Example], source_length: int, target_length: int) -> np.ndarray:
    parts = []
    for side, length in enumerate((source_length, target_length)):
        block = np.zeros((3, length), np.int32)  # tokens, segment ids, positions
        start = 0
        for segment, example in enumerate(examples, start=1):
            end = start + len(example[side])
            block[0, start:end] = example[side]
            block[1, start:end] = segment
            block[2, start:end] = np.arange(end - start)
            start = end
        parts.append(block.ravel())
    return np.concatenate(parts)


def unpack(row: np.ndarray, source_length: int, target_length: int) -> list[Example]:
    """The examples of a row, in order: the inverse of packing."""
    source = row[: 3 * source_length].reshape(3, source_length)
    target = row[3 * source_length :].reshape(3, target_length)
    count = int(source[1].max())
    return [tuple(side[0, side[1] == segment] for side in (source, target)) for segment in range(1, count + 1)]


def write_rows(path: Path, rows: Iterable[np.ndarray]) -> None:
    """Writes rows as records of an ArrayRecord file, little-endian, one a group so that any can be read alone."""
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    try:
        for row in rows:
            writer.write(row.astype("<i4").tobytes())
    finally:
        writer.close()


def read_rows(path: Path) -> Iterator[np.ndarray]:
    """The rows of a file that `write_rows` wrote."""
    reader = array_record_module.ArrayRecordReader(str(path))
    try:
        for record in reader.read_all():
            yield np.frombuffer(record, "<i4")
    finally:
        reader.close()
