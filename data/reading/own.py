"""A user's own examples, read from files one after the other as often as they are needed, and divided into splits.

Splits that the rows name, or their files, are obeyed; one that is not named is drawn from the training rows by group. Memory does
not grow with the files: the first pass counts, and each split is a pass of its own.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from data.reading import tables
from data.reading.splits import Division, Groups, text_key
from data.reading.tally import Tally
from data.task import DataError
from models.errors import nearest, shortened


class Entry(NamedTuple):
    """An example of a user's file, or what cannot be used as one.

    Attributes:
      place: where it stands, for messages.
      example: the raw example as a cache keeps it.
      group: never in two splits.
      split: the split that it is given; "" if it has none.
      why: why it is left out; "" if it is not.
    """

    place: str
    example: dict[str, Any]
    group: str = ""
    split: str = ""
    why: str = ""


_NO_TEXT = {list: "a list", dict: "an object", bytes: "of bytes"}

Read = Callable[[Any], Iterator[Entry]]


class OwnSplit:
    """The examples of a split, in the order of the files. It can be pickled, and read in slices (`Sliceable`)."""

    def __init__(self, files: Sequence[Any], read: Read, division: Division, split: str):
        self._files, self._read, self._division, self._split = files, read, division, split

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return itertools.chain.from_iterable(map(self._of, self._files))

    def _of(self, file: Any) -> Iterator[dict[str, Any]]:
        return (e.example for e in self._read(file) if not e.why and split_of(e, self._division) == self._split)

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The number of the examples of each file."""
        return [sum(1 for _ in self._of(file)) for file in self._files]

    def of_files(self, files: Sequence[Any]) -> "OwnSplit":
        """Returns the examples of some of the files."""
        return OwnSplit(files, self._read, self._division, self._split)

    def __len__(self) -> int:
        return sum(self.sizes)

    def slice(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yields the examples from one index to another; files before the first are not read."""
        for file, size in zip(self._files, self.sizes, strict=True):
            if start < size and stop > 0:
                yield from itertools.islice(self._of(file), max(0, start), stop)
            start, stop = start - size, stop - size


def split_of(entry: Entry, division: Division) -> str:
    """Returns the split of an entry: the one that it is given, or else the one that its group is in."""
    return division.split_of(entry.group) if entry.split in ("", "train") else entry.split


def divided(
    files: Sequence[Any],
    read: Read,
    tally: Tally,
    *,
    validation: float,
    test: float,
    seen: Callable[[dict[str, Any], Any], None] = lambda example, file: None,
) -> dict[str, OwnSplit]:
    """Reads all files once, and returns their examples by split.

    Args:
      files: whatever `read` takes.
      read: yields the entries of a file; it can be pickled, for Apache Beam.
      tally: counts the examples that can be used, and those that are left out.
      validation, test: shares of the training groups that are held out where no row is given that split.
      seen: called with each example that can be used, and with its file.

    Raises:
      DataError: no example can be used, none is for training, some have a split and others none, or a share is none.
    """
    for name, share in (("validation", validation), ("test", test)):
        if not 0 <= share < 1:
            raise DataError(f"{name}={share}: expected a share, from 0 to less than 1")
    groups, sizes = Groups(), Counter[str]()
    without = ""
    for source, entry in ((file, entry) for file in files for entry in read(file)):
        if entry.why:
            tally.leave_out(entry.place, entry.why)
            continue
        without = without or ("" if entry.split else entry.place)
        if entry.split in ("", "train"):
            groups.add(entry.group)
        sizes[entry.split] += 1
        seen(entry.example, source)
    if not sizes:
        raise DataError(f"no example can be used{f'; {tally.reasons[0]}' if tally.reasons else ''}")
    if not sizes[""] and not sizes["train"]:
        raise DataError(f"no row is of the split 'train', but of {', '.join(map(repr, sizes))}")
    if sizes[""] and len(sizes) > 1:
        raise DataError(f"{without}: no split, which {sizes.total() - sizes['']:,} other rows have")
    tally.examples = sizes.total()
    shares = {name: 0.0 if sizes[name] else share for name, share in (("validation", validation), ("test", test))}
    division = groups.division(**shares)
    return {split: OwnSplit(files, read, division, split) for split in tables.SPLITS}


def check_is_text(value: Any, name: str) -> None:
    """Raises ValueError for a value that would be none of a person's texts if it were written as one."""
    if isinstance(value, list | dict | bytes):
        raise ValueError(f"its {name} is {_NO_TEXT[type(value)]}, and no text")


def text_of(value: Any, name: str) -> str:
    """Returns a value as a text; raises ValueError if it is none, as NaN or a list, or is blank, or holds half a character."""
    check_is_text(value, name)
    text = "" if value is None or value != value else str(value)
    if not text.strip():
        raise ValueError(f"no {name}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"its {name} holds half of a character in UTF-16") from None
    return text


def group_of(row: tables.Row, text: str) -> str:
    """Returns the group of a row: its column `group`, or else what identifies its text."""
    group = row.get("group")
    return str(group) if group not in (None, "") else text_key(text) or text


def given_split(row: tables.Row) -> tuple[str, str]:
    """Returns (the split that a row is given, why the row is left out: its split is none that is used here)."""
    split = tables.split_of(row)
    if split in ("", *tables.SPLITS):
        return split, ""
    return "", f"its split is {shortened(split)!r}{nearest(split, tables.SPLITS)}"
