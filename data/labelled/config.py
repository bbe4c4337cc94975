"""Packed rows of labelled examples. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar

from data.features import Features, positions, slots


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledData:
    """Packed rows of labelled examples, to fine-tune an encoder.

    Attributes:
      cache: name of the prepared cache; "" is random tokens and labels, see TranslationData.
      batch_size: rows of a global batch; a row holds several examples.
      length: tokens of a row; must be the cache's.
      slots: most labels of a row; must be the cache's.
      spans: a label is the start and end of an answer, not a class.
      masked: share of a training row's tokens that are replaced by [MASK], drawn anew each time, as regularisation.
      seed: seed of the order of rows.
    """

    kind: ClassVar[str] = "labelled"
    benchmark: ClassVar[str] = "throughput"  # the benchmark that measures runs (trainers/measure/mlperf_rules.py)

    cache: str = ""
    batch_size: int
    length: int = 128
    slots: int
    spans: bool = False
    masked: float = 0.0
    seed: int = 0

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores them, in that order."""
        texts = positions(self.length, "tokens", "segments", "positions", "types")
        targets = slots(self.slots, 2, fill=-1) if self.spans else slots(self.slots, fill=-1)
        return texts | {"slots": slots(self.slots), "targets": targets}

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it."""
        return self.stored()

    def tiny(self) -> "LabelledData":
        """Returns a configuration of random tokens and labels whose batches run in seconds."""
        return dataclasses.replace(self, cache="", batch_size=16, length=16, slots=2)


CONFIGS = (LabelledData,)
EVALS = ()
