"""A log of interactions, divided in time: what a cache of clicks is made of."""

import abc
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data.clicks.ids import Table
from data.task import DataError

SPLITS = ("train", "validation", "test")


class Row(NamedTuple):
    """A row of data.

    Attributes:
      dense: float32 [D], 0 where a number is missing.
      ids: the ids of each table, as many as there are.
      label: 0 or 1.
      user, item: places in the log's lists of users and items; -1 where it has none.
      group: rows of one number are ranked together; -1 where nothing is ranked.
      weight: of the row in held-out losses: less than 1 where more negatives are drawn than in training.
      probability: of label 1, where it is known.
    """

    dense: np.ndarray
    ids: Sequence[Sequence[int]]
    label: float
    user: int = -1
    item: int = -1
    group: int = -1
    weight: float = 1.0
    probability: float | None = None


class Log(abc.ABC):
    """Rows by split, in order of time.

    Attributes:
      tables: where the ids of a row are.
      dense: the names of a row's numbers.
      sizes: interactions by split.
    """

    tables: Sequence[Table]
    dense: Sequence[str]
    sizes: dict[str, int]

    @abc.abstractmethod
    def rows(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split, in order of time."""


def ends(count: int, validation: float, test: float, times_N: np.ndarray | None = None) -> dict[str, range]:
    """Returns the numbers of the interactions of each split: training comes before validation, and that before the test.

    Interactions of one time are in one split, the later one.

    Args:
      validation, test: shares of the interactions.
      times_N: when each was, rising; None where it is not known.

    Raises:
      DataError: a share is none, or a split has no interaction.
    """
    for name, share in (("validation", validation), ("test", test)):
        if not 0 < share < 1:
            raise DataError(f"{name}={share}: expected a share, more than 0 and less than 1")
    starts = [0, count - round(count * (validation + test)), count - round(count * test), count]
    if times_N is not None:
        starts[1:3] = [int(np.searchsorted(times_N, times_N[max(0, min(start, count - 1))])) for start in starts[1:3]]
    split = {name: range(start, end) for name, start, end in zip(SPLITS, starts[:-1], starts[1:], strict=True)}
    for name, part in split.items():
        if not part:
            times = "" if times_N is None else f", of {len(np.unique(times_N)):,} times"
            raise DataError(f"{name}: no interaction in it; there are {count:,} in all{times} (--validation, --test)")
    return split
