"""A user's table of pictures with captions. No TensorFlow.

A table as that of pictures with classes (data.images.tables), with a caption, or a list of them, in place of a label, and the
language of the captions, "en" by default. Each caption is an example of its own; those of one picture are in one split.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

from data.images.tables import content
from data.multimodal.caches import CAPTIONS
from data.multimodal.sources import PICTURE, Clip
from data.reading import media
from data.reading.splits import Item
from data.reading.tables import Row


def captioned(source: Path, columns: str, scratch: Path | None = None) -> dict[str, list[Item]]:
    """Returns the pictures of a table with their captions, by the splits that its rows are given; all are "train" if none is.

    Raises:
      DataError: a table is damaged, names a file outside its folder, or has unknown splits.
    """

    def items() -> Iterator[tuple[Item, Row]]:
        for medium in media.read(source, columns, media.PICTURE, scratch):
            row = medium.row
            language, group = str(row.get("language") or "en"), row.get("group")
            group = medium.identity() if group in (None, "") else str(group)
            for text in _captions(row) or [""]:
                clip = Clip(medium.name, {language: text} if text else {}, PICTURE, functools.partial(content, medium))
                yield Item(group, clip), row

    return media.by_split(items())


def _captions(row: Row) -> list[str]:
    """Returns the captions of a row, without blank ones."""
    name = next((name for name in CAPTIONS if row.get(name)), CAPTIONS[0])
    value = row.get(name)
    texts = (media.text_of(text, name, row.place) for text in (value if isinstance(value, list) else [value]))
    return [text for text in texts if text.strip()]
