"""Prepares a cache of pictures, in stages.

    packages      <data>/packages/           the source's package, checked by SHA-256
    cache         <data>/caches/NAME/        the pictures' files, as they are

A cache holds `train/all.array_record`, `validation.array_record` and `test.array_record`, with the class and the encoded file of
a picture in each record (`data.images.config.ImageData.stored`), and the names and classes of held-out pictures as
`validation.jsonl` and `test.jsonl`. Every picture is decoded once; one that cannot be, or has other channels, is left out,
counted and, if it is among the first, named.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data import paths, stages
from data.images import pictures, sources
from data.images.config import ImageData
from data.images.settings import FOLDER, TFDS, Images
from data.images.sources import Picture
from data.packages.fetch import Package
from data.reading import caches, packing
from data.reading.examples import record_of
from data.reading.files import HELD_FIRST, Contents, Tally, in_windows
from data.stages import Progress, stage
from data.task import DataError

FORMAT = 2  # version of the cache's format; increase it whenever the same packages would give another cache
PART = "all"
_WINDOW = 512  # pictures that are in memory at a time
STORED = ImageData(batch_size=1).stored()


@dataclasses.dataclass
class PictureTally(Tally):
    """Also the classes that have a picture."""

    labels: set[str] = dataclasses.field(default_factory=set)


def packages_of(settings: Images) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    return sources.packages_of(settings)


def depends_on(cache: str, settings: Images, root: Path) -> list[str]:
    """Returns the inputs of a cache beside its settings and packages: a digest of a folder's files."""
    source = settings.source
    return [paths.folder_digest(Path(source.removeprefix(FOLDER)))] if source.startswith(FOLDER) else []


def build(settings: Images, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder; returns its part of the manifest.

    Raises:
      DataError: a source holds no pictures, or none of a split that could be used.
      NotPreparedError: a public data set is not in <data>/tfds.
    """
    if settings.source.startswith(TFDS):
        stages.quiet_tensorflow()
    with stage("source", progress):
        opened = sources.open_source(settings, root)
    (folder / "train").mkdir()
    tallies, contents = {}, Contents()
    for split in HELD_FIRST:
        with stage(split, progress):
            path = folder / "train" / f"{PART}.array_record" if split == "train" else folder / f"{split}.array_record"
            tallies[split] = tally = _write(opened.splits[split], opened.labels, settings.channels, path, contents)
        first = tally.named[0] if tally.named else "there is none"
        if tally.left_out:
            progress(f"{split}: {tally.left_out:,} of {tally.rows + tally.left_out:,} pictures left out; {first}")
        if not tally.rows:
            raise DataError(f"{settings.source}: no picture of {split} can be used; {first}")
        if missing := [label for label in opened.labels if label not in tally.labels]:
            progress(f"{split}: no picture of {len(missing):,} of {len(opened.labels):,} classes, such as {missing[0]!r}")
    train = tallies["train"]
    missing = {split: [label for label in opened.labels if label not in tally.labels] for split, tally in tallies.items()}
    return {
        "labels": list(opened.labels),
        "missing": {split: labels for split, labels in missing.items() if labels},
        "parts": {PART: {"examples": train.rows, "rows": train.rows, "left_out": train.left_out}},
        "held_out": {split: tally.rows for split, tally in tallies.items() if split != "train"},
        "left_out": {split: tally.named for split, tally in tallies.items() if tally.named},
    }


def _write(members: Iterable[Picture], labels: tuple[str, ...], channels: int, path: Path, contents: Contents) -> PictureTally:
    """Writes the pictures that can be used, and the names and classes of held-out ones."""
    tally, kept = PictureTally(), []
    split = "train" if path.parent.name == "train" else path.stem
    numbers = {label: number for number, label in enumerate(labels)}

    def records() -> Iterator[bytes]:
        for picture, encoded, why in _checked(members, channels):
            if picture.label not in numbers:
                why = "has no class"
            if why := why or contents.why_copied(encoded, split):
                tally.leave_out(picture.name, why)
                continue
            tally.rows += 1
            tally.labels.add(picture.label)
            if split != "train":
                kept.append({"name": picture.name, "label": picture.label})
            yield record_of({"label": np.array(numbers[picture.label]), "picture": np.frombuffer(encoded, np.uint8)}, STORED)

    packing.write_records(path, records())
    if split != "train":
        caches.write_examples(path.with_suffix(".jsonl"), kept)
    return tally


def _checked(members: Iterable[Picture], channels: int) -> Iterator[tuple[Picture, bytes, str]]:
    """Yields each picture, its file, and why it cannot be used ("" if it can), in order; decoded by several threads."""
    return in_windows(functools.partial(_read, channels), members, _WINDOW)


def _read(channels: int, picture: Picture) -> tuple[Picture, bytes, str]:
    encoded, why = picture.read(), ""
    try:
        pictures.check(encoded, channels)
    except pictures.PictureError as error:
        why = str(error)
    return dataclasses.replace(picture, read=bytes), encoded, why  # what reads it may be no plain data
