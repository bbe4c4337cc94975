"""The settings of prepared caches of pictures and sounds with texts, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import CacheConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultimodalCache(CacheConfig):
    """Settings of a cache.

    Attributes:
      sources: keys of `data.multimodal.sources.SOURCES`.
      texts_in: languages of which texts are taken; () takes all that a source has.
      seconds: the longest sound; longer ones are left out.
      targets_length: tokens of a text; longer ones are left out.
      vocabulary_size: ids of the byte-level BPE that is trained on the training texts.
      validation, test: shares of the groups (an emoji in all skin tones and genders, a level of the game) that are held out.
    """

    kind: ClassVar[str] = "multimodal"

    sources: tuple[str, ...]
    texts_in: tuple[str, ...] = ()
    seconds: float = 8.0
    targets_length: int = 48
    vocabulary_size: int = 4096
    validation: float = 0.05
    test: float = 0.1


CACHES = (MultimodalCache,)
ENTRIES = {"emoji_names": MultimodalCache(sources=("emoji",)), "multimodal": MultimodalCache(sources=("emoji", "fillets"))}
