"""Settings of prepared caches of translated pairs, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation:
    """Settings of a cache of translated pairs.

    Attributes:
      catalogue: a key of `data.translation.sources.CATALOGUES`.
      source_vocabulary, target_vocabulary: SentencePiece ids on each side.
      source_length, target_length: tokens of a packed row on each side.
    """

    kind: ClassVar[str] = "translation"

    catalogue: str
    source_vocabulary: int
    target_vocabulary: int
    source_length: int
    target_length: int


ENTRIES = {
    "m4_quickstart": Translation(
        catalogue="permissive", source_vocabulary=4096, target_vocabulary=2048, source_length=64, target_length=48
    ),
    "m4_102": Translation(
        catalogue="m4_102", source_vocabulary=64000, target_vocabulary=32000, source_length=128, target_length=128
    ),
}
