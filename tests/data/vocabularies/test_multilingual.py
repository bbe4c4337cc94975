"""Vocabularies of M2M-100 and NLLB: ids as `transformers` gives them, computed by hand from SentencePiece's."""

import json

import pytest
import sentencepiece

from data.vocabularies import files
from data.vocabularies.multilingual import Multilingual
from models.errors import UserError
from tests.helpers.vocabularies import SPECIAL, write_pieces

TEXT = "bada felu nomi, Ünïcode"
CODES = ["ace_Arab", "ace_Latn", "deu_Latn"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with pieces and M2M-100's ids of them."""
    folder = tmp_path_factory.mktemp("pieces")
    write_pieces(folder)
    return folder


def pieces_of(folder, text: str) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / files.PIECES))
    return processor.encode(text, out_type=str)


@pytest.fixture
def nllb(made, tmp_path):
    """A folder as NLLB was released: pieces, and the languages in the order of their ids."""
    (tmp_path / files.PIECES).write_bytes((made / files.PIECES).read_bytes())
    (tmp_path / files.SPECIAL).write_text(json.dumps({"additional_special_tokens": CODES}))
    return tmp_path


def test_ids_of_nllb_are_fairseqs(made, nllb):
    """Four special ids, SentencePiece's own one higher, then the languages, then the mask; a source is language, text, end."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(made / files.PIECES))
    vocabulary = Multilingual(nllb)
    assert vocabulary.languages == {"ace_Arab": 301, "ace_Latn": 302, "deu_Latn": 303} and vocabulary.size == 305
    want = [3 if id_ == 0 else id_ + 1 for id_ in processor.encode(TEXT)]
    assert 3 in want and max(want) > 100
    assert vocabulary.source("deu_Latn", TEXT) == vocabulary.target("deu_Latn", TEXT) == [303, *want, 2]
    assert vocabulary.source("deu_Latn", TEXT, most=5) == [303, *want[:3], 2]
    assert vocabulary.decode([303, *want[:4], 2, 7, 8]) == processor.decode(processor.encode(TEXT)[:4])


def test_the_first_nllb_has_the_language_after_the_end(nllb):
    """With `legacy_behaviour` a source is text, end, language, also where it is cut; a target begins with the language."""
    (nllb / files.CONFIG).write_text(json.dumps({"legacy_behaviour": True}))
    vocabulary = Multilingual(nllb)
    ids = vocabulary.encode(TEXT)
    assert vocabulary.source("deu_Latn", TEXT) == [*ids, 2, 303]
    assert vocabulary.source("deu_Latn", TEXT, most=5) == [*ids[:3], 2, 303]
    assert vocabulary.target("deu_Latn", TEXT) == [303, *ids, 2]


def test_ids_that_a_folder_lists_are_taken(nllb):
    """`transformers` puts the mask before the languages where it made the folder, and lists the ids."""
    listed = {"301": "<mask>", "302": "deu_Latn"}
    config = {"added_tokens_decoder": {id_: {"content": token} for id_, token in listed.items()}}
    (nllb / files.CONFIG).write_text(json.dumps(config))
    assert Multilingual(nllb).languages == {"deu_Latn": 302}


def test_ids_of_m2m100_are_those_of_its_table(made):
    """Pieces have the ids of vocab.json, the hundred languages follow in their known order."""
    vocabulary, table = Multilingual(made), json.loads((made / files.IDS).read_text())
    assert len(vocabulary.languages) == 100 and vocabulary.size == 401
    assert vocabulary.languages["af"] == 301 and vocabulary.languages["zu"] == 400
    want = [table.get(piece, 3) for piece in pieces_of(made, TEXT)]
    assert vocabulary.source("de", TEXT) == [vocabulary.languages["de"], *want, 2]
    assert vocabulary.decode(vocabulary.target("de", "bada felu")) == "bada felu"


def test_special_tokens_are_not_found_in_text(nllb):
    """A text that spells the end or a language is a text."""
    ids = Multilingual(nllb).encode(" ".join([*SPECIAL[:3], "deu_Latn"]))
    assert not {0, 1, 2, 303} & set(ids)


def test_a_folder_without_languages_is_refused(nllb):
    """Pieces alone do not say which ids the languages have: one line."""
    (nllb / files.SPECIAL).unlink()
    with pytest.raises(UserError, match="no file lists the tokens of languages, such as deu_Latn or __de__") as caught:
        Multilingual(nllb)
    assert len(str(caught.value).splitlines()) == 1
