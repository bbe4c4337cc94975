"""A user's own translations: tables with a column for each language, aligned files, TMX and gettext's .po. No TensorFlow.

Every reader yields rows of texts by language (data.translation.languages), and each row becomes a pair for each language but the
one that is translated into.

    a table             columns named for languages, or one column of objects, {"translation": {"en": ..., "de": ...}}
    corpus.en, corpus.de    a line is a sentence, and lines of the same number are translations of each other
    .tmx                translation memories, of any number of languages
    .po                 English messages and their translations; the language is the header's, the file's or its folder's
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from data import untrusted
from data.reading import own, tables
from data.reading.own import Entry
from data.reading.splits import text_key
from data.reading.tables import Row, TableFile
from data.task import DataError
from data.translation import catalogue_formats, languages
from models.errors import nearest, shortened

Form = Literal["table", "objects", "aligned", "tmx", "po"]
ENGLISH = "en"
_CODE = "{http://www.w3.org/XML/1998/namespace}lang"
_NATIVE = frozenset(("bpt", "ept", "ph", "it", "ut"))  # TMX's elements with mark-up of another format, which is no text
_PO_LANGUAGE = re.compile(r'^"Language:\s*([\w@-]+)\s*\\n"', re.M)


@dataclasses.dataclass(frozen=True)
class Texts:
    """The form of a source, and what is known of it from its first row.

    Attributes:
      languages: the languages of a table by column, or of aligned files by ending; others show theirs row by row.
      columns: the columns of a table that are renamed.
    """

    form: Form
    languages: Mapping[str, str]
    columns: Mapping[str, str]


def texts_of(source: str | Path, columns: Mapping[str, str]) -> Texts | None:
    """Returns the form of a source; None if it holds no translations."""
    if row := tables.first(source, columns):
        if isinstance(row.get("translation"), dict):
            return Texts("objects", {}, columns)
        named = {column: languages.code_of(column) for column in row if _is_language(column, columns)}
        return Texts("table", named, columns) if len({*named.values()}) > 1 else None
    for form in ("tmx", "po"):
        if _with_ending(source, form):
            return Texts(form, {}, columns)
    if aligned := _aligned(source):
        ends = {code: languages.code_of(code) for code in (_code(file.path) for file in aligned[0])}
        return Texts("aligned", ends, columns)
    return None


def _is_language(column: str, columns: Mapping[str, str]) -> bool:
    """Returns whether a column is named for a language: "id" is Indonesian only where the user says so."""
    return column in columns or (column != "id" and languages.is_code(column))


def _code(path: Path) -> str:
    """Returns the ending of a file's name as it is written, without its dot: "de" of "corpus.de.gz"."""
    return Path(path.stem if path.suffix in untrusted.COMPRESSED else path.name).suffix[1:]


def _stem(path: Path) -> Path:
    return path.with_name(Path(path.stem if path.suffix in untrusted.COMPRESSED else path.name).stem)


def _aligned(source: str | Path) -> list[tuple[TableFile, ...]]:
    """Returns the files that belong together: of one name, but for the language at its end."""
    groups: dict[Path, list[TableFile]] = {}
    for file in tables.with_splits(source, tables.listed(source, lambda ending: languages.is_code(ending[1:]))):
        groups.setdefault(_stem(file.path), []).append(file)
    return [tuple(files) for files in groups.values() if len(files) > 1]


def files(source: str | Path, texts: Texts) -> list[Any]:
    """Returns the files of a source: `TableFile`s, or for aligned ones tuples of them."""
    if texts.form == "aligned":
        return _aligned(source)
    if texts.form in ("table", "objects"):
        return tables.files(source)
    return tables.with_splits(source, _with_ending(source, texts.form))


def _with_ending(source: str | Path, form: str) -> list[Path]:
    return tables.listed(source, f".{form}".__eq__)


def rows(texts: Texts, file: Any) -> Iterator[Row]:
    """Yields the texts of a file by language."""
    match texts.form:
        case "table":
            for row in tables.rows_of(file, texts.columns):
                named = {code: row.get(column) for column, code in texts.languages.items()}
                yield _row(named | own_columns(row), row.place)
        case "objects":
            for row in tables.rows_of(file, texts.columns):
                inner = row.get("translation")
                pairs = inner.items() if isinstance(inner, dict) else ()
                yield _row({languages.code_of(code): text for code, text in pairs} | own_columns(row), row.place)
        case "aligned":
            yield from _lines(file)
        case "tmx":
            yield from _units(file)
        case "po":
            yield from _messages(file)


def own_columns(row: Row) -> dict[str, Any]:
    """Returns the columns of a row that say where it belongs."""
    return {name: row[name] for name in (tables.SPLIT, "group") if name in row}


def _row(values: Mapping[str, Any], place: str, split: str = "") -> Row:
    row = Row(values if not split else {**values, tables.SPLIT: split})
    row.place = place
    return row


