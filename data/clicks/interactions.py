"""Interactions of users with items, in memory, as a log: its tables, its numbers, its negatives, and its lists for ranking.

N interactions, U users, I items.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data.clicks.config import MOST
from data.clicks.ids import Ids, Table, ids_of
from data.clicks.log import SPLITS, Log, Row, ends
from data.clicks.negatives import Sampler
from data.task import DataError

USER, ITEM = "user", "item"
BEFORE = ("user_before", "item_before")
"""Numbers of a row: log(1 + training interactions before it) of its user and of its item."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interactions:
    """Interactions in order of time.

    Attributes:
      users, items: int64 [N], places in `user_names` and `item_names`.
      user_names, item_names: as the source writes them.
      titles: a name of each item for people; "" where there is none.
      labels: [N], 0 or 1; None where every interaction is one that counts.
      times: float64 [N], rising, seconds since 1970; None where only the order is known.
      contexts: int64 [N] by name, circumstances such as the hour.
      features: of each item, a few words by name, such as its genres.
      dense: float32 [N] by name, numbers in place of those that are counted (BEFORE).
      probabilities: [N] of label 1, where they are known.
    """

    users: np.ndarray
    items: np.ndarray
    user_names: Sequence[str]
    item_names: Sequence[str]
    titles: Sequence[str] = ()
    labels: np.ndarray | None = None
    times: np.ndarray | None = None
    contexts: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    features: Mapping[str, Sequence[Sequence[str]]] = dataclasses.field(default_factory=dict)
    dense: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    probabilities: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """Draws of negatives, for interactions without labels (data.clicks.caches.ClickCache)."""

    negatives: int = 4
    held_negatives: int = 99
    popularity: float = 0.75
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("negatives", "held_negatives"):
            if (value := getattr(self, name)) < 1:
                raise DataError(f"{name}={value}: must be at least 1, where no interaction has a label")


