import types
from typing import Any

import numpy as np
import pytest

from data.text import encoding
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.rows import unpack
from tests.parity.live import FIXTURES

END, CLS, SEP, BEGIN = range(4)
# A vocabulary whose ids are characters.
BPE: Any = types.SimpleNamespace(encode=lambda text: list(map(ord, text)), cls_id=None, before=(), behind=(), end=END)
BEGUN: Any = types.SimpleNamespace(**vars(BPE) | {"before": (BEGIN,)})
WORDPIECE: Any = types.SimpleNamespace(encode=lambda text: list(map(ord, text)), cls_id=CLS, sep_id=SEP)


def chunks(text, tokenizer, length):
    return [chunk.tolist() for chunk in encoding.chunks(text, tokenizer, length)]


def test_chunks_overlap_by_one_token():
    """A text is end, text, end, in chunks of four: the last token of one is the first of the next, there to predict from."""
    a, b, c, d, e = map(ord, "abcde")
    assert chunks("abcde", BPE, 4) == [[END, a, b, c], [c, d, e, END]]
    assert chunks("abcd", BPE, 4) == [[END, a, b, c], [c, d, END]]
    assert chunks("abc", BPE, 4) == [[END, a, b, c], [c, END]]
    assert chunks("ab", BPE, 4) == [[END, a, b, END]]


def test_a_text_begins_as_its_vocabulary_begins_it():
    """Where a vocabulary puts a token before every text, the text begins with it, and ends with the end."""
    a, b, c, d, e = map(ord, "abcde")
    assert chunks("abcde", BEGUN, 4) == [[BEGIN, a, b, c], [c, d, e, END]]


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("llama2", "<s>", "</s>"),
        ("llama3_instruct", "<|begin_of_text|>", "<|eot_id|>"),
        ("gemma2", "<bos>", "<eos>"),
        ("deepseek_v3", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        ("qwen2", "<|endoftext|>", "<|endoftext|>"),
        ("closed", "<s>", "</s>"),
    ],
)
def test_documents_begin_and_end_as_a_released_vocabulary_does(name, first, last):
    """Rows for training and for a perplexity have its own tokens; one without a beginning begins with the end."""
    tokenizer = Tokenizer(FIXTURES / "texts" / name)
    rows, size = encoding.rows_of(["the cat sat.", "a dog"], tokenizer, 32)
    assert size == 17 and len(rows) == 1
    tokens, segments = rows[0, :32], rows[0, 32:64]
    for number, text in enumerate(("the cat sat.", "a dog"), 1):
        ids = [tokenizer.id_of(first), *tokenizer.encode(text), tokenizer.id_of(last)]
        assert tokens[segments == number].tolist() == ids


def test_chunks_of_word_pieces_stand_alone():
    """Each chunk of word pieces is [CLS] ... [SEP]; nothing overlaps, and a text without pieces has no chunk."""
    a, b, c, d, e = map(ord, "abcde")
    assert chunks("abcde", WORDPIECE, 5) == [[CLS, a, b, c, SEP], [CLS, d, e, SEP]]
    assert chunks("abc", WORDPIECE, 5) == [[CLS, a, b, c, SEP]]
    assert chunks("", WORDPIECE, 5) == []


@pytest.mark.parametrize("length", [2, 5, 16, 64])
def test_every_token_is_predicted_once(length):
    """The targets, next tokens of the same segment, are all tokens of all texts but the first end, once each."""
    rng = np.random.default_rng(length)
    texts = ["".join(chr(100 + i) for i in rng.integers(0, 20, rng.integers(0, 40))) + chr(200 + n) for n in range(30)]
    rows, size = encoding.rows_of(texts, BPE, length)
    assert rows.shape[1] == 3 * length and rows.dtype == np.int32
    predicted = []
    for tokens, segments, positions in rows.reshape(-1, 3, length):
        assert np.all(positions[1:][np.diff(segments) != 0] == 0)
        predicted += tokens[1:][(segments[1:] == segments[:-1]) & (segments[1:] > 0)].tolist()
    assert sorted(predicted) == sorted([END] * 30 + [ord(character) for text in texts for character in text])
    assert size == sum(len(text.encode()) for text in texts)


def test_rows_hold_the_chunks():
    """Rows are the packed chunks, and no text gives no row."""
    rows, _ = encoding.rows_of(["abc", "de"], WORDPIECE, 10)
    (row,) = rows
    assert [example[0].tolist() for example in unpack(row, (10,))] == [[CLS, *map(ord, "abc"), SEP], [CLS, *map(ord, "de"), SEP]]
    assert encoding.rows_of([], BPE, 10)[0].shape == (0, 30)
