"""A SentencePiece model gives the same ids as a tokenizer.json file."""

import io
import random

import pytest
import sentencepiece

from data.vocabularies import sentencepiece_json
from data.vocabularies.files import VocabularyError
from data.vocabularies.sentencepiece import EOS_ID, PAD_ID, UNK_ID
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.catalogues import WORDS

_CHANCE = random.Random(0)
LINES = [" ".join(_CHANCE.choices(WORDS, k=8)) for _ in range(400)] + ["Naïve café, 12.5 schön & größer! Zürich"] * 5

TEXTS = ["a cat sat on the mat", "  two  blanks ", "", "Zürich ½ ﬁ 日本", "tab\tand\nline", *LINES[:20]]


def _train(path, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=model, minloglevel=2, **options)
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize(
    "options",
    [
        {
            "model_type": "unigram",
            "vocab_size": 350,
            "byte_fallback": True,
            "pad_id": PAD_ID,
            "eos_id": EOS_ID,
            "unk_id": UNK_ID,
            "bos_id": -1,
        },
        {"model_type": "unigram", "vocab_size": 60},
        {"model_type": "bpe", "vocab_size": 350, "byte_fallback": True, "normalization_rule_name": "identity"},
        {
            "model_type": "bpe",
            "vocab_size": 350,
            "byte_fallback": True,
            "remove_extra_whitespaces": False,
            "normalization_rule_name": "identity",
        },
        {"model_type": "bpe", "vocab_size": 90, "add_dummy_prefix": False},
    ],
)
def test_the_ids_are_sentencepieces(tmp_path, options):
    """As T5's and LLaMA's models are trained, and others; the end of text is the model's.

    A text that spells a mark, as "</s>" or SentencePiece's blank, is the exception: in the `tokenizers` library marks are pieces.
    """
    model = _train(tmp_path / "spiece.model", **options)
    sentencepiece_json.write(tmp_path / "spiece.model", tmp_path)
    tokenizer = Tokenizer(tmp_path)
    for text in TEXTS:
        assert tokenizer.encode(text) == model.encode(text), text
    for text in TEXTS:
        ids = [id_ for id_ in model.encode(text) if id_ != model.unk_id()]
        assert tokenizer.decode(ids) == model.decode(ids), text
    assert (tokenizer.end, tokenizer.size) == (model.eos_id(), model.get_piece_size())


def test_a_model_of_words_is_refused(tmp_path):
    _train(tmp_path / "words.model", model_type="word", vocab_size=20)
    with pytest.raises(VocabularyError, match="a SentencePiece model of words or characters"):
        sentencepiece_json.write(tmp_path / "words.model", tmp_path)
