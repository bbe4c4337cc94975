import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data.vocabularies import tokenizers
from data.vocabularies.files import VocabularyError
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.archives import released
from tests.helpers.catalogues import WORDS
from tests.helpers.masked_vocabularies import train_roberta, write_xlm_roberta
from tests.helpers.wordpiece import train_wordpiece

TRICKY = "Don't  panic: naïve 漢字 🙂\n\n42<|endoftext|>[MASK] ok"


def lines() -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, 6)) for _ in range(300)]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bpe")
    tokenizers.train_bpe(lines(), folder / "tokenizer.json", 400)
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("wordpiece")
    train_wordpiece(lines(), folder / "tokenizer.json", 200)
    return Tokenizer(folder)


@pytest.mark.network
def test_gpt2_from_its_own_files(tmp_path):
    """GPT-2's vocabulary, put together from its two files, gives GPT-2's ids, and back the text they came from."""
    gpt2 = released("gpt2", tmp_path)
    assert (gpt2.size, gpt2.eos_id, gpt2.special_ids) == (50257, 50256, (50256,))
    assert gpt2.encode("Hello world") == [15496, 995]
    assert gpt2.decode([*gpt2.encode(TRICKY), 50256]) == TRICKY
    assert gpt2.continues[gpt2.encode("don't go")].tolist() == [True, True, False]


@pytest.mark.network
def test_released_wordpiece(tmp_path):
    """MiniLM's vocabulary has BERT's ids; it neither cuts nor pads, though its file says so."""
    bert = released("minilm_l6", tmp_path)
    assert (bert.pad_id, bert.unk_id, bert.cls_id, bert.sep_id, bert.mask_id) == (0, 100, 101, 102, 103)
    assert (bert.size, bert.eos_id) == (30522, 102)
    assert bert.encode("Hello, world!") == [7592, 1010, 2088, 999]
    assert len(bert.encode("word " * 1000)) == 1000
    pieces = bert.encode("embeddings")
    assert len(pieces) > 1 and bert.continues[pieces].tolist() == [False, *[True] * (len(pieces) - 1)]


def test_special_tokens_are_not_found_in_text(bpe, wordpiece):
    """Text that looks like a special token is text."""
    assert not set(bpe.encode(TRICKY)) & set(bpe.special_ids)
    assert not set(wordpiece.encode(TRICKY)) & {wordpiece.mask_id, wordpiece.cls_id}


def test_bytes_make_every_text(bpe):
    """Byte-level BPE gives back any text, whatever it was trained on; the end of text gives nothing."""
    assert bpe.decode([0, *bpe.encode(TRICKY), 0]) == TRICKY
    assert (bpe.size, bpe.eos_id, bpe.pad_id, bpe.mask_id) == (400, 0, None, None)


def test_words_that_are_cut_already(bpe, wordpiece):
    """The ids of words, one after the other, are those of the text with blanks between the words."""
    words = ["bada", "felu", "nomi"]
    for tokenizer in (bpe, wordpiece):
        of_words = tokenizer.encode_words(words)
        assert len(of_words) == 3 and [id_ for word in of_words for id_ in word] == tokenizer.encode("bada felu nomi")


def test_offsets_find_the_characters(bpe, wordpiece):
    """Each id's offsets cut its own characters out of the text, without the blank before a word."""
    text = "Bada  felü, nomi"
    for tokenizer in (bpe, wordpiece):
        ids, offsets = tokenizer.encode_offsets(text)
        assert ids == tokenizer.encode(text) and len(ids) == len(offsets)
        assert "".join(text[start:end] for start, end in offsets if start < end)[:4] == "Bada"
        assert all(0 <= start <= end <= len(text) for start, end in offsets)
        assert not any(text[start:end].startswith(" ") and end > start + 1 for start, end in offsets)
    _, ends = zip(*wordpiece.encode_offsets(text)[1], strict=True)
    assert ends[-1] == len(text)


def test_word_pieces(wordpiece):
    """`[PAD]` is 0 and the specials follow; text is folded to lower case; pieces after a word's first continue it."""
    assert wordpiece.special_ids == (0, 1, 2, 3, 4) and wordpiece.pad_id == 0 and wordpiece.size == 200
    assert wordpiece.encode("BADA") == wordpiece.encode("bada")
    ids = wordpiece.encode("bada felu")
    starts = [i for i, id_ in enumerate(ids) if not wordpiece.continues[id_]]
    assert len(starts) == 2 and wordpiece.decode(ids) == "bada felu"
    assert not wordpiece.continues[list(wordpiece.special_ids)].any()


