"""The vocabulary of bytes, of folders that have no file of it: ids are bytes + 3."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from data.vocabularies import files
from data.vocabularies.files import VocabularyError
from data.vocabularies.tokenizers import Tokenizer
from tests.parity.live import FIXTURES
from trainers.weights import huggingface, load_any

TEXT = "Naïve  漢字\n x<extra_id_0>é\U0001f600\t"
NAMED = {"tokenizer_class": "ByT5Tokenizer"}


def folder(to: Path, config: dict[str, Any], **more: Any) -> Path:
    to.mkdir()
    (to / "config.json").write_text(json.dumps({"eos_token_id": 1} | config))
    if more:
        (to / "tokenizer_config.json").write_text(json.dumps(more))
    return to


def test_ids_are_bytes_and_three(tmp_path):
    """As `transformers`' ByT5Tokenizer has them: an end behind each text, 125 marks behind the bytes; any text comes back."""
    tokenizer = Tokenizer(folder(tmp_path / "f", NAMED))
    assert tokenizer.whole(TEXT) == [*(byte + 3 for byte in TEXT.encode()), 1]
    assert tokenizer.decode(tokenizer.whole(TEXT)) == TEXT
    assert (tokenizer.size, tokenizer.end, tokenizer.ends, tokenizer.before) == (384, 1, (1,), ())
    assert tokenizer.special["<extra_id_0>"] == 259 and tokenizer.special["<extra_id_124>"] == 383


def test_either_file_names_it(tmp_path):
    """A tokenizer_config.json may, with a number of marks; a tokenizer.json is read where there is one."""
    other = folder(tmp_path / "f", {}, extra_ids=7, pad_token="<pad>", **NAMED)
    assert files.readable(other) and (Tokenizer(other).size, Tokenizer(other).pad_id) == (266, 0)
    assert not files.readable(folder(tmp_path / "g", {"tokenizer_class": "T5Tokenizer"}))
    with pytest.raises(VocabularyError, match=r"tokenizer\.json is missing"):
        Tokenizer(tmp_path / "g")


@pytest.mark.parametrize("marks", [-1, 1 << 20, "many", True])
def test_numbers_of_marks_that_are_none_are_refused(marks, tmp_path):
    with pytest.raises(VocabularyError, match=r"extra_ids=.*: expected a number of marks, as released 125"):
        Tokenizer(folder(tmp_path / "f", NAMED, extra_ids=marks))


def test_a_copy_has_files(tmp_path):
    """So that caches and releases hold the vocabulary as others do, and `transformers` finds its class."""
    source, to = folder(tmp_path / "f", NAMED), tmp_path / "to"
    to.mkdir()
    files.copy(source, to)
    assert Tokenizer(to).same_vocabulary(Tokenizer(source)) and Tokenizer(to).end == 1
    named = json.loads((to / "tokenizer_config.json").read_text())
    assert (named["tokenizer_class"], named["pad_token"]) == ("ByT5Tokenizer", "<pad>")


def test_a_folder_of_weights_has_it(tmp_path):
    """A released folder is opened with the vocabulary, and written with its files."""
    shutil.copytree(FIXTURES / "byt5", tmp_path / "f")
    config = json.loads((tmp_path / "f/config.json").read_text())
    (tmp_path / "f/config.json").write_text(json.dumps(config | NAMED))
    source = load_any.open_weights(tmp_path / "f")
    assert source.vocabulary == tmp_path / "f"
    huggingface.write_folder(source, tmp_path / "out")
    again = load_any.open_weights(tmp_path / "out")
    assert again.config == source.config and again.vocabulary is not None
    assert Tokenizer(again.vocabulary).whole("é") == [0xC3 + 3, 0xA9 + 3, 1]
