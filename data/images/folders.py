"""A folder of pictures that a user has: a folder for each class, maybe below a folder for each split. No TensorFlow.

DIR/LABEL/**/*.png                          splits are drawn (data.images.sources.held_out)
DIR/train/LABEL/..., DIR/test/LABEL/...     validation/ (or val/) and test/ are taken as they are, one or both
"""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

from data import paths
from data.images import pictures
from data.images.settings import SUFFIXES, Images
from data.images.sources import Picture, Pictures, held_out
from data.labelled.splits import Item
from data.task import DataError
from models.errors import nearest

_SPLITS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}


def open_folder(folder: Path, settings: Images) -> Pictures:
    """Returns the pictures of a folder; classes are the names of the training pictures' folders, sorted.

    Raises:
      DataError: there are no pictures, fewer than two classes, or a held-out class that is not trained.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder}")
    tops = {split: folder / name for name, split in _SPLITS.items() if (folder / name).is_dir()}
    if "train" not in tops:
        tops = {"train": folder}
    files = {split: list(_files(top)) for split, top in tops.items()}
    labels = sorted({label for label, _ in files["train"]})
    if not labels:
        raise DataError(f"no pictures in {tops['train']}: expected {folder.name}/LABEL/*.png, or .jpg, .webp ...")
    if len(labels) < 2:
        raise DataError(
            f"all pictures in {tops['train']} are of one class, {labels[0]!r}: expected a folder for each class"
        )
    for label, file in itertools.chain(*files.values()):
        if label not in labels:
            raise DataError(f"{file}: no training picture is of class {label!r}{nearest(label, labels)}")

    def items(split: str) -> Iterator[Item]:
        drawn = split == "train" and len(files) < 3
        for label, file in files[split]:
            picture = Picture(file.relative_to(folder).as_posix(), label, functools.partial(pictures.read, file))
            # Copies of a picture must not be in two splits. Where none are drawn, nothing needs to be read for that.
            yield Item(paths.sha256(file) if drawn else picture.name, picture, label)

    return Pictures(tuple(labels), held_out({split: list(items(split)) for split in files}, settings))


def _files(top: Path) -> Iterator[tuple[str, Path]]:
    """Yields the class and path of each picture, sorted; hidden files and those of other formats are left alone."""
    for label in sorted(part for part in top.iterdir() if part.is_dir() and not part.name.startswith(".")):
        for file in sorted(label.rglob("*")):
            if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file():
                yield label.name, file
