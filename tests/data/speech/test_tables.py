"""Tables of texts beside sounds that are no tables."""

import pytest

from data.speech import folders
from data.speech.caches import SpeechCache
from data.task import DataError


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("metadata.csv", b"file_name,text\na.wav,\xff\n", r"csv, line 2 is damaged: byte 6 is no UTF-8$"),
        ("metadata.csv", b"file_name,text\na.wav,\0\n", None),
        ("metadata.jsonl", b'{"file_name": ' + b"[" * 10**5, r"jsonl, line 1 is damaged: it is nested more than 100 deep$"),
        ("metadata.jsonl", b'{"file_name": "a.wav"}\n{"text": "\xff"}', r"jsonl, line 2 is damaged: byte 10 is no UTF-8$"),
        ("metadata.jsonl", b"[]", r"jsonl, line 1 is damaged: expected an object$"),
    ],
)
def test_a_hostile_table_is_refused(name, content, said, tmp_path):
    """A field that is longer than any text, bytes that are no UTF-8, nesting without end: each names the line."""
    (tmp_path / name).write_bytes(content)
    if said is None:
        folders.open_folder(tmp_path, SpeechCache(source="x"))
        return
    with pytest.raises(DataError, match=said):
        folders.open_folder(tmp_path, SpeechCache(source="x"))
