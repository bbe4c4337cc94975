"""Rows of tables that people have, one after the other in bounded memory. No TensorFlow.

    .csv               comma-separated (or by semicolons, where the header has no comma), quoted, with a header
    .tsv               tab-separated, with a header; a quotation mark is a character like any other
    .jsonl, .json      JSON lines; or one list of objects; or one object, whose "data" may be such a list
    .parquet           Apache Parquet
    .arrow, .feather   Arrow's files and streams
    a folder           all tables in it and below it; or what `save_to_disk` of `datasets` wrote, of one split or of several
    a pattern          all tables that it matches, such as "data/train-*.parquet"

CSV, TSV and JSON may be compressed (`untrusted.COMPRESSED`). A table that `datasets` wrote has the names of its classes in place
of their numbers. A row's `split` is its column, or the split that its file is named for.

Data for alignment have the same rows in several splits, each for a purpose: train_sft, train_prefs, train_gen. Files and splits
of one purpose are read, the first of PURPOSES that there is, as those of the split before it.
"""

import contextlib
import csv
import glob
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from data import untrusted
from data.task import DataError
from models.errors import nearest, shortened, told

FORMS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".arrow", ".feather")
SPLITS = ("train", "validation", "test")
SPLIT = "split"  # the column of a row's split
PURPOSES = ("prefs", "sft", "gen")  # preferences have the columns of the others too

_ALIASES = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation", "testing": "test"}
_SPLIT_NAME = re.compile(rf"(?:^|[\W_])({'|'.join([*SPLITS, *_ALIASES])})(?=[\W_\d]|$)")
_PURPOSE = re.compile(rf"(?:^|[\W_])(?:{'|'.join([*SPLITS, *_ALIASES])})_({'|'.join(PURPOSES)})(?=[\W_\d]|$)")
_STATE, _SPLITS_FILE = "state.json", "dataset_dict.json"  # of `save_to_disk`
_FIRST = 1 << 16  # characters in which a JSON file shows whether it is lines
_ROWS, _BATCH = 1024, 16 << 20  # rows and bytes that are turned into Python's objects at a time
_MAGIC = b"ARROW1"


Name = TypeVar("Name", str, Path)


class Row(dict[str, Any]):
    """A row of a table: its values by column. `place` is where it stands, for messages: "labels.csv, row 3"."""

    place: str = ""


class TableFile(NamedTuple):
    """A file of a table, and the split that it is named for; "" if it is for none."""

    path: Path
    split: str = ""


def form_of(path: Path) -> str:
    """Returns the ending of a file's name, in lower case, without that of its compression: ".csv" of "labels.csv.gz"."""
    return Path(path.stem if path.suffix in untrusted.COMPRESSED else path.name).suffix.lower()


def listed(source: str | Path, takes: Callable[[str], bool] = FORMS.__contains__) -> list[Path]:
    """Returns the files whose endings it takes, sorted: one that `source` names, those that it matches, or those below a folder.

    Files and folders whose names begin with a dot are left out of a folder.

    Raises:
      DataError: it names nothing.
    """
    path = Path(source)
    if path.is_dir():
        below = (file for file in path.rglob("*") if not any(part.startswith(".") for part in file.relative_to(path).parts))
        return sorted(file for file in below if takes(form_of(file)) and not file.is_dir())
    if path.exists():
        return [path] if takes(form_of(path)) else []
    matched = glob.glob(str(source), recursive=True) if glob.has_magic(str(source)) else []
    if not matched:
        raise DataError(f"{str(source)!r}: no such file or folder")
    files = {file for match in map(Path, matched) for file in (listed(match, takes) if match.is_dir() else [match])}
    return sorted(file for file in files if takes(form_of(file)))


def is_saved(folder: Path) -> bool:
    """Returns whether `save_to_disk` of `datasets` wrote a folder."""
    return any((folder / name).is_file() for name in (_STATE, _SPLITS_FILE))


def files(source: str | Path) -> list[TableFile]:
    """Returns the files of a table; [] if there is none.

    Raises:
      DataError: the source does not exist, or a folder of `save_to_disk` is damaged.
    """
    path = Path(source)
    if (path / _SPLITS_FILE).is_file():
        names = untrusted.read_json(path / _SPLITS_FILE, DataError).get("splits")
        if not isinstance(names, list) or not all(isinstance(name, str) and untrusted.is_within(name) for name in names):
            raise DataError(f"{path / _SPLITS_FILE} is damaged: expected the names of splits")
        return [TableFile(file, split_name(name)) for name in of_one_purpose(names) for file in _saved(path / name)]
    if (path / _STATE).is_file():
        return [TableFile(file) for file in _saved(path)]
    return with_splits(source, listed(source))


def with_splits(source: str | Path, paths: Sequence[Path]) -> list[TableFile]:
    """Returns files of a source with their splits.

    The names of files and of their folders are splits where there are some for training and others that are held out.
    """
    top = _top(Path(source))
    paths = of_one_purpose(paths)
    splits = [_split_of_path(file, top) for file in paths]
    if len({*splits} - {""}) < 2 or "train" not in splits:
        splits = [""] * len(paths)
    return [TableFile(file, split) for file, split in zip(paths, splits, strict=True)]


