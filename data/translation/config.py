"""Packed rows of translated pairs, and how translations are scored. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import DataConfig, Decode
from data.features import Features, positions, sides


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationData(DataConfig):
    """Packed rows of translated pairs.

    Attributes:
      source_length, target_length: tokens of a row; must be those of the cache.
      temperature: languages are drawn in proportion to n^(1/T), n a language's pairs (GShard, section 3.1: T = 5).
    """

    kind: ClassVar[str] = "translation"
    benchmark: ClassVar[str] = "gshard_m4"

    source_length: int = 128
    target_length: int = 128
    temperature: float = 5.0

    def stored(self) -> Features:
        both = sides(inputs=self.source_length, targets=self.target_length)
        return both | positions(self.target_length, "targets", fill=-1)

    def tiny(self) -> "TranslationData":
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
