import shutil

import numpy as np
import pytest

from data.vocabularies import sentencepiece
from data.vocabularies.sentencepiece import Vocabulary
from tests.helpers.catalogues import WORDS


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    path = tmp_path_factory.mktemp("vocabulary") / "some.model"
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, 6)) for _ in range(300)]
    sentencepiece.train(lines, path, size=340, tags=["sw", "br", "zh-Hant"])
    return Vocabulary(path)


def test_special_ids(vocabulary):
    """Padding is 0 and the end of sentence 1, as SeqIO expects, and the size is the one asked for."""
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.size) == (0, 1, 340)


@pytest.mark.parametrize("text", ["bada felu nomi", "Ünknown 漢字 and 🙂", "a <br> b <sw>"])
def test_every_text_survives(vocabulary, text):
    """Decoding what was encoded gives the text back, also where characters were never seen: they become bytes."""
    ids = vocabulary.encode(text)
    assert sentencepiece.UNK_ID not in ids
    assert vocabulary.decode([*ids, vocabulary.eos_id, 5, 6, 7]) == text


def test_tags_are_not_found_in_text(vocabulary):
    """A tag has an id of its own that no text gives: `<br>` in a string is HTML, not Breton."""
    tag = vocabulary.tag_id("br")
    assert tag != vocabulary.tag_id("sw") and tag not in vocabulary.encode("a <br> b <br/>")
    assert vocabulary.decode([tag, *vocabulary.encode("open"), 1]) == "open"
    with pytest.raises(KeyError, match="no tag for language 'xx'"):
        vocabulary.tag_id("xx")


def test_too_large_a_vocabulary_gives_one_line(tmp_path):
    """A size that the text can't fill is refused in one line with the largest that it can, and leaves no file; that size can be
    taken. A text that fills no vocabulary at all is refused with no size."""
    with pytest.raises(ValueError, match=r"^vocabulary of 5000 is too large for these \d+ lines: take at most \d+$") as error:
        sentencepiece.train(WORDS * 4, tmp_path / "some.model", size=5000)
    most = int(str(error.value).split()[-1])
    sentencepiece.train(WORDS * 4, tmp_path / "most" / "some.model", size=most)
    assert sentencepiece.Vocabulary(tmp_path / "most" / "some.model").size == most
    shutil.rmtree(tmp_path / "most")
    for train, size in ((sentencepiece.train, 5000), (sentencepiece.train_at_most, 4096), (sentencepiece.train, 330)):
        with pytest.raises(ValueError, match=r"^these 2 lines have too few different words .* at least 323 ids: add text$"):
            train(["some words", "other words"], tmp_path / "some.model", size=size)
    with pytest.raises(ValueError, match="vocabulary of 300 is too small"):
        sentencepiece.train(["some words"], tmp_path / "some.model", size=300)
    assert not list(tmp_path.iterdir())


def test_sampling_flattens():
    """At temperature 5 a language 1,000 times as large gets 4 times the lines, and none is repeated."""
    lines = {"large": [f"l{i}" for i in range(32_000)], "small": [f"s{i}" for i in range(32)]}
    sample = list(sentencepiece.sample_lines(lines, budget=100, temperature=5))
    small = [line for line in sample if line.startswith("s")]
    assert len(sample) == pytest.approx(100, abs=2) and len(small) == pytest.approx(20, abs=1)
    assert len(set(sample)) == len(sample)
    assert sample == list(sentencepiece.sample_lines(lines, budget=100, temperature=5))
