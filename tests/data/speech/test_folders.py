"""Tables of a user's own sounds: splits, quotation marks, rows that are not what they should be."""

import json
from pathlib import Path

import pytest

from data.speech.caches import SpeechCache
from data.speech.folders import open_folder
from data.task import DataError

SETTINGS = SpeechCache(source="folder:none", language="cs", seconds=2.0, targets_length=24)


def opened(folder: Path, table: str, name: str = "metadata.csv") -> dict[str, list]:
    (folder / name).write_text(table, encoding="utf-8")
    return {split: list(utterances) for split, utterances in open_folder(folder, SETTINGS).items()}


def test_rows_without_a_split_among_rows_with_one_are_refused(tmp_path):
    """A held-out row would be trained on, and a typing error not be seen: all rows have a split or none."""
    rows = [f"{i}.wav,ano,{'test' if i == 7 else ''}\n" for i in range(20)]
    with pytest.raises(DataError, match=r"metadata\.csv, row 1: no split, which 1 other rows have"):
        opened(tmp_path, "file_name,text,split\n" + "".join(rows))
    with pytest.raises(DataError, match=r"row 2: no split 'tset'; did you mean 'test'"):
        opened(tmp_path, "file_name,text,split\na.wav,ano,train\nb.wav,ne,tset\nc.wav,ne,\n")
    unmarked = opened(tmp_path, "file_name,text,split\n" + "".join(f"{i}.wav,ano,\n" for i in range(20)))
    assert all(unmarked.values()) and sum(map(len, unmarked.values())) == 20


def test_a_quotation_mark_is_a_letter_of_a_table_with_tabs(tmp_path):
    """It may begin a text, as in Common Voice's tables, and be closed in the text or not at all."""
    texts = ['"Hello there', 'yes "no"', '"quoted"', "it's"]
    rows = "".join(f"{i}.wav\t{text}\ttrain\n" for i, text in enumerate(texts))
    splits = opened(tmp_path, f"file_name\ttext\tsplit\n{rows}", "metadata.tsv")
    assert sorted(u.texts["transcribe"] for split in splits.values() for u in split) == sorted(texts)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('a.wav,"Hello there\nb.wav,yes"\n', r"metadata\.csv, row 1: text has a line break"),
        ('a.wav,"Hello there\nb.wav,yes\nc.wav,no\n', r"row of line 2: .*is a quotation mark not closed"),
        ("a.wav,yes,no\n", r"line 2: 3 fields, for the 2 columns of the first line"),
    ],
)
def test_a_text_does_not_swallow_rows(tmp_path, row, message):
    """A quotation mark that nobody closes, and a comma that nobody quoted, are lines of their own."""
    with pytest.raises(DataError, match=message) as error:
        opened(tmp_path, f"file_name,text\n{row}")
    assert "\n" not in str(error.value)


def test_a_comma_or_a_line_of_json_may_stand_in_a_text(tmp_path):
    """A text that is quoted as its form has it is read."""
    rows = "".join(f'{i}.wav,"so, ""he"" said",train\n' for i in range(2))
    splits = opened(tmp_path, f"file_name,text,split\n{rows}")
    assert {u.texts["transcribe"] for u in splits["train"]} == {'so, "he" said'}
    lines = "".join(json.dumps({"file_name": f"{i}.wav", "text": 'a "b', "split": "train"}) + "\n" for i in range(2))
    (tmp_path / "metadata.csv").unlink()
    assert len(opened(tmp_path, lines, "metadata.jsonl")["train"]) == 2
