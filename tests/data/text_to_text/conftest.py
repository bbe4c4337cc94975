"""A byte-level vocabulary of a few words, whose end of text has id 0, as t5.quickstart's has."""

from pathlib import Path

import pytest

from data.vocabularies import tokenizers

_LINES = ["the cat sat on the mat", "editors libs games NOUN VERB DET ADJ .", "text: words: context: question: label"]


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> Path:
    """A folder with a vocabulary of 300 ids."""
    folder = tmp_path_factory.mktemp("vocabulary")
    tokenizers.train_bpe(_LINES * 20, folder / tokenizers.FILE, 300)
    return folder
