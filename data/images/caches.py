"""The settings of prepared caches of pictures, and the caches that have a name. No TensorFlow."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from data.own_cache import TableCache
from data.packages.locations import Location
from data.reading import media

SUFFIXES = media.PICTURES  # endings of files that are pictures


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageCache(TableCache):
    """Settings of a cache of pictures.

    Attributes:
      source: a key of `data.images.sources.PACKAGES`; or "tfds:NAME", a data set of TFDS with pictures and classes; or
        "folder:DIR", a folder of pictures (`data.images.folders`); or that, "file:PATH" or "files:PATTERN" with a table of
        pictures and their classes (`data.images.tables`).
      channels: 3, or 1 for grey. Pictures that have others are left out, as those that cannot be decoded; grey ones have 3.
      validation, test: shares of the training pictures of each class that are held out where the source has no such split, at
        least one; of a class that has too few for that, none.
    """

    kind: ClassVar[str] = "images"
    made_of: ClassVar[str] = (
        "a folder of pictures, DIR/LABEL/*.png; a table of pictures with the columns file_name or image, and label (split, "
        "group); or tfds:NAME"
    )

    channels: int = 3
    validation: float = 0.05
    test: float = 0.1

    @classmethod
    def from_source(cls, source: str, columns: str = "") -> "ImageCache | None":
        """Returns the settings of a cache of a data set of TFDS, of a table of pictures with classes, or of a folder of them."""
        if Location.of(source).scheme == "tfds":
            return cls(source=source)
        if row := media.first(source, columns, media.PICTURE):
            return cls(source=str(Location.own(source)), columns=columns) if "label" in row else None
        files = Path(source).rglob("*") if Path(source).is_dir() else ()
        has_pictures = any(file.suffix.lower() in SUFFIXES for file in files)
        return cls(source=f"folder:{Path(source).resolve()}") if has_pictures else None


CACHES = (ImageCache,)
ENTRIES = {
    "fashion_mnist": ImageCache(source="fashion_mnist", channels=1),
    "mnist": ImageCache(source="mnist", channels=1),
    "emoji": ImageCache(source="emoji"),
    # Public sets, which TFDS must have prepared.
    "cifar10": ImageCache(source="tfds:cifar10:3.0.2"),
    "cifar100": ImageCache(source="tfds:cifar100:3.0.2"),
    "imagenet2012": ImageCache(source="tfds:imagenet2012:5.1.0", validation=0.01),
}