def of_one_purpose(names: Sequence[Name]) -> list[Name]:
    """Returns the names of splits, or the files, that are read: those of one purpose, and those of none."""
    purposes = [(match[1] if (match := _PURPOSE.search("/".join(Path(name).parts[-2:]).lower())) else "") for name in names]
    read = next((purpose for purpose in PURPOSES if purpose in purposes), "")
    return [name for name, purpose in zip(names, purposes, strict=True) if purpose in ("", read)]


def unread(source: str | Path) -> list[str]:
    """Returns the names of a source's splits, or of its files, that are of another purpose than those that are read."""
    path = Path(source)
    names: list[Any] = listed(source)
    if (path / _SPLITS_FILE).is_file():
        names = untrusted.read_json(path / _SPLITS_FILE, DataError)["splits"]
    return [Path(name).name for name in names if name not in of_one_purpose(names)]


def _top(source: Path) -> Path:
    """Returns the folder whose files a source names: of a pattern, the one before its first part with a sign."""
    if source.exists():
        return source if source.is_dir() else source.parent
    return Path(*itertools.takewhile(lambda part: not glob.has_magic(part), source.parts))


def _saved(folder: Path) -> list[Path]:
    """Returns the files of a split that `save_to_disk` wrote."""
    state = untrusted.read_json(untrusted.member(folder, _STATE, DataError), DataError)
    with untrusted.damage(folder / _STATE, DataError):
        names = [file["filename"] for file in state["_data_files"]]
    return [untrusted.member(folder, name, DataError) for name in names]


def _split_of_path(file: Path, top: Path) -> str:
    """Returns the split that a file is named for, or else a folder below `top` that it lies in."""
    return next(filter(None, map(split_of_name, reversed(file.relative_to(top).parts))), "")


def split_of_name(name: str) -> str:
    """Returns the split that a name of a file says, "train" of "train-00001.csv"; "" if it says none."""
    match = _SPLIT_NAME.search(name.lower())
    return split_name(match[1]) if match else ""


def split_name(name: str) -> str:
    """Returns the usual name of a split, "validation" for "dev" and for "dev_sft"; another name as it is."""
    name = name.lower()
    match = _PURPOSE.fullmatch(name)
    name = name.removesuffix(f"_{match[1]}") if match else name
    return _ALIASES.get(name, name)


def split_of(row: Mapping[str, Any]) -> str:
    """Returns the usual name of a row's split; "" if it has none."""
    return split_name(str(row.get(SPLIT) or ""))


def rows(source: str | Path, columns: Mapping[str, str] | None = None) -> Iterator[Row]:
    """Yields the rows of a table.

    Args:
      source: a file, a folder or a pattern.
      columns: columns that are to be called otherwise: {"text": "body"} renames `body`.

    Raises:
      DataError: there is no table, it is damaged, or it lacks one of the columns; the message names the nearest.
    """
    tables = files(source)
    if not tables:
        raise DataError(f"{str(source)!r}: no table there; expected files {', '.join(FORMS)}")
    for table in tables:
        yield from rows_of(table, columns)


def rows_of(table: TableFile, columns: Mapping[str, str] | None = None) -> Iterator[Row]:
    """Yields the rows of one file of a table, as `rows` does."""
    columns = columns or {}
    replaced = {*columns, *columns.values()}
    for number, row in enumerate(_READERS[form_of(table.path)](table.path), 1):
        if number == 1:
            for column in columns.values():
                if column not in row:
                    raise DataError(f"{table.path}: no column {shortened(column)!r}{nearest(column, row)}")
        named = Row({name: value for name, value in row.items() if name not in replaced})
        named |= {name: row.get(column) for name, column in columns.items()}
        if table.split and SPLIT not in named:
            named[SPLIT] = table.split
        named.place = f"{shortened(table.path.name)}, row {number}"
        yield named


