"""The settings of prepared caches of pictures and sounds with texts, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import Any, ClassVar

from data.config import CacheConfig
from data.packages.locations import Location
from data.reading import media

CAPTIONS = ("caption", "captions", "text", "sentence", "sentences")  # columns of a table


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultimodalCache(CacheConfig):
    """Settings of a cache.

    Attributes:
      sources: keys of `data.multimodal.sources.SOURCES`; or "file:PATH", "folder:DIR" or "files:PATTERN", a user's table of
        pictures with captions (data.multimodal.own).
      texts_in: languages of which texts are taken; () takes all that a source has.
      seconds: the longest sound; longer ones are left out.
      targets_length: tokens of a text; longer ones are left out.
      vocabulary_size: ids of the byte-level BPE that is trained on the training texts.
      validation, test: shares of the groups (an emoji in all skin tones and genders, a level of the game) that are held out.
      columns: the columns of a table that have other names, "caption=description".
    """

    kind: ClassVar[str] = "multimodal"
    made_of: ClassVar[str] = (
        "a table of pictures with the columns file_name or image, and caption or text, a caption or several (language, "
        "split, group)"
    )

    sources: tuple[str, ...]
    texts_in: tuple[str, ...] = ()
    seconds: float = 8.0
    targets_length: int = 48
    vocabulary_size: int = 4096
    validation: float = 0.05
    test: float = 0.1
    columns: str = ""

    def flat(self) -> dict[str, Any]:
        """Returns the settings by name; without the columns where there are none, as in caches that were prepared before."""
        return {name: value for name, value in vars(self).items() if value or name != "columns"}

    @classmethod
    def from_source(cls, source: str, columns: str = "") -> "MultimodalCache | None":
        """Returns the settings of a cache of a table of pictures with captions."""
        row = media.first(source, columns, media.PICTURE)
        if row is None or not any(row.get(name) for name in CAPTIONS):
            return None
        return cls(sources=(str(Location.own(source)),), columns=columns)


CACHES = (MultimodalCache,)
ENTRIES = {"emoji_names": MultimodalCache(sources=("emoji",)), "multimodal": MultimodalCache(sources=("emoji", "fillets"))}
