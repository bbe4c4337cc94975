"""A folder of pictures that a user has: a folder for each class, maybe below a folder for each split. No TensorFlow.

DIR/LABEL/**/*.png                          splits are drawn (data.images.sources.held_out)
DIR/train/LABEL/..., DIR/test/LABEL/...     validation/ and test/ are taken as they are, one or both

Splits may be called otherwise (_SPLITS), in capitals or not.
"""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

from data import paths
from data.images import pictures
from data.images.caches import SUFFIXES, ImageCache
from data.images.splits import Picture, Pictures, held_out
from data.reading.splits import Item
from data.task import DataError
from models.errors import nearest

_SPLITS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "test": "test",
    "testing": "test",
}


def open_folder(folder: Path, settings: ImageCache) -> Pictures:
    """Returns the pictures of a folder; classes are the names of the training pictures' folders, sorted.

    Raises:
      DataError: there are no pictures, fewer than two classes, or a held-out class that is not trained; or folders of splits
        and of classes stand side by side.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder}")
    tops = _splits(folder)
    files = {split: list(_files(top)) for split, top in tops.items()}
    labels = sorted({label for label, _ in files["train"]})
    if not labels:
        raise DataError(f"no pictures in {tops['train']}: expected {folder.name}/LABEL/*.png, or .jpg, .webp ...")
    if len(labels) < 2:
        raise DataError(f"all pictures in {tops['train']} are of one class, {labels[0]!r}: expected a folder for each class")
    for label, file in itertools.chain(*files.values()):
        if label not in labels:
            raise DataError(f"{file}: no training picture is of class {label!r}{nearest(label, labels)}")

    def items(split: str) -> Iterator[Item]:
        drawn = split == "train" and len(files) < 3
        for label, file in files[split]:
            picture = Picture(file.relative_to(folder).as_posix(), label, functools.partial(pictures.read, file))
            # Copies of a picture are one group. Where no split is drawn, nothing needs to be read for that.
            yield Item(paths.sha256(file) if drawn else picture.name, picture, label)

    return Pictures(tuple(labels), held_out({split: items(split) for split in files}, settings))


def _splits(folder: Path) -> dict[str, Path]:
    """Returns the folders of the splits; that of training is the folder itself where it has none.

    A folder with the name of a split that has pictures, not folders of them, is a class: trains, for one.
    """
    tops: dict[str, Path] = {}
    others = []
    for part in _folders(folder):
        split = _SPLITS.get(part.name.lower())
        if split is None or any(map(_is_picture, part.iterdir())):
            others.append(part)
        elif split in tops:
            raise DataError(f"{folder}: {tops[split].name!r} and {part.name!r} are both the {split} split: expected one of them")
        else:
            tops[split] = part
    if not tops:
        return {"train": folder}
    named = ", ".join(repr(top.name) for top in tops.values())
    for part in others:
        if any(map(_is_picture, part.rglob("*"))):
            raise DataError(
                f"{folder}: the class {part.name!r} stands beside the splits {named}: expected DIR/train/LABEL or DIR/LABEL, "
                "not both"
            )
    if "train" not in tops:
        raise DataError(f"{folder}: the splits {named} have no 'train' beside them: expected DIR/train/LABEL or DIR/LABEL")
    return tops


def _files(top: Path) -> Iterator[tuple[str, Path]]:
    """Yields the class and path of each picture, sorted; hidden files and those of other formats are left alone."""
    for label in _folders(top):
        yield from ((label.name, file) for file in sorted(label.rglob("*")) if _is_picture(file))


def _folders(top: Path) -> list[Path]:
    return sorted(part for part in top.iterdir() if part.is_dir() and not part.name.startswith("."))


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
