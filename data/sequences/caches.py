"""The settings of caches of sequences, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import ClassVar, Literal, Self

from data.clicks.caches import ClickCache
from data.config import CacheConfig
from data.own_cache import TableCache

Split = Literal["time", "last"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentSequenceCache(CacheConfig):
    """Settings of a cache of made-up sequences, whose probabilities are known (data/sequences/latent.py).

    Attributes:
      users, items: how many there are.
      interactions: of each user.
      length: interactions of a row, at most.
      factors: numbers of the vector of a user and of an item.
      chained: probability that an item is a successor of the one before it; else it is of the user's taste.
      strength: standard deviation of the logits of taste, and of actions.
      seed: of all that is drawn.
      split, validation, test, repeats: as of SequenceCache.
    """

    kind: ClassVar[str] = "sequences"

    users: int
    items: int
    interactions: int
    length: int
    factors: int = 4
    chained: float = 0.5
    strength: float = 2.0
    seed: int = 0
    split: Split = "time"
    validation: float = 0.05
    test: float = 0.1
    repeats: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceCache(TableCache):
    """Settings of a cache of somebody's interactions: a table, or MovieLens' files (data/clicks/sources.py).

    Attributes:
      source: "folder:PATH", "file:PATH", "files:PATTERN" or "tfds:movielens/NAME".
      length: interactions of a row, at most; a longer history is several rows of training.
      positive: a rating from which on an action is positive.
      split: "time" holds out the last interactions of all; "last" each user's last one for the test, and the one before it for
        validation, as the papers' tables do.
      validation, test: shares of the interactions, of "time".
      repeats: whether an item may come again; else held-out rankings leave out what is in the row.
    """

    kind: ClassVar[str] = "sequences"
    made_of: ClassVar[str] = (
        "a table (.csv, .tsv, .jsonl, .json, .parquet, .arrow) with user and item, and perhaps label or rating, and time; "
        "MovieLens' u.data, ratings.dat or ratings.csv"
    )

    length: int = 200
    positive: float = 4.0
    split: Split = "last"
    validation: float = 0.05
    test: float = 0.1
    repeats: bool = False

    @classmethod
    def from_source(cls, source: str, columns: str = "") -> Self | None:
        of_clicks = ClickCache.from_source(source, columns)
        if of_clicks is None or not of_clicks.has_users:
            return None
        return cls(source=of_clicks.source, columns=columns)


CACHES = (LatentSequenceCache, SequenceCache)
ENTRIES = {
    "latent_sequences": LatentSequenceCache(users=4_000, items=200, interactions=100, length=50, validation=0.01, test=0.02),
    "latent_sequences_small": LatentSequenceCache(users=200, items=40, interactions=60, length=20),
}
