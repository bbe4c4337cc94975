"""Sequences of users' interactions with items, in order of time. Plain data."""

import dataclasses
from typing import ClassVar, Literal

from data.config import DataConfig
from data.features import Feature, Features, positions


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceData(DataConfig):
    """Rows of a user's consecutive interactions, each with an item, an action and a time.

    Attributes:
      batch_size: rows of a global batch.
      length: interactions of a row, at most.
      target: what is predicted: the next "item", or the "action" on each item.
      negatives: items that are drawn for each row, all alike, against which its next items are told; 0 compares all items.
    """

    kind: ClassVar[str] = "sequences"

    length: int
    target: Literal["item", "action"] = "item"
    negatives: int = 128

    def __post_init__(self) -> None:
        if self.target not in ("item", "action"):
            raise ValueError(f"data.target={self.target!r}: expected 'item' or 'action'")
        for name, least in (("length", 2), ("negatives", 0)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"data.{name}={value}: must be at least {least}")

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores it.

        items: int32 [L], 0 of items that training lacks.
        actions: int32 [L]: 0 in places behind the last interaction, 1 of an action that is not positive, 2 of one that is.
        times: int32 [L], seconds since the row's first interaction; 0 where no times are known.
        start: int32, the first place that is predicted.
        """
        return positions(self.length, "items", "actions", "times") | {"start": Feature((), ())}

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it in training: those stored, and `negatives`, int32 [N]."""
        return self.stored() | ({"negatives": Feature((self.negatives,), (None,))} if self.draws else {})

    def held_out(self) -> Features:
        """Returns the arrays of a row whose place `start` alone is predicted: those stored, and of items `barred`, int32 [L], the
        items that the ranking leaves out, 0 for none."""
        return self.stored() | (positions(self.length, "barred") if self.target == "item" else {})

    @property
    def draws(self) -> bool:
        """True if rows have negatives."""
        return self.target == "item" and self.negatives > 0

    def tiny(self) -> "SequenceData":
        """Returns random data of the same form, eight interactions a row."""
        return dataclasses.replace(self, cache="", batch_size=16, length=8, negatives=min(self.negatives, 6))


CONFIGS = (SequenceData,)
EVALS = ()
