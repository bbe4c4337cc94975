"""The items and the users of a cache of sequences, for commands that rank items: a user's history, with each item behind it."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from data import untrusted
from data.clicks.catalogue import Catalogue
from data.features import Example, Features
from data.sequences.config import SequenceData
from data.sequences.log import row_of
from data.task import DataError


@dataclasses.dataclass(frozen=True)
class SequenceCatalogue(Catalogue[SequenceData]):
    """The items of a cache, and one of its users, whose entry has the user's latest interactions in training. The item at place p
    of the list has the id p + 1."""

    @property
    def features(self) -> Features:
        return self.data.stored()

    def rows(self, places: Sequence[int]) -> Iterator[Example]:
        """Yields the row of the user's history: of next items one, of actions one for each item, at the history's end."""
        with untrusted.damage(f"the list of users of {self.manifest['cache']!r}", DataError):
            items, actions, times = (np.array(self.user[name], np.int64) for name in ("items", "actions", "times"))
            if not 0 < len(items) == len(actions) == len(times) < self.data.length:
                raise ValueError(f"a history of {len(items)} items")
            if not 0 < items.min() <= items.max() <= len(self.items):
                raise ValueError("a history of other items")
        if self.data.target == "item":
            yield row_of(items, actions, times, len(items), self.data.length)
            return
        for place in places:
            more = (np.append(items, place + 1), np.append(actions, 1), np.append(times, times[-1]))
            yield row_of(*more, len(items), self.data.length)

    def probabilities(self, outputs: np.ndarray, places: Sequence[int]) -> np.ndarray:
        """Returns the probability [N] of each item: among all as the next one, or of a positive action on it."""
        if self.data.target == "action":
            return super().probabilities(outputs, places)
        logits_V = outputs[0].astype(np.float64)
        return np.exp(logits_V - np.logaddexp.reduce(logits_V))[np.array(places) + 1]
