"""Pictures and sounds that the rows of a user's table have: as files beside the table, or as bytes in it. No TensorFlow.

A folder's tables are those that are called metadata (metadata.csv, metadata.jsonl, ...), in it or below it; or, where it has no
pictures and sounds but in its tables, all tables. A file that a row names lies in the folder of its table, or below it.
"""

import dataclasses
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from data import paths, untrusted
from data.packages.locations import Location
from data.reading import own, tables
from data.reading.splits import Item
from data.reading.tables import Row, TableFile
from data.task import DataError
from models.errors import nearest, shortened

PICTURES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"))
SOUNDS = frozenset((".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".au", ".caf"))

_NAMED = "metadata"
_FORMS = (".csv", ".tsv", ".jsonl", *tables.FORMS)  # of a folder's tables called metadata, the first that it has


@dataclasses.dataclass(frozen=True)
class Form:
    """The columns that may hold one thing of a row, such as its picture or its text.

    Attributes:
      columns: columns that may hold it, the first that a row has.
      others: endings of files that are something else.
    """

    columns: tuple[str, ...]
    others: frozenset[str]

    def column(self, row: Mapping[str, Any]) -> str | None:
        """Returns the column of a row that holds it; None if none does."""
        for name in self.columns:
            value = row.get(name)
            path = value.get("path") if isinstance(value, dict) else value
            wrong = isinstance(path, str) and Path(path).suffix.lower() in self.others
            if value not in (None, "") and isinstance(value, str | bytes | dict) and not wrong:
                return name
        return None


PICTURE = Form(("file_name", "image", "picture"), SOUNDS)
SOUND = Form(("file_name", "audio", "audio_filepath", "sound"), PICTURES)


@dataclasses.dataclass(frozen=True)
class Medium:
    """A picture or a sound: its name, its row, and what returns its file, the path of one or the content."""

    name: str
    row: Row
    file: Callable[[], Path | bytes]

    def identity(self) -> str:
        """Returns the digest of its content, or else its name where that cannot be read."""
        file = self.file()
        if isinstance(file, bytes):
            return hashlib.sha256(file).hexdigest()
        try:
            return paths.sha256(untrusted.regular(file, DataError))
        except (DataError, OSError):
            return self.name


class Store:
    """Contents that are kept in a file without a name, not in memory, until they are asked for."""

    def __init__(self, folder: Path | None):
        self._file, self._size = tempfile.TemporaryFile(dir=folder), 0  # noqa: SIM115

    def add(self, content: bytes) -> Callable[[], bytes]:
        """Keeps a content; returns what reads it."""
        self._file.write(content)
        self._file.flush()
        at, self._size = self._size, self._size + len(content)
        return functools.partial(self._read, at, len(content))

    def _read(self, at: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, at)


def tables_of(source: Path) -> list[TableFile]:
    """Returns the tables of a folder, a file or a pattern that may have pictures and sounds; [] if there are none."""
    listed = tables.files(source)
    if not source.is_dir() or tables.is_saved(source):
        return listed
    named: dict[Path, TableFile] = {}
    for table in listed:
        before = named.get(table.path.parent)
        if table.path.name.lower().partition(".")[0] == _NAMED and (before is None or _rank(table) < _rank(before)):
            named[table.path.parent] = table
    if named or not listed:
        return list(named.values())
    return [] if any(file.suffix.lower() in PICTURES | SOUNDS for file in source.rglob("*")) else listed


def _rank(table: TableFile) -> int:
    return _FORMS.index(tables.form_of(table.path))


def first(source: str, columns: str, form: Form) -> Row | None:
    """Returns the first row of a source's tables, if it has what this form says; else None."""
    if ":" in source:
        return None
    renamed = tables.columns_of(columns)
    rows = (row for table in tables_of(Path(source)) for row in tables.rows_of(table, renamed))
    row = next(rows, None)
    return row if row is not None and form.column(row) else None


def is_described(source: str, endings: Collection[str]) -> bool:
    """Returns whether a folder has files with one of these endings, and tables beside them, whatever their columns."""
    files = Path(source).rglob("*") if ":" not in source and Path(source).is_dir() and tables_of(Path(source)) else ()
    return any(file.suffix.lower() in endings for file in files)


def read(source: Path, columns: str, form: Form, scratch: Path | None) -> Iterator[Medium]:
    """Yields the pictures or sounds of a source's tables, whose contents are not in memory.

    Args:
      columns: columns that are called otherwise, "text=body,label=topic".
      scratch: the folder of a file for contents that lie in tables; None is the system's.

    Raises:
      DataError: a table is damaged, or a row has nothing of the form, or names a file outside the table's folder.
    """
    store = None
    for folder, row, name in _rows(source, columns, form):
        value = row.pop(name)
        if isinstance(value, dict):
            content, path = value.get("bytes"), value.get("path")
        else:
            content, path = (value, None) if isinstance(value, bytes) else (None, value)
        if content is not None:
            store = store or Store(scratch)
            # Not by its path: nothing keeps rows from having the same.
            yield Medium(row.place, row, store.add(_bytes(content, row, name)))
        else:
            inside = _inside(path, folder, row, name)
            yield Medium(inside, row, functools.partial(Path, folder, inside))


def _rows(source: Path, columns: str, form: Form) -> Iterator[tuple[Path, Row, str]]:
    """Yields (the folder of the table, a row, the column of what it has)."""
    renamed = tables.columns_of(columns)
    for table in tables_of(source):
        for row in tables.rows_of(table, renamed):
            name = form.column(row)
            if name is None:
                column = next((column for column in form.columns if column in row), "")
                if column:
                    raise DataError(f"{row.place}: no {column}")
                raise DataError(f"{row.place}: no column {form.columns[0]!r}{nearest(form.columns[0], row)}")
            yield table.path.parent, row, name


def _bytes(content: Any, row: Row, name: str) -> bytes:
    if not isinstance(content, bytes):
        raise DataError(f"{row.place}: {name} is damaged: expected bytes")
    return content


def _inside(path: Any, folder: Path, row: Row, name: str) -> str:
    """Returns the path of a file relative to its table's folder."""
    if not isinstance(path, str) or not path:
        raise DataError(f"{row.place}: no {name}")
    top = f"{folder.absolute()}/"
    inside = path.removeprefix(top) if path.startswith(top) else path
    if not untrusted.is_within(inside):
        raise DataError(f"{row.place}: {name} {shortened(path)!r} leaves the folder of its table")
    return inside


def text_of(value: Any, column: str, place: str) -> str:
    """Returns a value of a row as a text; "" where there is none; raises DataError where it is a list or an object."""
    try:
        own.check_is_text(value, column)
    except ValueError as problem:
        raise DataError(f"{place}: {problem}") from None
    return "" if value is None or value != value else str(value)


def beside(location: Location, columns: str, form: Form) -> list[str]:
    """Returns a digest of the files that a user's table names, by their sizes and times, where that of the source has none."""
    if location.scheme not in ("file", "files"):
        return []
    digest = hashlib.sha256()
    for folder, row, name in _rows(location.path, columns, form):
        value = row[name]
        path = value.get("path") if isinstance(value, dict) and value.get("bytes") is None else value
        if isinstance(path, str):
            file = folder / _inside(path, folder, row, name)
            stat = file.stat() if file.is_file() else None
            digest.update(repr((path, stat and (stat.st_size, stat.st_mtime_ns))).encode())
    return [digest.hexdigest()]


def by_split(items: Iterable[tuple[Item, Row]]) -> dict[str, list[Item]]:
    """Returns items by the splits that their rows are given; all are "train" where none is.

    Raises:
      DataError: some rows have a split and others none, a split is unknown, or no row is for training.
    """
    splits: dict[str, list[Item]] = {}
    places: dict[str, str] = {}
    count = 0
    for item, row in items:
        split = tables.split_of(row)
        if split not in ("", *tables.SPLITS):
            raise DataError(f"{row.place}: no split {shortened(split)!r}{nearest(split, tables.SPLITS)}")
        places.setdefault(split, row.place)
        splits.setdefault(split, []).append(item)
        count += 1
    if not splits:
        raise DataError("the table has no rows")
    if "" not in splits:
        if "train" not in splits:
            raise DataError(f"no row is of the split 'train', but of {', '.join(map(repr, splits))}")
        return splits
    if len(splits) > 1:
        raise DataError(f"{places['']}: no split, which {count - len(splits['']):,} other rows have")
    return {"train": splits[""]}
