"""Prepares a cache of pictures: their files as they are, each with its class.

A cache holds `train/all.array_record`, `validation.array_record` and `test.array_record`, with the class and the encoded file of
a picture in each record (`data.images.config.ImageData.stored`), and the names and classes of held-out pictures as
`validation.jsonl` and `test.jsonl`. Every picture is decoded once; one that cannot be, or has other channels, is left out,
counted and, if it is among the first, named.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data import stages
from data.cache_maker import RecordedMaker
from data.images import pictures, sources
from data.images.caches import ImageCache
from data.images.config import ImageData
from data.images.splits import Picture
from data.reading import media
from data.reading.examples import record_of, unpack
from data.reading.files import in_windows
from data.reading.tally import Tally

_WINDOW = 512  # pictures that are in memory at a time
STORED = ImageData(batch_size=1).stored()


class ImageMaker(RecordedMaker[ImageCache]):
    """Makes a cache of pictures."""

    FORMAT = 2
    NOUN = "picture"
    REQUIRED = True
    SOURCES = sources.PACKAGES

    def inputs(self) -> list[Any]:
        """Returns the digests of a user's folder, or of his table and the files that it names."""
        return [*super().inputs(), *media.beside(self.location, self.settings.columns, media.PICTURE)]

    def open(self) -> None:
        if self.location.scheme == "tfds":
            stages.quiet_tensorflow()
        self.source = sources.open_source(self.settings, self.root)
        self.labels: dict[str, set[str]] = {}  # of the pictures of each split
        self.numbers = {label: number for number, label in enumerate(self.source.labels)}

    def own_files(self) -> Sequence[Path]:
        if (tables := super().own_files()) or not self.location.is_own:
            return tables
        return sorted(self.location.path / picture.name for split in self.source.splits.values() for picture in split)

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        return (record for record, _ in self.held_out("train", tally))

    def held_out(self, split: str, tally: Tally) -> Iterator[tuple[bytes, dict[str, Any]]]:
        labels = self.labels[split] = set()
        read = functools.partial(_read, self.settings.channels)
        for picture, encoded, why in in_windows(read, self.source.splits[split], _WINDOW):
            if picture.label not in self.numbers:
                why = "has no class"
            if why := why or self.contents.why_copied(encoded, split):
                tally.leave_out(picture.name, why)
                continue
            tally.examples += 1
            labels.add(picture.label)
            row = {"label": np.array(self.numbers[picture.label]), "picture": np.frombuffer(encoded, np.uint8)}
            yield record_of(row, STORED), {"name": picture.name, "label": picture.label}

    def show(self, part: str, record: bytes) -> str:
        row = unpack(np.frombuffer(record, np.uint8), STORED)
        return f"{pictures.described(row['picture'].tobytes())}, of class {self.source.labels[int(row['label'])]!r}"

    def manifest(self) -> dict[str, Any]:
        missing = self.missing(self.source.labels, self.labels)
        return {**super().manifest(), "labels": list(self.source.labels), "missing": missing}


def _read(channels: int, picture: Picture) -> tuple[Picture, bytes, str]:
    """Returns a picture, its file, and why it cannot be used ("" if it can)."""
    encoded, why = b"", ""
    try:
        encoded = picture.read()
        pictures.check(encoded, channels)
    except pictures.PictureError as error:
        why = str(error)
    return dataclasses.replace(picture, read=bytes), encoded, why  # what reads it may be no plain data


MAKERS = {ImageCache: ImageMaker}
