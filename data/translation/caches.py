"""The settings of prepared caches of translated pairs, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import CacheConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationCache(CacheConfig):
    """Settings of a cache of translated pairs.

    Attributes:
      catalogue: a key of `data.translation.sources.CATALOGUES`.
      source_vocabulary, target_vocabulary: SentencePiece ids on each side, trained on the catalogue; 0 on both sides takes
        the vocabulary of released weights (M2M-100, NLLB), which is given when the cache is prepared.
      source_length, target_length: tokens of a packed row on each side.
    """

    kind: ClassVar[str] = "translation"

    catalogue: str
    source_vocabulary: int
    target_vocabulary: int
    source_length: int
    target_length: int

    @property
    def released(self) -> bool:
        return not self.source_vocabulary


CACHES = (TranslationCache,)
ENTRIES = {
    "m4_quickstart": TranslationCache(
        catalogue="permissive", source_vocabulary=4096, target_vocabulary=2048, source_length=64, target_length=48
    ),
    # The vocabularies are as large as m4_quickstart's, so that one experiment takes either.
    "m4_3": TranslationCache(
        catalogue="m4_3", source_vocabulary=4096, target_vocabulary=2048, source_length=64, target_length=48
    ),
    "m4_102": TranslationCache(
        catalogue="m4_102", source_vocabulary=64000, target_vocabulary=32000, source_length=128, target_length=128
    ),
    # For models so small that their vocabulary would be most of them.
    "m4_102_small": TranslationCache(
        catalogue="m4_102", source_vocabulary=8192, target_vocabulary=4096, source_length=64, target_length=48
    ),
    # For fine-tuning M2M-100 and NLLB.
    "m4_quickstart_released": TranslationCache(
        catalogue="permissive", source_vocabulary=0, target_vocabulary=0, source_length=64, target_length=48
    ),
    "m4_102_released": TranslationCache(
        catalogue="m4_102", source_vocabulary=0, target_vocabulary=0, source_length=128, target_length=128
    ),
}
