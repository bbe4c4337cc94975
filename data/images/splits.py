"""Pictures with the names of their classes, in splits. No TensorFlow.

A source says which pictures there are; their files are read when they are asked for, so a set may be larger than memory.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping

from data.images.caches import ImageCache
from data.reading.splits import Item, with_missing


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture: its name in the source, the name of its class ("" where it has none), and what reads the file's content."""

    name: str
    label: str
    read: Callable[[], bytes]


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The pictures of a source: the classes in the order of their ids, and "train", "validation" and "test"."""

    labels: tuple[str, ...]
    splits: Mapping[str, Iterable[Picture]]


def held_out(splits: Mapping[str, Iterable[Item]], settings: ImageCache) -> dict[str, list[Picture]]:
    """Returns "train", "validation" and "test"; the last two are held out of the first where they are missing.

    A share of every class is held out, and items of one group together. Neither the order of pictures nor their number
    elsewhere changes which. Each split comes in the order of hashed names, so that its head has a bit of every class.
    """

    def place(picture: Picture) -> bytes:
        return hashlib.sha256(picture.name.encode()).digest()

    members = with_missing(splits, validation=settings.validation, test=settings.test)
    return {name: sorted(pictures, key=place) for name, pictures in members.items()}
