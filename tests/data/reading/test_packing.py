import numpy as np
import pytest

from data.reading import packing
from data.reading.tally import Tally
from tests.helpers.rows import read_rows, unpack


def examples(count: int, longest: int, seed: int = 0) -> list[packing.Example]:
    """Random examples of 2 to `longest` tokens a side, none of them padding."""
    rng = np.random.default_rng(seed)

    def side() -> np.ndarray:
        return rng.integers(1, 99, rng.integers(2, longest + 1), dtype=np.int32)

    return [(side(), side()) for _ in range(count)]


def as_set(some) -> list:
    return sorted((tuple(source.tolist()), tuple(target.tolist())) for source, target in some)


def test_a_row_by_hand():
    """Two examples share a row: segments 1 and 2 on both sides, positions from 0 in each, padding all zero."""
    first = (np.array([7, 8, 1], np.int32), np.array([5, 1], np.int32))
    second = (np.array([9, 1], np.int32), np.array([6, 6, 1], np.int32))
    (row,) = packing.pack([first, second], (6, 5), Tally())
    assert row.tolist() == [
        *[7, 8, 1, 9, 1, 0],
        *[1, 1, 1, 2, 2, 0],
        *[0, 1, 2, 0, 1, 0],
        *[5, 1, 6, 6, 1],
        *[1, 1, 2, 2, 2],
        *[0, 1, 0, 1, 2],
    ]


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_round_trip(tmp_path, count):
    """Unpacking the rows of a file gives exactly the examples that fit, and the tally says what became of all."""
    some = examples(count, longest=20)
    tally = Tally()
    packing.write_rows(tmp_path / "rows", packing.pack(some, (16, 18), tally))
    rows = list(read_rows(tmp_path / "rows"))
    unpacked = [example for row in rows for example in unpack(row, (16, 18))]
    kept = [(source, target) for source, target in some if len(source) <= 16 and len(target) <= 18]
    assert as_set(unpacked) == as_set(kept)
    assert tally == Tally(
        examples=len(kept),
        rows=len(rows),
        tokens=(sum(len(source) for source, _ in kept), sum(len(target) for _, target in kept)),
        left_out=count - len(kept),
    )


def test_rows_are_well_filled():
    """First fit over a window of rows wastes little: the fuller side of short examples is over 90 % tokens."""
    tally = Tally()
    rows = list(packing.pack(examples(3000, longest=20), (64, 64), tally))
    assert max(tally.tokens) > 0.9 * 64 * len(rows)


def test_one_side():
    """Plain text has one side: a row is tokens, segment ids and positions of it alone."""
    some = [(np.array([7, 8], np.int32),), (np.array([9], np.int32),)]
    (row,) = packing.pack(some, (4,), Tally())
    assert row.tolist() == [7, 8, 9, 0, 1, 1, 2, 0, 0, 1, 0, 0]
    assert [example[0].tolist() for example in unpack(row, (4,))] == [[7, 8], [9]]


def test_a_side_can_bound_the_examples_of_a_row():
    """Where each example takes one place of a side of two, no row has more than two, though the tokens had room."""
    some = [(np.array([5], np.int32), np.array([n], np.int32)) for n in range(5)]
    tally = Tally()
    rows = list(packing.pack(some, (9, 2), tally, lambda these, _: np.concatenate([e[1] for e in these])))
    assert [row.tolist() for row in rows] == [[0, 1], [2, 3], [4]]
    assert tally == Tally(examples=5, rows=3, tokens=(5, 5))
