"""Packed rows of labelled examples. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import DataConfig
from data.features import Features, positions, slots


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledData(DataConfig):
    """Packed rows of labelled examples, to fine-tune an encoder.

    Attributes:
      batch_size: rows of a global batch; a row holds several examples.
      length: tokens of a row; must be the cache's.
      slots: most labels of a row; must be the cache's.
      spans: a label is the start and end of an answer, not a class.
      masked: share of a training row's tokens that are replaced by [MASK], drawn anew each time, as regularisation.
    """

    kind: ClassVar[str] = "labelled"

    length: int = 128
    slots: int
    spans: bool = False
    masked: float = 0.0

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores them, in that order."""
        texts = positions(self.length, "tokens", "segments", "positions", "types")
        targets = slots(self.slots, 2, fill=-1) if self.spans else slots(self.slots, fill=-1)
        return texts | {"slots": slots(self.slots), "targets": targets}

    def tiny(self) -> "LabelledData":
        """Returns a configuration of random tokens and labels whose batches run in seconds."""
        return dataclasses.replace(self, cache="", batch_size=16, length=16, slots=2)


CONFIGS = (LabelledData,)
EVALS = ()
