"""A user's own text, from every form to rows."""

import bz2
import dataclasses
import gzip
import io
import lzma
import random

import numpy as np
import pytest
import sentencepiece

from data.cache_maker import maker_of
from data.prepare import prepare, settings_from
from data.reading.caches import examples, read_manifest
from data.reading.files import mapped_by
from data.task import DataError
from data.text import own
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.catalogues import WORDS
from tests.helpers.own_data import TABLES, contents, scores_of, table, write_lines
from tests.helpers.rows import read_rows, unpack
from tests.helpers.wordpiece import train_wordpiece

_CHANCE = random.Random(0)
TEXTS = [" ".join(_CHANCE.choices(WORDS, k=20)).capitalize() + f".\nLine {n}." for n in range(40)]
ROWS = [{"text": text} for text in TEXTS]


FEW = TEXTS[:18]  # each of a file of its own, which are too few to be groups


def _plain(path, compress=lambda content: content, texts=TEXTS):
    """Writes a folder of files, one of them for each text."""
    path.mkdir()
    for n, text in enumerate(texts):
        suffix = (".md", ".txt")[n % 2] + {gzip.compress: ".gz", bz2.compress: ".bz2", lzma.compress: ".xz"}.get(compress, "")
        (path / f"{n:02d}{suffix}").write_bytes(compress(text.replace("\n", "\r\n").encode()))