def _lines(aligned: tuple[TableFile, ...]) -> Iterator[Row]:
    files, split = [file.path for file in aligned], aligned[0].split
    readers = [(languages.code_of(_code(file)), untrusted.lines(file, DataError)) for file in files]
    number = 0
    while True:
        lines = {code: next(reader, None) for code, reader in readers}
        number += 1
        if not any(lines.values()):
            return
        if ended := [file for file, (_, line) in zip(files, lines.items(), strict=True) if line is None]:
            longer = next(file for file in files if file not in ended)
            raise DataError(f"{ended[0]} has {number - 1:,} lines, and {longer.name} has more: they are not aligned")
        place = f"{shortened(_stem(files[0]).name)}, line {number}"
        yield _row({code: line[1] for code, line in lines.items() if line}, place, split)


def _units(memory: TableFile) -> Iterator[Row]:
    """Yields the units of a translation memory. No entity is resolved, and nothing is loaded from elsewhere."""
    path = memory.path
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    with untrusted.decompressed(path, DataError) as file, untrusted.damage(path, DataError):
        units = etree.iterparse(file, tag="tu", resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)
        for number, (_, unit) in enumerate(units, 1):
            texts = {}
            for variant in unit.iterfind("tuv"):
                code, segment = variant.get(_CODE) or variant.get("lang"), variant.find("seg")
                if code and segment is not None:
                    texts.setdefault(languages.code_of(code), _segment(segment))
            unit.clear()
            while unit.getprevious() is not None:  # those before it are done with
                del unit.getparent()[0]
            yield _row(texts, f"{shortened(path.name)}, unit {number}", memory.split)


def _segment(element: Any) -> str:
    """Returns the text of an element without the mark-up of other formats."""
    parts = [element.text or ""]
    for child in element:
        is_text = isinstance(child.tag, str) and child.tag not in _NATIVE
        parts += [_segment(child) if is_text else "", child.tail or ""]
    return "".join(parts)


def _messages(catalogue: TableFile) -> Iterator[Row]:
    path = catalogue.path
    with untrusted.decompressed(path, DataError) as file:
        content = file.read(untrusted.TEXT + 1)
    untrusted.bounded(len(content), untrusted.TEXT, "bytes", DataError, path)
    with untrusted.damage(path, DataError):
        text = content.decode()
    code = _po_language(path, text)
    for number, (english, translation) in enumerate(catalogue_formats.parse_po(text), 1):
        yield _row({ENGLISH: english, code: translation}, f"{shortened(path.name)}, message {number}", catalogue.split)


def _po_language(path: Path, text: str) -> str:
    """Returns the language of a catalogue; raises DataError if nothing says it."""
    header = _PO_LANGUAGE.search(text)
    folders = [part for part in path.parts[-3:-1] if part != "LC_MESSAGES"]
    for code in (header[1] if header else "", _stem(path).name, *reversed(folders)):
        if languages.is_code(code):
            return languages.code_of(code)
    raise DataError(f"{path}: its language is not said: neither by its header nor by its name or its folder's")


class Languages:
    """The languages of rows, by the files that have them."""

    def __init__(self):
        self.files: dict[str, list[Any]] = {}

    def add(self, example: Mapping[str, Any], file: Any) -> None:
        """Notes the language of a pair of a file."""
        files = self.files.setdefault(example["lang"], [])
        if not files or files[-1] != file:
            files.append(file)


def target_of(texts: Texts, file: Any, wanted: str) -> str:
    """Returns the language that is translated into: the one that is wanted, or English, or the last of the first row's.

    Raises:
      DataError: no row has the language that is wanted.
    """
    known = [*dict.fromkeys(texts.languages.values())]
    if not known:
        known = [name for name in next(rows(texts, file), Row()) if name not in (tables.SPLIT, "group")]
    if not wanted:
        return ENGLISH if ENGLISH in known or not known else known[-1]
    code = languages.code_of(wanted)
    if texts.languages and code not in known:
        raise DataError(f"to={wanted!r}: no text is in that language{nearest(wanted, known)}")
    return code


def reader(texts: Texts, to: str) -> Any:
    """Returns a function that yields the entries of a file: the pairs into a language."""
    return functools.partial(_entries, texts, to)


def _entries(texts: Texts, to: str, file: Any) -> Iterator[Entry]:
    for row in rows(texts, file):
        split, why = own.given_split(row)
        try:
            target = _clean(row.get(to), to)
        except ValueError as problem:
            yield Entry(row.place, {}, why=str(problem))
            continue
        for code, text in _others(row, to):
            try:
                source = _clean(text, code)
            except ValueError as problem:
                yield Entry(row.place, {}, why=str(problem))
                continue
            example = {"lang": code, "source": source, "target": target, "to": to}
            same = f"its {code} and its {to} are the same" if source == target else ""
            yield Entry(row.place, example, own.group_of(row, target), split, why or same)


def _others(row: Row, to: str) -> Iterable[tuple[str, Any]]:
    return [(code, text) for code, text in row.items() if code not in (to, tables.SPLIT, "group")]


def _clean(value: Any, code: str) -> str:
    return " ".join(own.text_of(value, f"text in {code}").split())


def content(example: Mapping[str, Any]) -> str:
    """Returns what identifies a pair among all splits: its source."""
    text = example["source"]
    return f"{example['lang']} {text_key(text) or text}"
