"""The settings of prepared caches of interactions, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import ClassVar, Self

from data.clicks import sources
from data.config import CacheConfig
from data.own_cache import TableCache
from data.packages.locations import Location
from data.reading.tables import columns_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentCache(CacheConfig):
    """Settings of a cache of made-up interactions, whose probabilities are known (data/clicks/latent.py).

    Attributes:
      users, items: how many there are.
      interactions: rows of all splits.
      factors: numbers of the vector of a user and of an item.
      contexts: circumstances that an interaction may have, each with a vector of its own, such as an hour.
      strength: standard deviation of the score; its mean is `bias`.
      bias: logit of an average interaction.
      seed: of all that is drawn.
      validation, test: shares of the interactions, the last ones in time.
    """

    kind: ClassVar[str] = "clicks"

    users: int
    items: int
    interactions: int
    factors: int = 8
    contexts: int = 24
    strength: float = 2.0
    bias: float = -0.5
    seed: int = 0
    validation: float = 0.05
    test: float = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClickCache(TableCache):
    """Settings of a cache of somebody's interactions: a table, MovieLens' files, Criteo's files (data/clicks/sources.py).

    Attributes:
      source: "folder:PATH", "file:PATH", "files:PATTERN" or "tfds:movielens/NAME".
      hashed: rows of each table, which ids are hashed into; 0 gives every id of training a row of its own, and row 0 to all
        others. Criteo's are always hashed, by default into 100,000.
      positive: a rating from which on an interaction counts as liked.
      negatives: items that are drawn for each interaction of a table without labels, as those that a person left.
      held_negatives: the same of a held-out interaction; what is ranked is the item among these.
      popularity: the power of an item's popularity that they are drawn with; 0 draws all items alike.
      seed: of these draws.
      validation, test: shares of the interactions, the last ones in time.
    """

    kind: ClassVar[str] = "clicks"
    made_of: ClassVar[str] = (
        "a table (.csv, .tsv, .jsonl, .json, .parquet, .arrow) with user and item, and perhaps label or rating, and time; "
        "MovieLens' u.data, ratings.dat or ratings.csv; Criteo's days of clicks"
    )

    hashed: int = 0
    positive: float = 4.0
    negatives: int = 4
    held_negatives: int = 99
    popularity: float = 0.75
    seed: int = 0
    validation: float = 0.05
    test: float = 0.1

    @property
    def has_users(self) -> bool:
        """True if the source has users and items, which Criteo's has not."""
        location = Location.of(self.source)
        return not location.is_own or sources.form_of(location.name, columns_of(self.columns)) != "criteo"

    @classmethod
    def from_source(cls, source: str, columns: str = "") -> Self | None:
        if source.startswith("tfds:movielens"):
            return cls(source=source, columns=columns)
        if ":" in source or sources.form_of(source, columns_of(columns)) is None:
            return None
        return cls(source=str(Location.own(source)), columns=columns)


CACHES = (LatentCache, ClickCache)
ENTRIES = {
    # 500 interactions of a user, and 1,000 of an item: enough to learn four numbers of each nearly as they are.
    "latent_clicks": LatentCache(users=2_000, items=1_000, interactions=1_000_000, factors=4),
    "latent_clicks_small": LatentCache(users=100, items=50, interactions=30_000, factors=4),
}
