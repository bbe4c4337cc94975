import sys

import pytest

from configs.registry import ConfigError
from scripts.lab import dialog_baseline


def test_scikit_learn_is_asked_for(monkeypatch):
    """Without scikit-learn, which the project doesn't require, the bench says in a line how to get it."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match=r"needs scikit-learn: pip install scikit-learn$"):
        dialog_baseline.main(["chitchat"])


def test_text_is_the_last_words_over_turns():
    """Words are counted from the end across turns; 0 takes all."""
    turns = ["Hello  there", "Hi, how are you?"]
    assert dialog_baseline.text(turns, 5) == "there Hi, how are you?"
    assert dialog_baseline.text(turns, 0) == "Hello there Hi, how are you?"


def test_a_line_tells_all_figures():
    """A measurement is a line with its attribute, its words and its scores."""
    line = {"attribute": "witty", "words": 0, "auc": 0.61, "accuracy": 0.7, "majority": 0.65, "test": 20}
    assert dialog_baseline.tell(line) == (
        "witty          all words: AUC 0.610, accuracy 0.700 (majority 0.650) of 20 conversations"
    )
