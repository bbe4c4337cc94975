"""Settings of prepared caches of pictures, and the caches that have a name. No TensorFlow."""

import dataclasses
from pathlib import Path
from typing import ClassVar

TFDS, FOLDER = "tfds:", "folder:"
# Endings of files that are pictures.
SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """Settings of a cache of pictures.

    Attributes:
      source: a key of `data.images.sources.PACKAGES`; or "tfds:NAME", a data set of TFDS with pictures and classes; or
        "folder:DIR", a folder of pictures (`data.images.folders`).
      channels: 3, or 1 for grey. Pictures that have others are left out, as those that cannot be decoded; grey ones have 3.
      validation, test: shares of the training pictures of each class that are held out where the source has no such split, at
        least one; of a class that has too few for that, none.
    """

    kind: ClassVar[str] = "images"

    source: str
    channels: int = 3
    validation: float = 0.05
    test: float = 0.1


ENTRIES = {
    "fashion_mnist": Images(source="fashion_mnist", channels=1),
    "mnist": Images(source="mnist", channels=1),
    "emoji": Images(source="emoji"),
    # Public sets, which TFDS must have prepared.
    "cifar10": Images(source="tfds:cifar10:3.0.2"),
    "cifar100": Images(source="tfds:cifar100:3.0.2"),
    "imagenet2012": Images(source="tfds:imagenet2012:5.1.0", validation=0.01),
}


def from_source(source: str) -> Images | None:
    """Returns the settings of a cache of the user's own: of a TFDS name, or of a folder of pictures; None of anything else."""
    if source.startswith(TFDS):
        return Images(source=source)
    files = Path(source).rglob("*") if Path(source).is_dir() else ()
    shown = any(file.suffix.lower() in SUFFIXES for file in files)
    return Images(source=f"{FOLDER}{Path(source).resolve()}") if shown else None
