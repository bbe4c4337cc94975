"""A user's own texts with what is to be written of each: tables of inputs and targets. No TensorFlow.

The columns are called `inputs` and `targets`, or as in well-known data sets (the names below). Both are texts, which are taken as
they are: no name of a task stands before them but one that is written there.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from data.reading import own, tables
from data.reading.own import Entry
from data.reading.tables import TableFile
from data.task import DataError

_COLUMNS = (("inputs", "targets"), ("input", "target"), ("source", "target"), ("prompt", "completion"), ("document", "summary"))


def fields_of(source: str | Path, columns: Mapping[str, str]) -> dict[str, str]:
    """Returns the columns of the inputs and of the targets of a source, by its first row; {} if it has none."""
    row = tables.first(source, columns) or {}
    if "file_name" in row:
        return {}
    pair = next((pair for pair in _COLUMNS if pair[0] in row and pair[1] in row), ())
    return dict(zip(("inputs", "targets"), pair, strict=False))


def opened(source: str | Path, columns: Mapping[str, str]) -> tuple[list[TableFile], Callable[[TableFile], Iterator[Entry]]]:
    """Returns the files of a source, and a function that yields the entries of each.

    Raises:
      DataError: there are no inputs and targets.
    """
    if not (fields := fields_of(source, columns)):
        raise DataError(f"{source}: no table with the columns inputs and targets there any more")
    return tables.files(source), functools.partial(_entries, fields, dict(columns))


def _entries(fields: Mapping[str, str], columns: Mapping[str, str], file: TableFile) -> Iterator[Entry]:
    for row in tables.rows_of(file, columns):
        split, why = own.given_split(row)
        try:
            example = {side: own.text_of(row.get(column), column) for side, column in fields.items()}
        except ValueError as problem:
            yield Entry(row.place, {}, why=str(problem))
            continue
        yield Entry(row.place, example, own.group_of(row, example["inputs"]), split, why)