def columns_of(text: str) -> dict[str, str]:
    """Returns the columns that a text names, {"text": "body"} of "text=body"; raises DataError for one without a sign."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    for name, sign, column in pairs:
        if not (name and sign and column):
            raise DataError(f"columns={text!r}: expected NAME=COLUMN, as in text=body,label=topic")
    return {name.strip(): column.strip() for name, _, column in pairs}


def first(source: str | Path, columns: Mapping[str, str] | None = None) -> Row | None:
    """Returns the first row of a table, which shows its columns; None if there is no table, or no row."""
    return next(rows(source, columns), None) if files(source) else None


# --- comma-separated and tab-separated ---

_LINES: dict[str, dict[str, Any]] = {  # options of Python's reader
    ".csv": {"strict": True},
    # Not quoted: a text may begin with a quotation mark.
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}


def _separated(path: Path) -> Iterator[dict[str, str]]:
    csv.field_size_limit(untrusted.TEXT)
    options, lines = _LINES[form_of(path)], (line for _, line in untrusted.lines(path, DataError))
    header = next(lines, "")
    if form_of(path) == ".csv" and ";" in header and "," not in header:
        options = {**options, "delimiter": ";"}
    reader = csv.reader(_chained(header, lines), **options)
    names: list[str] = []
    while True:
        line = reader.line_num + 1
        try:
            values = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise DataError(f"{path}, row of line {line}: {told(error)}; is a quotation mark not closed?") from None
        if not names:
            names = [name.strip() for name in values]
            if len({*names}) < len(names):
                raise DataError(f"{path}: two columns have one name: {shortened(', '.join(names), 200)}")
        elif values:  # not of an empty line
            if len(values) != len(names):
                raise DataError(f"{path}, line {line}: {len(values)} fields, for the {len(names)} columns of the first line")
            yield dict(zip(names, values, strict=True))


def _chained(header: str, lines: Iterator[str]) -> Iterator[str]:
    if header:
        yield header
        yield from lines


# --- JSON ---


def _json(path: Path) -> Iterator[dict[str, Any]]:
    if form_of(path) == ".jsonl" or _is_lines(path):
        for _, value in untrusted.json_lines(path, DataError):
            yield from _unfolded(value)
        return
    with untrusted.decompressed(path, DataError) as file:
        content = file.read(untrusted.TEXT + 1)
    untrusted.bounded(len(content), untrusted.TEXT, "bytes", DataError, path)
    with untrusted.damage(path, DataError):
        text = content.decode().removeprefix("\ufeff")
    value = untrusted.parsed(text, str(path), DataError, object)
    if not isinstance(value, dict | list):
        raise DataError(f"{path}: expected an object, or a list of objects")
    for number, row in enumerate(_unfolded(value) if isinstance(value, dict) else value, 1):
        if not isinstance(row, dict):
            raise DataError(f"{path}: item {number} of the list is no object")
        yield row


def _is_lines(path: Path) -> bool:
    """Returns whether the first line that is not blank is an object."""
    with untrusted.decompressed(path, DataError) as file:
        start = file.read(_FIRST).decode(errors="replace").removeprefix("\ufeff").lstrip()
    line, _, behind = start.partition("\n")
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return not behind  # a line that is longer than what was read: one that is damaged is refused when it is read whole


def _unfolded(value: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Returns the rows of an object: those of its "data", or itself."""
    inner = value.get("data")
    return inner if isinstance(inner, list) and inner and all(isinstance(row, dict) for row in inner) else [value]


# --- Parquet and Arrow ---


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Raises what Arrow raises about a broken file as one line: also that a length in it is larger than any memory."""
    try:
        with untrusted.damage(path, DataError):
            yield
    except MemoryError as problem:
        raise DataError(f"{path} is damaged: {told(problem)}") from None


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet

    untrusted.regular(path, DataError)
    with _damage(path), parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        schema, meta = file.schema_arrow, file.metadata
        names = _names_of(schema)
        sizes = (meta.row_group(i) for i in range(meta.num_row_groups))
        most = max((group.total_byte_size // max(1, group.num_rows) for group in sizes), default=0)
        for batch in file.iter_batches(batch_size=_batch(most), use_threads=False):
            yield from _with_names(batch.to_pylist(), names)


def _arrow(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    from pyarrow import ipc

    with untrusted.opened(path, DataError) as file:
        is_file = file.read(len(_MAGIC)) == _MAGIC
    with _damage(path), pyarrow.memory_map(str(path)) as mapped:
        reader: Any = ipc.open_file(mapped) if is_file else ipc.open_stream(mapped)
        names = _names_of(reader.schema)
        for batch in (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else reader:
            batch.validate(full=True)  # an offset may lead out of the file
            size = _batch(batch.nbytes // max(1, batch.num_rows))
            for start in range(0, batch.num_rows, size):
                yield from _with_names(batch.slice(start, size).to_pylist(), names)


def _batch(bytes_of_row: int) -> int:
    return max(1, min(_ROWS, _BATCH // max(1, bytes_of_row)))


def _names_of(schema: Any) -> dict[str, list[str]]:
    """Returns the names of the classes of each column that has classes, as `datasets` keeps them in a table's schema."""
    written = (schema.metadata or {}).get(b"huggingface")
    if not written:
        return {}
    features = untrusted.parsed(written.decode(), "its schema", DataError).get("info", {}).get("features", {})
    names = {}
    for column, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
            names[column] = inner["names"]
    return names


def _with_names(batch: list[dict[str, Any]], names: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    for row in batch:
        for column, classes in names.items():
            row[column] = _named(row.get(column), classes)
        yield row


def _named(value: Any, classes: list[str]) -> Any:
    """Returns the names of a number, or of a list of numbers; none of -1, which `datasets` writes where there is no label."""
    if isinstance(value, list):
        return [_named(item, classes) for item in value]
    return classes[value] if isinstance(value, int) and value >= 0 else None


_READERS: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    ".csv": _separated,
    ".tsv": _separated,
    ".jsonl": _json,
    ".json": _json,
    ".parquet": _parquet,
}
_READERS |= dict.fromkeys((".arrow", ".feather"), _arrow)