class InteractionLog(Log):
    """Rows of interactions: ids of the user, the item, the circumstances and the item's features.

    Args:
      hashed: rows of each table that ids are hashed into; 0 gives each of training its own.

    Raises:
      DataError: a split has no interaction, or an item has too many words of a feature.
    """

    def __init__(self, data: Interactions, *, hashed: int, drawn: Drawn, validation: float, test: float):
        self.data, self.drawn = data, drawn
        self.parts = ends(len(data.users), validation, test, data.times)
        self.sizes = {split: len(part) for split, part in self.parts.items()}
        trained = slice(0, len(self.parts["train"]))
        self.past = {USER: _Past(data.users[trained]), ITEM: _Past(data.items[trained])}
        self._ids = dict[str, Ids]()
        for name, names, codes in ((USER, data.user_names, data.users), (ITEM, data.item_names, data.items)):
            self._ids[name] = ids_of(name, (names[code] for code in self._places(codes)), hashed)
        for name, values in data.contexts.items():
            self._ids[name] = ids_of(name, map(str, sorted({*values[trained].tolist()})), hashed)
        for name, words in data.features.items():
            known = sorted({word for item in self._places(data.items) for word in words[item]})
            self._ids[name] = ids_of(name, known, hashed)
        hotness = {name: max(1, max(map(len, words), default=1)) for name, words in data.features.items()}
        for name, most in hotness.items():
            if most > MOST:
                raise DataError(f"an item has {most:,} values of {name!r}, more than {MOST}")
        self.tables = [Table(name=name, rows=ids.size, hotness=hotness.get(name, 1)) for name, ids in self._ids.items()]
        self.dense = tuple(data.dense) or BEFORE
        self._dense_ND = np.stack(list(data.dense.values()), 1).astype(np.float32) if data.dense else None
        self._users = [self._ids[USER].row(name) for name in data.user_names]
        self._items = [self._ids[ITEM].row(name) for name in data.item_names]
        self._contexts = {name: self._rows(name, values) for name, values in data.contexts.items()}
        self._features = {
            name: [[self._ids[name].row(word) for word in words] for words in each] for name, each in data.features.items()
        }

    def _rows(self, name: str, values: np.ndarray) -> np.ndarray:
        """Returns the row of each value of a circumstance."""
        kinds, places = np.unique(values, return_inverse=True)
        return np.array([self._ids[name].row(str(value)) for value in kinds.tolist()])[places]

    # --- negatives ---

    @functools.cached_property
    def sampler(self) -> Sampler:
        counts_I = np.bincount(self.data.items[: self.sizes["train"]], minlength=len(self.data.item_names))
        return Sampler(counts_I, self.drawn.popularity, self.drawn.seed)

    @functools.cached_property
    def seen(self) -> list[set[int]]:
        """The items that each user has interacted with in training."""
        return self._seen("train")

    @functools.cached_property
    def _seen_at_all(self) -> list[set[int]]:
        """The same in all splits: no negative of a held-out row."""
        return self._seen(*SPLITS)

    def _seen(self, *splits: str) -> list[set[int]]:
        seen = [set[int]() for _ in self.data.user_names]
        for i in itertools.chain(*(self.parts[split] for split in splits)):
            seen[self.data.users[i]].add(int(self.data.items[i]))
        return seen

    # --- rows ---

    def rows(self, split: str) -> Iterator[Row]:
        data = self.data
        for i in self.parts[split]:
            user, item = int(data.users[i]), int(data.items[i])
            probability = None if data.probabilities is None else float(data.probabilities[i])
            if data.labels is not None:
                yield self._row(i, user, item, float(data.labels[i]), group=user, probability=probability)
                continue
            # A training row knows nothing of later interactions; a held-out one must not call an item left that is taken later.
            held = split != "train"
            number = self.drawn.held_negatives if held else self.drawn.negatives
            taken = (self._seen_at_all if held else self.seen)[user]
            yield self._row(i, user, item, 1.0, group=i)
            for other in self.sampler(SPLITS.index(split), i, number, taken):
                yield self._row(i, user, other, 0.0, group=i, weight=self.drawn.negatives / number)

    def _row(self, i: int, user: int, item: int, label: float, **more: Any) -> Row:
        """Returns the row of an interaction, or of another item in its place."""
        if self._dense_ND is not None:
            dense = self._dense_ND[i]
        else:
            dense = np.log1p([self.past[USER](user, i), self.past[ITEM](item, i)]).astype(np.float32)
        contexts = ((int(rows[i]),) for rows in self._contexts.values())
        features = (each[item] for each in self._features.values())
        return Row(dense, ((self._users[user],), (self._items[item],), *contexts, *features), label, user, item, **more)

    def labelled(self, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the users, items and labels of a split's rows [N]."""
        if self.data.labels is not None:
            part = slice(self.parts[split].start, self.parts[split].stop)
            return self.data.users[part], self.data.items[part], self.data.labels[part]
        columns = [(row.user, row.item, row.label) for row in self.rows(split)]
        users, items, labels = (np.array(column) for column in zip(*columns, strict=True))
        return users, items, labels

    # --- lists for ranking ---

    def items(self) -> Iterator[dict[str, Any]]:
        """Yields the items of training as data.clicks.catalogue reads them, in the order in which they come first."""
        titles = self.data.titles or [""] * len(self.data.item_names)
        for item in self._places(self.data.items):
            ids = {ITEM: [self._items[item]]} | {name: each[item] for name, each in self._features.items()}
            dense = {} if self.data.dense else {BEFORE[1]: float(np.log1p(self.past[ITEM].total(item)))}
            yield {"item": self.data.item_names[item], "name": titles[item], "ids": ids, "dense": dense}

    def users(self) -> Iterator[dict[str, Any]]:
        """Yields the users of training, in the circumstances of their last interaction, with the places of what they have seen
        in the list of items."""
        places = {item: place for place, item in enumerate(self._places(self.data.items))}
        last = {user: i for i, user in enumerate(self.data.users[: self.sizes["train"]].tolist())}
        for user in self._places(self.data.users):
            i = last[user]
            ids = {USER: [self._users[user]]} | {name: [int(rows[i])] for name, rows in self._contexts.items()}
            dense = {name: float(values[i]) for name, values in self.data.dense.items()}
            if not dense:
                dense = {BEFORE[0]: float(np.log1p(self.past[USER].total(user)))}
            seen = sorted(places[item] for item in self.seen[user])
            yield {"user": self.data.user_names[user], "ids": ids, "dense": dense, "seen": seen}

    def _places(self, codes_N: np.ndarray) -> list[int]:
        """Returns the different codes of training, in the order in which they come first."""
        return list(dict.fromkeys(codes_N[: self.sizes["train"]].tolist()))


class _Past:
    """Counts of how often each code has come before a place.

    Args:
      codes_N: the codes of training, in order.
    """

    def __init__(self, codes_N: np.ndarray):
        order_N = np.argsort(codes_N, kind="stable")
        codes, starts = np.unique(codes_N[order_N], return_index=True)
        self._places = dict(zip(codes.tolist(), np.split(order_N, starts[1:]), strict=True))

    def __call__(self, code: int, place: int) -> int:
        places = self._places.get(code)
        return 0 if places is None else int(places.searchsorted(place))

    def total(self, code: int) -> int:
        """Returns how often a code comes in all."""
        places = self._places.get(code)
        return 0 if places is None else len(places)
