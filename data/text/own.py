"""A user's own text: files of text, or a table with a column of texts. No TensorFlow.

A file of text becomes documents that end at an empty line once they are long enough, so that files of any length are read in
bounded memory and a single one can be divided into splits. Where there are many files, the documents of each are in one split.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from data import untrusted
from data.reading import own, tables
from data.reading.own import Entry
from data.reading.tables import Row, TableFile
from data.task import DataError

PLAIN = (".txt", ".md", ".text")
_COLUMNS = ("text", "content", "document")
_DOCUMENT = 1 << 14  # characters after which a document ends at an empty line
_LONGEST = 1 << 20  # characters after which it ends at any line
_MANY = 20  # files of which each is a group


def column_of(row: Row) -> str:
    """Returns the column of the texts: one of the usual names, or the only one; "" if there is none."""
    if "file_name" in row:
        return ""
    only = [name for name in row if name != tables.SPLIT]
    return next((name for name in _COLUMNS if name in row), only[0] if len(only) == 1 and isinstance(row[only[0]], str) else "")


def is_text(source: str | Path, columns: Mapping[str, str]) -> bool:
    """Returns whether a source holds text."""
    row = tables.first(source, columns)
    return bool(row and column_of(row)) or bool(_plain(source))


def _plain(source: str | Path) -> list[Path]:
    return tables.listed(source, PLAIN.__contains__)


def opened(source: str | Path, columns: Mapping[str, str]) -> tuple[list[TableFile], Callable[[TableFile], Iterator[Entry]]]:
    """Returns the files of a source, and a function that yields the documents of each.

    Raises:
      DataError: there is no text.
    """
    row = tables.first(source, columns)
    if row and (column := column_of(row)):
        return tables.files(source), functools.partial(_rows, column, dict(columns))
    files = tables.with_splits(source, _plain(source))
    if not files:
        raise DataError(f"{source}: no text there; expected files {', '.join(PLAIN)}, or a table with a column text")
    return files, functools.partial(_documents, len(files) >= _MANY)


def _rows(column: str, columns: Mapping[str, str], file: TableFile) -> Iterator[Entry]:
    for row in tables.rows_of(file, columns):
        split, why = own.given_split(row)
        try:
            text = own.text_of(row.get(column), column)
        except ValueError as problem:
            yield Entry(row.place, {}, why=str(problem))
            continue
        yield Entry(row.place, {"id": row.place, "text": text}, own.group_of(row, text), split, why)


def _documents(is_group: bool, file: TableFile) -> Iterator[Entry]:
    name = file.path.name
    try:
        for number, text in enumerate(_pieces(file.path), 1):
            group = {"group": str(file.path)} if is_group else {}
            place = f"{name}, document {number}"
            yield Entry(place, {"id": place, "text": text}, own.group_of(Row(group), text), file.split)
    except DataError as problem:  # the other files can be read
        yield Entry(name, {}, why=str(problem))


def _pieces(path: Path) -> Iterator[str]:
    """Yields the documents of a file of text."""
    lines, size = list[str](), 0
    for _, line in untrusted.lines(path, DataError):
        line = line.removesuffix("\n").removesuffix("\r")
        if (not line.strip() and size >= _DOCUMENT) or size >= _LONGEST:
            yield "\n".join(lines).rstrip()
            lines, size = [], 0
        if lines or line.strip():  # no document begins with an empty line
            lines.append(line)
            size += len(line) + 1
    if text := "\n".join(lines).rstrip():
        yield text
