"""Tables: the same rows from every form, splits, names of classes, and one line about what is damaged."""

import bz2
import csv
import gzip
import json
import lzma
import os

import pyarrow
import pytest
from pyarrow import feather, ipc, parquet

from data import untrusted
from data.reading import tables
from data.task import DataError

ROWS = [{"text": 'A "quoted", text', "label": "one"}, {"text": "Zürich\u2028two", "label": "two"}]
NAMES = ["one", "two"]


def _json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _csv(path, rows, **options):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], **options)
        writer.writeheader()
        writer.writerows(rows)


def _stream(path, table):
    with pyarrow.OSFile(str(path), "wb") as file, ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)


def _zstd(content):
    return bytes(pyarrow.compress(content, "zstd", asbytes=True))


def _classes():
    """Returns the rows as `datasets` writes them: classes by number, their names in the schema."""
    table = pyarrow.table({"text": [row["text"] for row in ROWS], "label": [NAMES.index(row["label"]) for row in ROWS]})
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def _saved(folder, split=None):
    folder.mkdir(parents=True)
    _stream(folder / "data-00000-of-00001.arrow", _classes())
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": split}))


FORMS = {
    "a.csv": lambda path: _csv(path, ROWS),
    "semicolons.csv": lambda path: _csv(path, ROWS, delimiter=";", quoting=csv.QUOTE_ALL),
    "a.tsv": lambda path: path.write_text(
        "text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in ROWS), encoding="utf-8"
    ),
    "a.jsonl": lambda path: path.write_bytes(_json_lines(ROWS)),
    "lines.json": lambda path: path.write_bytes(_json_lines(ROWS)),
    "list.json": lambda path: path.write_text(json.dumps(ROWS, indent=1)),
    "object.json": lambda path: path.write_text(json.dumps({"version": 1, "data": ROWS}, indent=1)),
    "line.json": lambda path: path.write_text(json.dumps({"version": 1, "data": ROWS})),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(_json_lines(ROWS[:1])) + gzip.compress(_json_lines(ROWS[1:]))),
    "a.jsonl.bz2": lambda path: path.write_bytes(bz2.compress(_json_lines(ROWS))),
    "a.jsonl.xz": lambda path: path.write_bytes(lzma.compress(_json_lines(ROWS[:1])) + lzma.compress(_json_lines(ROWS[1:]))),
    "a.jsonl.zst": lambda path: path.write_bytes(_zstd(_json_lines(ROWS))),
    "list.json.gz": lambda path: path.write_bytes(gzip.compress(json.dumps(ROWS).encode())),
    "a.parquet": lambda path: parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=1),
    "classes.parquet": lambda path: parquet.write_table(_classes(), path),
    "file.arrow": lambda path: feather.write_feather(pyarrow.Table.from_pylist(ROWS), str(path)),
    "stream.arrow": lambda path: _stream(path, pyarrow.Table.from_pylist(ROWS)),
    "saved": _saved,
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_table_has_the_same_rows(tmp_path, name):
    """Whatever wrote them, and however it is compressed. U+2028 and a quotation mark are characters of a text."""
    FORMS[name](tmp_path / name)
    assert list(tables.rows(tmp_path / name)) == ROWS


def test_columns_are_renamed_and_a_missing_one_is_named(tmp_path):
    FORMS["a.csv"](tmp_path / "a.csv")
    (row, _) = tables.rows(tmp_path / "a.csv", {"body": "text"})
    assert row == {"body": ROWS[0]["text"], "label": "one"}
    assert row.place == "a.csv, row 1"
    with pytest.raises(DataError, match=r"no column 'txt'; did you mean 'text'\?"):
        list(tables.rows(tmp_path / "a.csv", {"body": "txt"}))


