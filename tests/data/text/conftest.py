"""A tiny corpus of two origins, in one small package."""

import pytest

from tests.helpers.text_packages import tiny_corpus


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory):
    """A data folder whose corpus `english_small` has 120 letters and 40 notes."""
    root = tmp_path_factory.mktemp("tiny_text")
    with tiny_corpus(root):
        yield root
