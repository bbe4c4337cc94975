"""The items and the users of a cache, for commands that rank items: what the rows of a user with each item are made of."""

import abc
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np

from data import untrusted
from data.clicks import metrics
from data.clicks.blocks import expanded, split
from data.clicks.config import ClickData
from data.clicks.ids import tables_of
from data.config import DataConfig
from data.features import Example, Features
from data.reading.caches import read_manifest
from data.task import DataError
from models.errors import nearest, shortened

ITEMS, USERS = "catalogue/items.jsonl", "catalogue/users.jsonl"
"""Files of a cache: a line for each item or user of training, with its ids by table and its numbers by name."""
_NAMED = 10_000  # users among which the nearest name is looked for


Data = TypeVar("Data", bound=DataConfig)


@dataclasses.dataclass(frozen=True)
class Catalogue(Generic[Data], abc.ABC):
    """The items of a cache, and one of its users.

    Attributes:
      data: describes rows.
      items: the entries of the items' file.
      user: the entry of a user; `seen` has the places of items.
    """

    data: Data
    items: Sequence[dict[str, Any]]
    user: dict[str, Any]
    manifest: dict[str, Any]

    @classmethod
    def of(cls, cache: Path, data: Data, user: str) -> Self:
        """Returns the items of a cache, and the user of this name.

        Raises:
          DataError: the cache has no users, or none of this name.
        """
        manifest = read_manifest(cache)
        if not (cache / USERS).exists():
            raise DataError(
                f"cache {cache.name!r} has no users and items to rank; {', '.join(manifest['numbers'][:3])} ... are its own"
            )
        items = [entry for _, entry in untrusted.json_lines(cache / ITEMS, DataError)]
        names = list[str]()
        start = json.dumps({"user": user}, ensure_ascii=False)[:-1] + ","
        for number, line in untrusted.lines(cache / USERS, DataError):
            if line.startswith(start):
                return cls(data, items, untrusted.parsed(line, f"{cache / USERS}, line {number}", DataError), manifest)
            if len(names) < _NAMED:
                names.append(line)
        known = [str(json.loads(line)["user"]) for line in names]
        hint = nearest(user, known)
        shown = hint if len(known) <= 8 or "did you mean" in hint else f"; users are {', '.join(known[:5])}, ..."
        raise DataError(f"no user {shortened(user)!r} in the training data of cache {cache.name!r}{shown}")

    def candidates(self, seen: bool) -> list[int]:
        """Returns the places of the items that are ranked: without those that the user has seen in training, unless `seen`."""
        without = set() if seen else {*self.user["seen"]}
        return [place for place in range(len(self.items)) if place not in without]

    @property
    @abc.abstractmethod
    def features(self) -> Features:
        """The arrays of a row."""

    @abc.abstractmethod
    def rows(self, places: Sequence[int]) -> Iterator[Example]:
        """Yields the rows that a model must read to rank the items at these places."""

    def probabilities(self, outputs: np.ndarray, places: Sequence[int]) -> np.ndarray:
        """Returns the probability [N] of each item, from the outputs of a model for the rows; by default a logit for each."""
        return metrics.probabilities(outputs)


class ClickCatalogue(Catalogue[ClickData]):
    """The items of a cache of clicks, and one of its users, in the circumstances of the last interaction."""

    @property
    def features(self) -> Features:
        return self.data.features()

    def rows(self, places: Sequence[int]) -> Iterator[Example]:
        """Yields the row of the user, in the circumstances of the last interaction, with each item; its label is 0."""
        tables = tables_of(self.manifest)
        for place in places:
            item = self.items[place]
            with untrusted.damage(f"the list of items of {self.manifest['cache']!r}", DataError):
                ids, numbers = self.user["ids"] | item["ids"], self.user["dense"] | item["dense"]
                each = [ids[table.name] for table in tables]
                dense = np.array([numbers[name] for name in self.manifest["numbers"]], np.float32)
            block = {
                "dense": dense[None],
                "label": np.zeros(1, np.float32),
                "counts": np.array([[len(some) for some in each]], np.uint8),
                "ids": np.array([i for some in each for i in some], np.int32),
            }
            yield split(expanded(block, self.data.hotness, [table.rows for table in tables]))[0]