def test_the_files_of_a_folder_or_a_pattern_are_one_table(tmp_path):
    """Hidden files and other files are none of it."""
    (tmp_path / "more").mkdir()
    for name in ("b.jsonl", "a.jsonl", "more/c.jsonl", ".hidden.jsonl"):
        (tmp_path / name).write_text(json.dumps({"name": name}))
    (tmp_path / "README.md").write_text("no table")
    assert [row["name"] for row in tables.rows(tmp_path)] == ["a.jsonl", "b.jsonl", "more/c.jsonl"]
    assert [row["name"] for row in tables.rows(f"{tmp_path}/[b-z]*.jsonl")] == ["b.jsonl"]
    assert [row["name"] for row in tables.rows(f"{tmp_path}/**/c.jsonl")] == ["more/c.jsonl"]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train.csv", "dev.csv", "test.csv"), ["validation", "test", "train"]),
        (("data/train-00000-of-00002.csv", "data/train-00001-of-00002.csv", "data/val-0.csv"), ["train", "train", "validation"]),
        (("train/a.csv", "test/a.csv"), ["test", "train"]),
        (("test.csv",), [""]),
        (("training_notes.csv", "contest.csv"), ["", ""]),
    ],
)
def test_files_that_are_named_for_splits_are_these_splits(tmp_path, names, splits):
    """Where some are for training and others not: a table of its own may be called test."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        _csv(tmp_path / name, ROWS[:1])
    assert [tables.split_of(row) for row in tables.rows(tmp_path)] == splits


@pytest.mark.parametrize("pattern", ["corpus/*/a.csv", "corpus/*", "corpus/**/*.csv"])
def test_the_folders_that_a_pattern_matches_are_splits_too(tmp_path, monkeypatch, pattern):
    for name in ("train", "test"):
        (tmp_path / "corpus" / name).mkdir(parents=True)
        _csv(tmp_path / "corpus" / name / "a.csv", ROWS[:1])
    monkeypatch.chdir(tmp_path)
    for source in (pattern, tmp_path / pattern):
        assert [tables.split_of(row) for row in tables.rows(source)] == ["test", "train"]


def test_a_saved_dictionary_of_data_sets_has_its_splits(tmp_path):
    for split in ("train", "test", "unsupervised"):
        _saved(tmp_path / "imdb" / split, split)
    (tmp_path / "imdb" / "dataset_dict.json").write_text('{"splits": ["train", "test", "unsupervised"]}')
    read = [tables.split_of(row) for row in tables.rows(tmp_path / "imdb")]
    assert read == ["train", "train", "test", "test", "unsupervised", "unsupervised"]


@pytest.mark.parametrize(
    ("names", "read", "left"),
    [
        (("train_sft", "test_sft", "train_gen", "test_gen"), ["train", "test"], ["train_gen", "test_gen"]),
        (("train_prefs", "test_prefs", "train_sft"), ["train", "test"], ["train_sft"]),
        (("train_gen", "dev_gen"), ["train", "validation"], []),
        (("train", "test_sft"), ["train", "test"], []),
    ],
)
def test_splits_of_one_purpose_are_read(tmp_path, names, read, left):
    """In a folder of `save_to_disk`, in files and in folders; those of another purpose are named."""
    for name in names:
        for folder in (tmp_path / "saved" / name, tmp_path / "files", tmp_path / "folders" / name):
            folder.mkdir(parents=True, exist_ok=True)
        (tmp_path / "saved" / name / "a.arrow").write_bytes(b"")
        (tmp_path / "saved" / name / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
        (tmp_path / "files" / f"{name}-00000-of-00001.parquet").write_bytes(b"")
        (tmp_path / "folders" / name / "0.csv").write_text("a\n1\n")
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": names}))
    assert [file.split for file in tables.files(tmp_path / "saved")] == read
    assert tables.unread(tmp_path / "saved") == left
    for source in ("files", "folders"):
        assert sorted(file.split for file in tables.files(tmp_path / source)) == sorted(read)
        assert len(tables.unread(tmp_path / source)) == len(left)


def test_the_purpose_of_a_split_is_no_part_of_its_name():
    assert [tables.split_name(name) for name in ("train_sft", "VAL_prefs", "gen", "tset_sft")] == [
        "train",
        "validation",
        "gen",
        "tset_sft",
    ]


def test_a_split_column_comes_before_the_file_s_name(tmp_path):
    for name, split in (("train.jsonl", "dev"), ("test.jsonl", "test")):
        (tmp_path / name).write_text(json.dumps({"split": split}))
    assert [tables.split_of(row) for row in tables.rows(tmp_path)] == ["test", "validation"]


def _cut(content, compress):
    return compress(content)[:-9]


MANY = _json_lines(ROWS * 2000)
DAMAGED = [
    ("a.csv", b'text,label\n1,a\n"open,b\n3,c\n', r"a\.csv, row of line 3: unexpected end of data; is a quotation mark"),
    ("a.csv", b"text,label\n1,a,b\n", r"a\.csv, line 2: 3 fields, for the 2 columns of the first line$"),
    ("a.csv", b"text,text\n1,a\n", "two columns have one name"),
    ("a.tsv", b"text\tlabel\n1\n", r"line 2: 1 fields, for the 2 columns"),
    ("a.csv", b"text,label\n\xff,a\n", r"a\.csv, line 2 is damaged: byte 0 is no UTF-8$"),
    ("a.jsonl", b'{"a": 1}\n[1]\n', r"a\.jsonl, line 2 is damaged: expected an object$"),
    ("a.json", b'[{"a": 1}, 2]', "item 2 of the list is no object$"),
    ("a.json", b'{\n"a": ', r"a\.json is damaged"),
    ("a.parquet", b"PAR1 no parquet PAR1", r"a\.parquet is damaged"),
    ("a.arrow", b"ARROW1\0\0 no arrow", r"a\.arrow is damaged"),
    ("a.arrow", b"\xff\xff\xff\xff\x10\0\0\0 no arrow", r"a\.arrow is damaged"),
    ("a.jsonl.gz", _cut(MANY, gzip.compress), r"a\.jsonl\.gz is damaged"),
    ("a.jsonl.bz2", _cut(MANY, bz2.compress), r"a\.jsonl\.bz2 is damaged"),
    ("a.jsonl.xz", _cut(MANY, lzma.compress), r"a\.jsonl\.xz is damaged"),
    ("a.jsonl.zst", _cut(MANY, _zstd), r"a\.jsonl\.zst is damaged"),
    ("a.jsonl.gz", b"no gzip at all", r"a\.jsonl\.gz is damaged"),
    ("a.jsonl.xz", lzma.compress(b"{}", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]), "is damaged: Memory usage"),
    ("a.txt", b"", "no table there; expected files .csv"),
]


@pytest.mark.parametrize(("name", "content", "reason"), DAMAGED)
def test_a_damaged_table_is_refused_in_one_line(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=reason) as error:
        list(tables.rows(tmp_path / name))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json", "a.parquet", "a.arrow", "a.jsonl.gz"])
def test_what_is_no_file_is_not_waited_for(tmp_path, name):
    """A pipe has no end, nor has a device."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="is no regular file"):
        list(tables.rows(tmp_path / name))


def test_a_line_without_an_end_is_not_read_whole(tmp_path, monkeypatch):
    """Nor one that a compressed file of a few bytes becomes."""
    monkeypatch.setattr(untrusted, "TEXT", 1000)
    monkeypatch.setattr(untrusted.lines, "__defaults__", (1000,))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text\n" + b"x" * 10_000_000))
    with pytest.raises(DataError, match=r"line 2 has more than 1,000 bytes"):
        list(tables.rows(tmp_path / "a.csv.gz"))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b"[\n" + b" " * 10_000_000 + b"]"))
    with pytest.raises(DataError, match=r"a\.json\.gz has 1,001 bytes, more than 1,000"):
        list(tables.rows(tmp_path / "a.json.gz"))


@pytest.mark.parametrize("name", ["missing", "no*.csv"])
def test_a_source_that_does_not_exist_is_named(tmp_path, name):
    with pytest.raises(DataError, match="no such file or folder"):
        tables.files(tmp_path / name)
