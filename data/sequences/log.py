"""A log of interactions as rows of a user's consecutive ones, divided in time. N interactions, I rows of the table of items."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from data.clicks.ids import UNSEEN, Listed
from data.clicks.interactions import Interactions
from data.clicks.log import SPLITS, ends
from data.features import Example
from data.task import DataError

_LATEST = 2**31 - 1  # seconds behind a row's first interaction


class HeldOutRow(NamedTuple):
    """A held-out row: the number of the interaction that is predicted, and those before it, the earliest first."""

    number: int
    before: np.ndarray


class SequenceLog:
    """Rows by split.

    Args:
      data: the interactions, in order of time.
      length: interactions of a row, at most.
      split: "time" or "last" (data.sequences.caches.SequenceCache).
      validation, test: shares of the interactions, of "time".

    Attributes:
      ids: row of the table of items, by name: those of training from 1 on.
      items: int64 [N], these rows.
      actions: int64 [N], 1 not positive, 2 positive.
      part: int64 [N], the split of each interaction, its number in SPLITS.

    Raises:
      DataError: a split has no interaction.
    """

    def __init__(self, data: Interactions, *, length: int, split: str, validation: float, test: float):
        if length < 2:
            raise DataError(f"length={length}: must be at least 2, an interaction and the one before it")
        self.data, self.length, count = data, length, len(data.users)
        order_N = np.argsort(data.users, kind="stable")
        users, starts = np.unique(data.users[order_N], return_index=True)
        self.own = dict(zip(users.tolist(), np.split(order_N, starts[1:]), strict=True))
        self.part = np.zeros(count, np.int64)
        if split == "time":
            for number, name in enumerate(SPLITS):
                self.part[ends(count, validation, test, data.times)[name]] = number
        elif split == "last":
            for own in self.own.values():
                if len(own) >= len(SPLITS):  # a history is left
                    self.part[own[-2]], self.part[own[-1]] = 1, 2
        else:
            raise DataError(f"split={split!r}: expected 'time' or 'last'")
        for number, name in enumerate(SPLITS):
            if not (self.part == number).any():
                hint = f"no user has {len(SPLITS)} interactions" if split == "last" else "--validation, --test"
                raise DataError(f"{name}: no interaction in it; there are {count:,} in all ({hint})")
        self.trained = np.flatnonzero(self.part == 0)
        first: list[int] = list(dict.fromkeys(data.items[self.trained].tolist()))
        self.ids = Listed(data.item_names[item] for item in first)
        rows = np.array([self.ids.row(name) for name in data.item_names], np.int64)
        self.items = rows[data.items]
        self.actions = np.full(count, 2) if data.labels is None else 1 + np.asarray(data.labels, np.int64)

    @property
    def users(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the number of each user of training, and the user's interactions there."""
        for user, own in self.own.items():
            if len(past := own[self.part[own] == 0]):
                yield user, past

    def training(self) -> Iterator[np.ndarray]:
        """Yields the interactions of each row of training: a user's latest ones, those before, and so on."""
        for _, past in self.users:
            for end in range(len(past), 0, -self.length):
                if len(row := past[max(0, end - self.length) : end]) > 1:
                    yield row

    def held_out(self, split: str) -> list[HeldOutRow]:
        """Returns the rows of a held-out split in order of time; of interactions without one before them there is none."""
        number, rows = SPLITS.index(split), list[HeldOutRow]()
        for own in self.own.values():
            for at in np.flatnonzero(self.part[own] == number).tolist():
                if at:
                    rows.append(HeldOutRow(int(own[at]), own[max(0, at + 1 - self.length) : at]))
        return sorted(rows)

    def row(self, numbers: np.ndarray, start: int) -> Example:
        """Returns consecutive interactions as a stored row (data.sequences.config.SequenceData)."""
        return row_of(self.items[numbers], self.actions[numbers], self.times(numbers), start, self.length)

    def times(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the seconds of interactions since the first of them."""
        if self.data.times is None:
            return np.zeros(len(numbers))
        return np.minimum(self.data.times[numbers] - self.data.times[numbers[0]], _LATEST)


def row_of(items: np.ndarray, actions: np.ndarray, times: np.ndarray, start: int, length: int) -> Example:
    """Returns a row of interactions, the earliest first, with empty places behind them."""
    row = {name: np.zeros(length, np.int32) for name in ("items", "actions", "times")}
    for name, values in (("items", items), ("actions", actions), ("times", times)):
        row[name][: len(values)] = values
    return row | {"start": np.array(start, np.int32)}


def barred(row: Example, *, repeats: bool) -> np.ndarray:
    """Returns the items before a row's place `start`, int32 [L], which a ranking leaves out unless items may come again."""
    before_L = np.arange(len(row["items"])) < row["start"]
    return np.where(before_L & (not repeats), row["items"], UNSEEN).astype(np.int32)
