"""A user's folder of sound files with a table of their texts. No TensorFlow.

DIR/metadata.csv (or .tsv, .jsonl), in the form of Hugging Face's audio folders, with a row for each sound:

    file_name             its path below DIR
    text                  what is said; `transcription` and `sentence` are read too; may be empty
    translation           the same in English, if it is known
    language              a code such as "cs", if it is not the settings' own
    split                 train, validation or test, of all rows or of none; if of none, splits are drawn
    group                 a speaker, a recording: never in two splits; each sound alone by default
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data import untrusted
from data.reading.splits import Item, divide
from data.speech import sound
from data.speech.caches import TABLES, SpeechCache
from data.speech.utterances import Splits, Utterance
from data.task import DataError
from models.errors import nearest, shortened

_TEXTS = ("text", "transcription", "sentence")
_SPLITS = ("train", "validation", "test")
# Tables with tabs are not quoted: a text may begin with a quotation mark.
_FORMS: dict[str, Any] = {".csv": {}, ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE}}


def open_folder(folder: Path, settings: SpeechCache) -> Splits:
    """Returns the utterances of a folder.

    Raises:
      DataError: there is no table, it is damaged or names no file, or a split is unknown or empty.
    """
    table = next((folder / name for name in TABLES if (folder / name).is_file()), None)
    if table is None:
        raise DataError(f"no table of texts in {folder}: expected {TABLES[0]} with the columns file_name and text")
    items, splits = [], []
    for number, row in enumerate(_rows(table), 1):
        name = row.get("file_name") or ""
        if not name:
            raise DataError(f"{table}, row {number}: no file_name")
        if not untrusted.is_within(name):
            raise DataError(f"{table}, row {number}: file_name {shortened(name)!r} leaves the folder")
        texts = {
            "transcribe": next((row[column] for column in _TEXTS if row.get(column)), ""),
            "translate": row.get("translation") or "",
        }
        texts = {task: text for task, text in texts.items() if text}
        utterance = Utterance(name, row.get("language") or settings.language, texts, _reader(folder / name))
        items.append(Item(row.get("group") or name, utterance))
        splits.append(row.get("split") or "")
    if not items:
        raise DataError(f"{table}: names no sound")
    if not any(splits):
        return divide(items, validation=settings.validation, test=settings.test)
    for number, split in enumerate(splits, 1):
        if not split:
            raise DataError(f"{table}, row {number}: no split, which {sum(map(bool, splits)):,} other rows have")
        if split not in _SPLITS:
            raise DataError(f"{table}, row {number}: no split {shortened(split)!r}{nearest(split, _SPLITS)}")
    pairs = list(zip(items, splits, strict=True))
    return {name: [item.example for item, split in pairs if split == name] for name in _SPLITS}


def _reader(path: Path):
    return lambda: sound.read(path)


def _rows(table: Path) -> Iterator[dict[str, str]]:
    if table.suffix == ".jsonl":
        for _, row in untrusted.json_lines(table, DataError):
            yield {name: "" if value is None else str(value) for name, value in row.items()}
        return
    reader = csv.DictReader((line for _, line in untrusted.lines(table, DataError)), **_FORMS[table.suffix])
    try:
        if "file_name" not in (reader.fieldnames or ()):
            raise DataError(f"{table}: no column 'file_name'{nearest('file_name', reader.fieldnames or ())}")
        for row in reader:
            if None in row:
                raise DataError(f"{table}, line {reader.line_num}: more fields than the {len(row) - 1} columns")
            if name := next((name for name, value in row.items() if "\n" in (value or "")), ""):
                raise DataError(
                    f"{table}, line {reader.line_num}: {name} has a line break, of a quotation mark that is not closed before it?"
                )
            yield row
    except csv.Error as error:
        raise DataError(f"{table}, line {reader.line_num + 1}: {error}") from None