FORMS = {
    "folder": lambda path: _plain(path, texts=FEW),
    "gz": lambda path: _plain(path, gzip.compress, FEW),
    "bz2": lambda path: _plain(path, bz2.compress, FEW),
    "xz": lambda path: _plain(path, lzma.compress, FEW),
    "content.jsonl": lambda path: write_lines(path, [{"url": "x", "content": text} for text in FEW]),
    "only.csv": lambda path: path.write_text("review\n" + "".join(f'"{text}"\n' for text in FEW)),
    # A text of more than a line has no place in a .tsv file.
    **{name: table(name, [{"text": text} for text in FEW]) for name in TABLES if name != "rows.tsv"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The contents of the cache of JSON lines."""
    root = tmp_path_factory.mktemp("lines")
    FORMS["rows.jsonl"](root / "rows.jsonl")
    return contents(prepare("mine", settings_from(str(root / "rows.jsonl")), data_dir=root, progress=len))


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_text_becomes_rows(tmp_path, trained, name):
    """All documents are in one split each, with a vocabulary that is trained on the training texts; three rows are shown. The
    contents are the same whatever the form: what is trained on below is JSON lines, and files that are groups."""
    FORMS[name](tmp_path / name)
    lines = []
    cache = prepare("mine", settings_from(str(tmp_path / name)), data_dir=tmp_path, progress=lines.append)
    assert contents(cache) == trained
    manifest = read_manifest(cache)
    held = [example["text"] for split in ("validation", "test") for example in examples(cache, split)]
    part = manifest["parts"]["all"]
    assert (len(held), part["documents"], manifest["left_out"]) == (2, 16, 0)
    tokenizer = Tokenizer(cache)
    assert 300 < manifest["vocabulary"] == tokenizer.size < 8192
    stored = [chunk for row in read_rows(cache / "train/all.array_record") for (chunk,) in unpack(row, (256,))]
    assert sorted(map(tokenizer.decode, stored)) == sorted({*FEW} - {*held})
    assert part["bytes"] == sum(len(text.encode()) for text in {*FEW} - {*held})
    assert sum(line.startswith("a row of train: <|endoftext|> ") for line in lines) == min(3, part["rows"])


def test_a_tab_separated_table_has_a_text_in_a_line(tmp_path, trained):
    """Its texts have no line breaks, and the rest is as in JSON lines."""
    rows, caches = [{"text": text.replace("\n", " ")} for text in FEW], []
    for name in ("rows.tsv", "rows.jsonl"):
        TABLES[name](tmp_path / name, rows)
        caches.append(contents(prepare("mine", settings_from(str(tmp_path / name)), data_dir=tmp_path, progress=len)))
    assert caches[0] == caches[1] != trained


def test_one_long_file_becomes_documents_and_is_divided(tmp_path):
    """At empty lines, once they are long enough; nothing of it is lost but empty lines."""
    paragraphs = [" ".join(_CHANCE.choices(WORDS, k=300)) for _ in range(200)]
    (tmp_path / "book.txt").write_text("\n\n".join(paragraphs))
    files, read = own.opened(tmp_path / "book.txt", {})
    documents = [entry.example["text"] for file in files for entry in read(file)]
    assert 10 < len(documents) < 40
    assert [line.rstrip() for text in documents for line in text.split("\n") if line] == [text.rstrip() for text in paragraphs]
    cache = prepare("mine", settings_from(str(tmp_path / "book.txt")), data_dir=tmp_path, progress=len)
    assert sum(1 for _ in examples(cache, "test")) == sum(1 for _ in examples(cache, "validation")) == 1


def test_the_documents_of_a_file_are_in_one_split_where_files_are_many(tmp_path):
    (tmp_path / "books").mkdir()
    for n in range(30):
        (tmp_path / "books" / f"{n}.txt").write_text("\n\n".join(f"{n} {i} " + "word " * 3500 for i in range(3)))
    files, read = own.opened(tmp_path / "books", {})
    groups = {file.path.name: {entry.group for entry in read(file)} for file in files}
    assert len(groups) == 30 and all(len(names) == 1 for names in groups.values())


def test_files_of_text_are_in_the_splits_that_they_are_named_for(tmp_path):
    for split, texts in (("train", TEXTS[:30]), ("valid", TEXTS[30:35]), ("test", TEXTS[35:40])):
        (tmp_path / f"wiki.{split}.txt").write_text("\n".join(texts))
    files, read = own.opened(tmp_path, {})
    documents = [entry for file in files for entry in read(file)]
    assert {entry.split: entry.example["text"] for entry in documents} == {
        "train": "\n".join(TEXTS[:30]),
        "validation": "\n".join(TEXTS[30:35]),
        "test": "\n".join(TEXTS[35:40]),
    }


def test_a_file_that_cannot_be_read_is_left_out_and_named(tmp_path):
    _plain(tmp_path / "texts")
    (tmp_path / "texts" / "x.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "texts" / "y.txt.gz").write_bytes(b"no gzip")
    lines = []
    cache = prepare("mine", settings_from(str(tmp_path / "texts")), data_dir=tmp_path, progress=lines.append)
    assert read_manifest(cache)["left_out"] == 2
    assert any("the source: 2 of 42 documents left out; x.txt:" in line and "is no UTF-8" in line for line in lines)
    assert "read 42 files: 00.md, 01.txt, 02.md and 39 more" in lines


def test_the_files_that_a_pattern_matches_are_named(tmp_path):
    """Paths begin below the folder that the files have in common; those of other endings are not read."""
    for name in ("a/one.txt", "b/two.txt", "b/two.png", "c.txt"):
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text("\n".join(TEXTS[:20]))
    for pattern, named in {
        "*/*": "2 files: a/one.txt, b/two.txt",
        "**/*.txt": "3 files: a/one.txt, b/two.txt, c.txt",
        "c.txt": "1 file: c.txt",
    }.items():
        lines = []
        prepare("mine", settings_from(str(tmp_path / "texts" / pattern)), data_dir=tmp_path, progress=lines.append)
        assert f"read {named}" in lines


def test_a_copy_of_a_held_out_text_is_not_trained_on(tmp_path):
    """Where splits are given, and one text is in two."""
    rows = [{"text": text, "split": "test" if n < 9 else "train"} for n, text in enumerate(TEXTS)]
    write_lines(tmp_path / "a.jsonl", [*rows, {"text": TEXTS[0], "split": "train"}])
    cache = prepare("mine", settings_from(str(tmp_path / "a.jsonl")), data_dir=tmp_path, progress=len)
    manifest = read_manifest(cache)
    held = [example["text"] for split in ("validation", "test") for example in examples(cache, split)]
    assert manifest["left_out"] == 1 and manifest["parts"]["all"]["documents"] + len(held) == 40


def _vocabulary(tmp_path, form):
    if form == "spiece.model":
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=200, minloglevel=2)
        (tmp_path / form).write_bytes(model.getvalue())
        return tmp_path / form
    (tmp_path / "folder").mkdir()
    train_wordpiece(TEXTS, tmp_path / "folder" / "tokenizer.json", 200)
    return tmp_path / form


@pytest.mark.parametrize(("form", "end"), [("spiece.model", "</s>"), ("folder", "[CLS]"), ("folder/tokenizer.json", "[CLS]")])
def test_a_vocabulary_that_is_given_encodes(tmp_path, form, end):
    """A SentencePiece model, a folder, or a tokenizer.json; the cache keeps a copy, and is made anew when another is given."""
    write_lines(tmp_path / "a.jsonl", ROWS)
    lines = []
    settings = settings_from(str(tmp_path / "a.jsonl")).encoded_with("")
    vocabulary = _vocabulary(tmp_path, form)
    cache = prepare("mine", settings, data_dir=tmp_path, vocabulary=vocabulary, progress=lines.append)
    assert read_manifest(cache)["vocabulary"] == 200
    assert any(line.startswith(f"a row of train: {end} ") for line in lines)
    with pytest.raises(DataError, match="a vocabulary of its own"):
        prepare("mine", settings_from(str(tmp_path / "a.jsonl")), data_dir=tmp_path, vocabulary=vocabulary, progress=len)


@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"vocabulary_size": 100_000}, DataError, r"too large for this text: take at most \d+ \(--vocabulary-size\)"),
        ({"vocabulary_size": 100}, DataError, "too small"),
        ({"vocabulary_size": 300, "tokenizer": ""}, ValueError, "is of a vocabulary that is trained here"),
        ({"tokenizer": ""}, DataError, "needs a vocabulary: name a folder"),
        ({"validation": 1.5}, DataError, r"validation=1\.5: expected a share"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, fields, error, reason):
    write_lines(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(error, match=reason):
        prepare("mine", dataclasses.replace(settings_from(str(tmp_path / "a.jsonl")), **fields), data_dir=tmp_path, progress=len)


def test_a_pipeline_writes_the_same_rows(tmp_path):
    """The slices of a mapper, as Apache Beam's, are the documents in order."""
    for n in range(4):
        write_lines(tmp_path / f"{n}.jsonl", ROWS[10 * n : 10 * n + 10])
    slices = []

    def mapper(read, items, window):
        for start in range(0, len(items), 7):
            slices.append(start)
            yield from [read(item) for item in items.slice(start, min(start + 7, len(items)))]

    settings = settings_from(f"{tmp_path}/*.jsonl")
    written = []
    for name, use in (("plain", None), ("mapped", mapper)):
        (tmp_path / name).mkdir()
        maker = maker_of("mine", settings, tmp_path, len)
        with mapped_by(use):
            maker.build(tmp_path / name)
        written.append(np.array([*read_rows(tmp_path / name / "train/all.array_record")]))
    assert len(slices) == 6 and np.array_equal(*written)


@pytest.mark.parametrize(
    ("experiment", "source", "fields"),
    [
        ("gpt.quickstart", "a.jsonl", {}),
        pytest.param("gpt.quickstart", "files", {}, marks=pytest.mark.slow),
        pytest.param("bert.quickstart_pairs", "a.jsonl", {"pairs": 8, "tokenizer": ""}, marks=pytest.mark.slow),
        pytest.param("t5.quickstart", "a.jsonl", {}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.integration
def test_models_are_trained_on_own_text_and_scored(tmp_path, monkeypatch, experiment, source, fields):
    """A decoder, an encoder with pairs of segments, and an encoder-decoder: three steps, and their scores once reopened."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    write_lines(tmp_path / "a.jsonl", ROWS)
    _plain(tmp_path / "files")
    settings = dataclasses.replace(settings_from(str(tmp_path / source)), length=64, **fields)
    vocabulary = _vocabulary(tmp_path, "folder") if "tokenizer" in fields else None
    size = read_manifest(prepare("mine", settings, vocabulary=vocabulary, progress=len))["vocabulary"]
    scores = scores_of(experiment, tmp_path / "run", {"vocab": size + 104}, cache="mine", length=64)
    assert scores["examples"] == 2 and scores["cross_entropy"] > 0