@pytest.mark.parametrize("kind", ["roberta", "xlm_roberta"])
def test_vocabularies_of_roberta(kind, tmp_path):
    """`<s>`, `</s>` and `<mask>` are [CLS], [SEP] and [MASK]; two texts have two separators between them, which BERT's have not;
    a text never gives the mask, and is given back."""
    if kind == "roberta":
        train_roberta(lines(), tmp_path / "tokenizer.json", 400)
    else:
        write_xlm_roberta(["bada", "felu"], tmp_path / "tokenizer.json")
    tokenizer = Tokenizer(tmp_path)
    ids = [tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id, tokenizer.unk_id]
    assert ids == [0, 1, 2, 3] and tokenizer.eos_id == 2 and tokenizer.separators == 2
    assert tokenizer.mask_id == (4 if kind == "roberta" else tokenizer.size - 1)
    pieces = tokenizer.encode("bada felu badafelu")
    assert tokenizer.decode([0, *pieces, 2]) == "bada felu badafelu" and len(pieces) > 3
    starts = [not tokenizer.continues[id_] for id_ in pieces]
    assert sum(starts) == (2 if kind == "roberta" else 3)  # byte-level BPE marks words by the blank before them
    assert tokenizer.mask_id not in tokenizer.encode("bada <mask> felu")


def test_only_a_vocabulary_with_a_mask_has_a_beginning(bpe, wordpiece, tmp_path):
    """`<s>` of a decoder's vocabulary is no [CLS], whose texts would be cut as an encoder's are."""
    train_roberta(lines(), tmp_path / "tokenizer.json", 400)
    text = (tmp_path / "tokenizer.json").read_text().replace("<mask>", "<pad2>")
    (tmp_path / "tokenizer.json").write_text(text)
    decoder = Tokenizer(tmp_path)
    assert (decoder.cls_id, decoder.sep_id, decoder.eos_id) == (None, None, 2)
    assert (bpe.separators, wordpiece.separators) == (1, 1)


@pytest.mark.integration
def test_training_is_reproduced(tmp_path, bpe):
    """Another process, with other hash seeds, trains the same file from the same text."""
    program = (
        "import sys; from pathlib import Path; from data.vocabularies import tokenizers;"
        "from tests.data.vocabularies.test_tokenizers import lines;"
        "folder = Path(sys.argv[1]); tokenizers.train_bpe(lines(), folder / 'bpe', 400)"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=root, env=dict(os.environ))
    assert (tmp_path / "bpe").read_bytes() == bpe.path.read_bytes()


def test_vocabularies_are_compared(tmp_path, bpe, wordpiece):
    """A copy is the same vocabulary; one that was trained on other text is not."""
    (tmp_path / "copy.json").write_bytes(bpe.path.read_bytes())
    assert bpe.same_vocabulary(Tokenizer(tmp_path / "copy.json"))
    tokenizers.train_bpe(lines()[:200], tmp_path / "other.json", 400)
    assert not bpe.same_vocabulary(Tokenizer(tmp_path / "other.json")) and not bpe.same_vocabulary(wordpiece)


def test_sizes_that_cannot_be(tmp_path):
    """Too large or too small a vocabulary is refused in one line with a number, and leaves no file."""
    with pytest.raises(ValueError, match=r"^vocabulary of 90000 is too large for this text: take at most \d+$"):
        tokenizers.train_bpe(["some words", "other words"], tmp_path / "some.json", 90000)
    with pytest.raises(ValueError, match=r"^vocabulary of 10 is too small: \d+ ids are reserved$"):
        tokenizers.train_bpe(["some words", "other words"], tmp_path / "some.json", 10)
    assert not list(tmp_path.iterdir())
    with pytest.raises(VocabularyError, match=r"tokenizer\.json is missing"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("change", ["", "[" * 100_000, '{"model": null}', '{"model": {"type": "BPE", "vocab": {"a": -1}}}'])
def test_a_damaged_file_is_refused_in_one_line(tmp_path, change):
    """Whatever the library raises, its panics included."""
    (tmp_path / tokenizers.FILE).write_text(change)
    with pytest.raises(VocabularyError, match=r"tokenizer\.json is damaged: [^\n]+$"):
        Tokenizer(tmp_path)


def write_changed(tokenizer: Tokenizer, folder: Path, **settings: str) -> None:
    """Writes a tokenizer's file into a folder, with other settings of its model."""
    written = json.loads(tokenizer.path.read_text())
    (folder / tokenizers.FILE).write_text(json.dumps(written | {"model": written["model"] | settings}))


def test_a_prefix_that_merges_lack_is_refused(tmp_path, bpe):
    """The library would end the process: cut by one byte, "Ġ" is half a character."""
    write_changed(bpe, tmp_path, continuing_subword_prefix="#")
    with pytest.raises(VocabularyError, match=r"continuing_subword_prefix is '#', and the merge .* without it$"):
        Tokenizer(tmp_path)


def test_a_piece_for_unknown_words_that_is_none(tmp_path, wordpiece):
    """Shows when a text has such a word: one line, for a text and for words."""
    write_changed(wordpiece, tmp_path, unk_token="[NONE]")
    tokenizer = Tokenizer(tmp_path)
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_words([text])):
        with pytest.raises(VocabularyError, match=r"tokenizer\.json is damaged: [^\n]+$"):
            encode("\u2603")
