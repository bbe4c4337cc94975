"""The settings of caches of a user's own tables and texts: plain values, no JAX, no TensorFlow."""

import dataclasses
from typing import Any, Self

from data.config import SourceCache
from data.packages.locations import Location


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableCache(SourceCache):
    """The settings of a cache whose source may be a user's table.

    Attributes:
      columns: the columns of a table that have other names than the kind's, "text=body,label=topic".
    """

    columns: str = ""

    def flat(self) -> dict[str, Any]:
        """Returns the settings by name; without the columns where there are none, as in caches that were prepared before."""
        return {name: value for name, value in vars(self).items() if value or name != "columns"}

    @classmethod
    def is_made_of(cls, source: str, columns: str) -> bool:
        """Returns whether a folder, a file or a pattern of files holds what the class makes a cache of.

        Raises:
          DataError: it is damaged, or lacks one of `columns`.
        """
        return False

    @classmethod
    def from_source(cls, source: str, columns: str = "") -> Self | None:
        if ":" in source or not cls.is_made_of(source, columns):
            return None
        return cls(source=str(Location.own(source)), columns=columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnCache(TableCache):
    """The settings of a cache of a user's own texts (data.own_maker).

    Attributes:
      source: "folder:PATH", "file:PATH" or "files:PATTERN".
      tokenizer: a released vocabulary, a key of `data.packages.weights.VOCABULARIES`; "" is that of the folder or the file that
        `scripts.prepare_data --vocabulary` names.
      validation, test: shares of the groups of training examples that are held out where the source has no such split.
    """

    tokenizer: str = ""
    validation: float = 0.05
    test: float = 0.1

    def flat(self) -> dict[str, Any]:
        """Returns the settings by name; the columns too where there are none, as in caches that were prepared before."""
        return vars(self)

    @property
    def released(self) -> bool:
        return not self.tokenizer


TRAINED = "bpe"
_TRAINED_SIZE = 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedCache(OwnCache):
    """The settings of a cache of a user's own texts whose vocabulary may be trained on them (data.own_maker.TrainingMaker).

    Attributes:
      tokenizer: "bpe" trains a byte-level BPE on the training texts; for others see OwnCache.
      vocabulary_size: ids of the vocabulary that is trained; 0 is 8,192, or as many as the texts fill.
    """

    tokenizer: str = TRAINED
    vocabulary_size: int = 0

    def __post_init__(self) -> None:
        if self.vocabulary_size and self.tokenizer != TRAINED:
            raise ValueError(f"vocabulary_size={self.vocabulary_size}: is of a vocabulary that is trained here; one is named")

    @property
    def sizes(self) -> tuple[int, bool]:
        """The ids of the vocabulary that is trained, and whether there may be fewer."""
        return self.vocabulary_size or _TRAINED_SIZE, not self.vocabulary_size
