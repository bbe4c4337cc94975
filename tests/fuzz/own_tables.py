"""The readers of a user's tables and texts, for the table of readers."""

import gzip
import json
from pathlib import Path

import pyarrow
from pyarrow import feather, parquet

from data.labelled import own as labelled
from data.reading import tables
from data.translation import own as translations

_ROWS = [{"text": f"the cat sees {n} trees", "label": ("a", "b")[n % 2], "words": ["the", "cät"], "n": n} for n in range(40)]


def write_tables(folder: Path) -> None:
    """Writes a table in each form of several columns."""
    lines = "".join(json.dumps(row) + "\n" for row in _ROWS)
    (folder / "a.jsonl").write_text(lines)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    (folder / "c.json").write_text(json.dumps({"data": _ROWS}))
    (folder / "d.csv").write_text("text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in _ROWS))
    (folder / "e.tsv").write_text("text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in _ROWS))
    parquet.write_table(pyarrow.Table.from_pylist(_ROWS), folder / "f.parquet")
    feather.write_feather(pyarrow.Table.from_pylist(_ROWS), str(folder / "g.arrow"))


def read_tables(folder: Path) -> None:
    """Reads every row of every table."""
    for name in sorted(path.name for path in folder.iterdir()):
        if tables.form_of(Path(name)) in tables.FORMS:
            for _ in tables.rows_of(tables.TableFile(folder / name)):
                pass


def write_texts(folder: Path) -> None:
    """Writes a file in the form of CoNLL, a translation memory and a catalogue."""
    (folder / "a.conll").write_text("the O\ncat B\n\nan O\nold I\n")
    unit = '<tu><tuv xml:lang="en"><seg>a <ph>x</ph>cat</seg></tuv><tuv xml:lang="de"><seg>eine Katze</seg></tuv></tu>'
    (folder / "b.tmx").write_text(f'<?xml version="1.0"?><tmx version="1.4"><body>{unit * 9}</body></tmx>')
    (folder / "de.po").write_text('msgid ""\nmsgstr "Language: de\\n"\n\nmsgid "a cat"\nmsgstr "eine Katze"\n')


def read_texts(folder: Path) -> None:
    """Reads all tags and all pairs."""
    for name, columns in (("a.conll", {}), ("b.tmx", {}), ("de.po", {})):
        if not (folder / name).exists():
            continue
        if fields := labelled.fields_of(folder / name, columns):
            for file in labelled.files(folder / name):
                list(labelled.reader(fields, columns)(file))
        elif texts := translations.texts_of(folder / name, columns):
            for file in translations.files(folder / name, texts):
                list(translations.reader(texts, "en")(file))
