"""The settings of prepared caches of translated pairs, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import CacheConfig
from data.own_cache import OwnCache
from data.reading.tables import columns_of
from data.task import DataError
from data.translation import own


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


TRAINED = "sentencepiece"
_SIZES = (4096, 2048)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTranslationCache(OwnCache):
    """Settings of a cache of a user's own translations (data/translation/own.py).

    Attributes:
      tokenizer: "sentencepiece" trains two vocabularies on the training pairs; "" is that of the folder of an M2M-100 or NLLB
        that `scripts.prepare_data --vocabulary` names.
      to: the language that is translated into, out of all others; "" is English, or the last of two others.
      source_vocabulary, target_vocabulary: ids of the vocabularies that are trained; 0 is 4,096 and 2,048, or as many as the
        texts fill.
      source_length, target_length: tokens of a packed row on each side.
    """

    kind: ClassVar[str] = "translation"
    made_of: ClassVar[str] = (
        "a table of translations with a column for each language (en, de), aligned files corpus.en and corpus.de, .tmx or .po"
    )

    tokenizer: str = TRAINED
    to: str = ""
    source_vocabulary: int = 0
    target_vocabulary: int = 0
    source_length: int = 64
    target_length: int = 48

    def __post_init__(self) -> None:
        if self.tokenizer not in ("", TRAINED):
            raise DataError(f"tokenizer={self.tokenizer!r}: is no translator's; take the folder of an M2M-100 or NLLB")

    @property
    def sizes(self) -> tuple[tuple[int, bool], tuple[int, bool]]:
        """The ids of the source's and of the target's vocabulary, each with whether there may be fewer."""
        source, target = self.source_vocabulary, self.target_vocabulary
        return (source or _SIZES[0], not source), (target or _SIZES[1], not target)

    @classmethod
    def is_made_of(cls, source: str, columns: str) -> bool:
        """Returns whether a source holds translations."""
        return own.texts_of(source, columns_of(columns)) is not None


CACHES = (TranslationCache, OwnTranslationCache)
ENTRIES = {
    "m4_quickstart": TranslationCache(
        catalogue="permissive", source_vocabulary=4096, target_vocabulary=2048, source_length=64, target_length=48
    ),
    "m4_iberian": TranslationCache(
        catalogue="m4_iberian", source_vocabulary=4096, target_vocabulary=2048, source_length=64, target_length=48
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
