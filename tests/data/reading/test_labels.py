"""Labels of a user's tables: one rule for all forms and kinds."""

import dataclasses
import json

import pytest

from data.prepare import prepare, settings_from
from data.reading.caches import examples, read_manifest
from data.reading.labels import has_none, label_of
from data.task import DataError
from tests.helpers.own_data import TABLES, write_media
from tests.helpers.pictures import encoded, smooth
from tests.helpers.wordpiece import train_wordpiece


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (3, "3"),
        (3.0, "3"),
        ("3.0", "3"),
        (" 3 ", "3"),
        (-1.0, "-1"),
        (0.5, "0.5"),
        ("1.10", "1.10"),
        ("v1.0", "v1.0"),
        (True, "true"),
        ("True", "true"),
        ("good", "good"),
        (None, ""),
        (" ", ""),
        (float("nan"), ""),
    ],
)
def test_a_label_is_the_same_text_in_all_forms(value, label):
    assert label_of(value) == label


@pytest.mark.parametrize("value", [["a"], {"a": 1}, b"a"])
def test_a_label_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="no word and no number"):
        label_of(value)


@pytest.mark.parametrize(
    ("names", "is_none"),
    [
        ({"-1", "0", "1"}, True),
        ({"0", "1"}, False),
        ({"-1", "1"}, False),
        ({"-1", "-2", "0"}, False),
        ({"-1", "good", "bad"}, False),
    ],
)
def test_minus_one_is_no_label_beside_two_numbers_from_0_on(names, is_none):
    assert has_none(names) is is_none


LABELS = (0, 1, -1)


@pytest.mark.parametrize("form", TABLES)
def test_texts_of_no_label_are_left_out_of_every_form_alike(tmp_path, form):
    """A third of the rows, counted and named; the same rows with two labels alone keep them."""
    train_wordpiece(["one two three four"], tmp_path / "tokenizer.json", 34)
    for name, labels in (("thirds", LABELS), ("halves", (1, -1))):
        (tmp_path / name).mkdir()
        words = ["".join("abcdefgh"[n // 8**i % 8] for i in range(3)) for n in range(60)]
        TABLES[form](tmp_path / name / form, [{"text": word, "label": labels[n % len(labels)]} for n, word in enumerate(words)])
    lines = []

    def manifest(name):
        settings = settings_from(str(tmp_path / name / form)).encoded_with("")
        return read_manifest(prepare(name, settings, data_dir=tmp_path, vocabulary=tmp_path, progress=lines.append))

    thirds, halves = manifest("thirds"), manifest("halves")
    assert (thirds["labels"], thirds["left_out"]) == (["0", "1"], 20)
    assert (halves["labels"], halves["left_out"]) == (["-1", "1"], 0)
    (line,) = (line for line in lines if line.startswith("the source: "))
    assert line.startswith("the source: 20 of 60 examples left out; ")
    assert line.endswith("its label is -1, which stands for none beside 0 and 1")


@pytest.mark.parametrize("form", ["beside metadata.csv", "beside metadata.jsonl", "inside rows.parquet"])
def test_pictures_of_no_label_are_left_out_and_whole_numbers_are_classes(tmp_path, form):
    """Numbers of a column that lacks some are floats; one that is no whole number is refused."""
    files = {f"{n:02d}.png": encoded(smooth(9, 12, n)) for n in range(24)}
    (tmp_path / "source").mkdir()
    rows = [{"label": (0.0, 1.0, -1.0, None)[n % 4]} for n in range(24)]
    source = write_media(tmp_path / "source", form, files, rows, "image")
    cache = prepare("mine", settings_from(str(source)), data_dir=tmp_path, progress=len)
    manifest = read_manifest(cache)
    assert manifest["labels"] == ["0", "1"] and manifest["parts"]["all"]["left_out"] >= 8
    assert sum(part["examples"] for part in manifest["parts"].values()) + sum(manifest["held_out"].values()) == 12
    assert {example["label"] for example in examples(cache, "test")} == {"0", "1"}
    if form.startswith("inside"):
        rows[0] = {"label": 0.5}
        write_media(tmp_path / "source", form, files, rows, "image")
        with pytest.raises(DataError, match=r"row 1: label 0\.5 is no class: expected a word or a whole number"):
            prepare("mine", settings_from(str(source)), data_dir=tmp_path, progress=len)


CELLS = {  # columns of a table -> a cell that is no text, and what is said of it
    "labelled": ({"text": {"a": 1}, "label": "x"}, {"text": "a", "label": "y"}, "its text is an object, and no text"),
    "text": ({"text": ["a"]}, {"text": "b c"}, "its text is a list, and no text"),
    "text_to_text": ({"inputs": "a", "targets": {"b": 1}}, {"inputs": "b", "targets": "c"}, "its targets is an object"),
    "translation": ({"en": ["a"], "de": "b"}, {"en": "c", "de": "d"}, "its text in en is a list, and no text"),
}


@pytest.mark.parametrize("kind", CELLS)
def test_cells_that_are_no_texts_are_left_out_and_named(tmp_path, kind):
    """An object or a list does not become a text of braces."""
    bad, good, line = CELLS[kind]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (good, bad)))
    settings = settings_from(str(tmp_path / "rows.jsonl"), kind=kind)
    (tmp_path / "only.jsonl").write_text(json.dumps(bad) + "\n")
    only = dataclasses.replace(settings, source=f"file:{tmp_path / 'only.jsonl'}")
    with pytest.raises(DataError, match=rf"no example can be used; only\.jsonl, row 1: {line}"):
        only_maker(only, tmp_path)


def only_maker(settings, root):
    """Opens a source, without the packages of a vocabulary."""
    from data.cache_maker import maker_of

    maker = maker_of("mine", settings, root, len)
    maker.folder = root
    maker.open()


def test_captions_and_transcripts_that_are_no_texts_are_refused(tmp_path):
    """In a line that names the row."""
    files = {f"{n}.png": encoded(smooth(9, 12, n)) for n in range(3)}
    source = write_media(tmp_path, "beside metadata.jsonl", files, [{"caption": {"a": 1}}] * 3, "image")
    with pytest.raises(DataError, match=r"metadata\.jsonl, row 1: its caption is an object, and no text"):
        prepare("mine", settings_from(str(source)), data_dir=tmp_path / "data", progress=len)
