"""Packed rows: several examples side by side in one row of fixed length, distinguished by segment ids.

An example has one or more sides (source and target of a translation, one side of plain text), and every side has its
place in a row. A row is one int32 vector; a side of length L takes 3 * L numbers, one side after the other:

    tokens, segment ids, positions

Segment ids count the row's examples from 1, the same number on all sides; positions restart at 0 with each
example; where the segment id is 0 there is padding, with token and position 0.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

from data.reading.tally import Tally

Example = tuple[np.ndarray, ...]  # ids of each side, int32; one-dimensional unless the layout takes another shape
LayOut = Callable[[list[Example], Sequence[int]], np.ndarray]  # a row from its examples and the sides' lengths

_WINDOW = 64  # rows that are open at a time


def lay_out_sides(examples: list[Example], lengths: Sequence[int]) -> np.ndarray:
    """Returns the row of these examples, as described at the head of this file."""
    return np.concatenate([lay_out([e[side] for e in examples], n).ravel() for side, n in enumerate(lengths)])


def lay_out(examples: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Returns tokens, segment ids and positions [3, length] of one side's examples."""
    block = np.zeros((3, length), np.int32)
    start = 0
    for segment, example in enumerate(examples, start=1):
        end = start + len(example)
        block[0, start:end] = example
        block[1, start:end] = segment
        block[2, start:end] = np.arange(end - start)
        start = end
    return block


def pack(
    examples: Iterable[Example], lengths: Sequence[int], tally: Tally, layout: LayOut = lay_out_sides
) -> Iterator[np.ndarray]:
    """Packs examples first-fit: each goes into the first open row with room for it on all sides.

    When no open row has room, the fullest one is closed and a new one takes its place, so memory stays bounded.

    Args:
      examples: the ids of each example's sides, in the order in which they are placed; shuffle them before.
      lengths: the lengths of a row's sides. An example longer than one of them is left out. A side with one number for
        each example bounds the examples of a row.
      tally: incremented.
      layout: makes a row of its examples.

    Yields:
      Rows.
    """
    full = np.array(lengths)
    room = np.tile(full, (_WINDOW, 1))  # [row, side]
    rows: list[list[Example]] = [[] for _ in range(_WINDOW)]
    tokens = np.zeros(len(full), np.int64)

    def close(row: int) -> np.ndarray:
        tally.rows += 1
        return layout(rows[row], lengths)

    for example in examples:
        size = np.array([len(side) for side in example])
        if np.any(size > full):
            tally.left_out += 1
            continue
        fits = np.all(room >= size, axis=1)
        row = int(np.argmax(fits))
        if not fits[row]:
            row = int(np.argmin(room.sum(axis=1)))
            yield close(row)
            rows[row], room[row] = [], full
        rows[row].append(example)
        room[row] -= size
        tally.examples += 1
        tokens += size
    tally.tokens = tuple(map(int, tokens))
    for row in range(_WINDOW):
        if rows[row]:
            yield close(row)


def lay_out_weighted(examples: list[Example], lengths: Sequence[int]) -> np.ndarray:
    """Returns the row of examples (tokens, loss weights): int32 [4 * L], the weights after what `lay_out` returns."""
    (length, _), row = lengths, np.zeros(4 * lengths[0], np.int32)
    row[: 3 * length] = lay_out([tokens for tokens, _ in examples], length).ravel()
    weights = np.concatenate([weights for _, weights in examples])
    row[3 * length : 3 * length + len(weights)] = weights
    return row


def pack_weighted(examples: Iterable[Example], length: int, tally: Tally) -> Iterator[np.ndarray]:
    """Yields packed rows of examples (tokens, loss weights)."""
    return pack(examples, (length, length), tally, lay_out_weighted)


def record_of(row: np.ndarray) -> bytes:
    """Returns a packed row of ids as it is stored: int32, little-endian."""
    return row.astype("<i4").tobytes()


def shuffled(examples: Iterable[Any], seed: str | int) -> list[Any]:
    """Returns examples in a random order."""
    examples = list(examples)
    random.Random(seed).shuffle(examples)
    return examples


def shuffled_in_windows(examples: Iterable[Any], seed: str | int, window: int = 1 << 14) -> Iterator[Any]:
    """Yields examples in a random order, of which no more than a window are in memory: neighbours come apart."""
    waiting = iter(examples)
    for number in itertools.count():
        if not (some := list(itertools.islice(waiting, window))):
            return
        yield from shuffled(some, f"{seed} {number}")


def write_rows(path: Path, rows: Iterable[np.ndarray]) -> None:
    """Writes packed rows of ids as records: int32, little-endian."""
    write_records(path, map(record_of, rows))


def write_records(path: Path, records: Iterable[bytes]) -> int:
    """Writes an ArrayRecord file with one record a group, so that any can be read alone; returns the number of records."""
    number = 0
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    try:
        for record in records:
            writer.write(record)
            number += 1
    finally:
        writer.close()
    return number
