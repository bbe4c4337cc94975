"""A user's table of pictures with their classes. No TensorFlow.

A table (data.reading.tables) with a row for each picture, as metadata.csv beside the files (Hugging Face's image folders), or
Parquet and Arrow with the files' bytes (`datasets`):

    file_name, image      its path below the table's folder; or its file, bytes or {"bytes", "path"}
    label                 its class; a picture without one is left out (data.reading.labels)
    split                 train, validation or test, of all rows or of none; a split that no row has is drawn
    group                 never in two splits; copies of a picture by default
"""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

from data import untrusted
from data.images import pictures
from data.images.caches import ImageCache
from data.images.splits import Picture, Pictures, held_out
from data.reading import labels as labels_of_rows
from data.reading import media
from data.reading.media import Medium
from data.reading.splits import Item
from data.reading.tables import Row
from data.task import DataError
from models.errors import nearest, shortened


def open_table(source: Path, settings: ImageCache, scratch: Path | None = None) -> Pictures:
    """Returns the pictures of the tables of a folder, a file or a pattern. Classes are those of training, in order.

    Args:
      scratch: the folder of a file for pictures that lie in tables.

    Raises:
      DataError: a table is damaged or names a file outside its folder, there are fewer than two classes, a class is held out
        that is not trained, or a split is unknown.
    """

    def items() -> Iterator[tuple[Item, Row]]:
        for medium in media.read(source, settings.columns, media.PICTURE, scratch):
            label = _label(medium.row)
            picture = Picture(medium.name, label, functools.partial(content, medium))
            group = medium.row.get("group")
            yield Item(medium.identity() if group in (None, "") else str(group), picture, label), medium.row

    splits = media.by_split(items())
    if labels_of_rows.has_none({item.example.label for split in splits.values() for item in split}):
        splits = {split: list(map(_without_none, listed)) for split, listed in splits.items()}
    labels = sorted({item.example.label for item in splits["train"]} - {""}, key=_order)
    if len(labels) < 2:
        named = f"of one class, {labels[0]!r}" if labels else "without a class: expected a column 'label'"
        raise DataError(f"{source}: all pictures of training are {named}")
    for item in (item for split in splits.values() for item in split):
        label = item.example.label
        if label and label not in labels:
            raise DataError(f"{item.example.name}: no training picture is of class {label!r}{nearest(label, labels)}")
    return Pictures(tuple(labels), held_out(splits, settings))


def content(medium: Medium) -> bytes:
    """Returns the file of a picture; raises PictureError where there is none, or it is larger than any picture."""
    file = medium.file()
    if isinstance(file, Path):
        return pictures.read(file)
    untrusted.bounded(len(file), untrusted.PICTURE, "bytes", pictures.PictureError)
    return file


def _label(row: Row) -> str:
    value = row.get("label")
    is_part = isinstance(value, float) and value == value and not value.is_integer()
    try:
        if not is_part:
            return labels_of_rows.label_of(value)
    except ValueError:
        pass
    raise DataError(f"{row.place}: label {shortened(str(value))} is no class: expected a word or a whole number")


def _without_none(item: Item) -> Item:
    """Returns an item without the label that stands for none."""
    if item.example.label != labels_of_rows.NONE:
        return item
    return item._replace(example=dataclasses.replace(item.example, label=""), stratum="")


def _order(label: str) -> tuple[int, str]:
    return (int(label), label) if label.isdecimal() and len(label) < 10 else (1 << 40, label)
