"""Packed rows of translated pairs, and how translations are scored. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import Decode
from data.features import Features, positions, sides


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationData:
    """Packed rows of translated pairs.

    Attributes:
      cache: name of the prepared cache (a key of data.prepare.PREPARED); "" is random tokens in full rows, for
        throughput and tests: no data files, no TensorFlow.
      batch_size: rows of a global batch.
      source_length, target_length: tokens of a row; must be those of the cache.
      temperature: languages are drawn in proportion to n^(1/T), n a language's pairs (GShard, section 3.1: T = 5).
      seed: of the order in which rows come.
    """

    kind: ClassVar[str] = "translation"
    benchmark: ClassVar[str] = "gshard_m4"  # by which runs are measured (trainers/measure/mlperf_rules.py)

    cache: str = ""
    batch_size: int
    source_length: int = 128
    target_length: int = 128
    temperature: float = 5.0
    seed: int = 0

    def stored(self) -> Features:
        """A row as the cache stores it, in that order."""
        both = sides(inputs=self.source_length, targets=self.target_length)
        return both | positions(self.target_length, "targets", fill=-1)

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it."""
        return self.stored()

    def tiny(self) -> "TranslationData":
        """Random tokens in a batch that runs in seconds."""
        return TranslationData(batch_size=16, source_length=16, target_length=16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translate(Decode):
    """Translation, and its scores. Beams and length penalty are Lingvo's.

    Attributes:
      per_language: at most so many sentences of each language; 0 takes all.
    """

    per_language: int = 0


CONFIGS = (TranslationData,)
EVALS = (Translate,)
