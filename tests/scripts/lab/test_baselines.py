"""The classical baselines, without scikit-learn: what they read, and what they refuse."""

import json
import sys

import pytest

from configs.registry import ConfigError
from scripts.lab import baselines
from tests.helpers.pictures import write_picture_cache


@pytest.mark.parametrize("arguments", [["text", "debian_sections"], ["dialog", "chitchat"], ["images", "mnist"]])
def test_scikit_learn_is_asked_for(arguments, monkeypatch):
    """Without scikit-learn, which the project doesn't require, the bench says in a line how to get it."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match=r"needs scikit-learn: pip install scikit-learn$"):
        baselines.main(arguments)


def test_sizes_are_numbers():
    """A size that is no number is refused in a line that gives an example."""
    with pytest.raises(ConfigError, match=r"^argument --sizes: '1k,0' is not whole numbers"):
        baselines.main(["text", "debian_sections", "--sizes", "1k,0"])


def test_text_is_the_last_words_over_turns():
    """Words are counted from the end across turns; 0 takes all."""
    turns = ["Hello  there", "Hi, how are you?"]
    assert baselines.last_words(turns, 5) == "there Hi, how are you?"
    assert baselines.last_words(turns, 0) == "Hello there Hi, how are you?"


def test_a_line_has_all_figures():
    """A measurement is a line with its attribute, its words and its scores."""
    line = {"attribute": "witty", "words": 0, "auc": 0.61, "accuracy": 0.7, "majority": 0.65, "test": 20}
    assert baselines.dialog_line(line) == (
        "witty          all words: AUC 0.610, accuracy 0.700 (majority 0.650) of 20 conversations"
    )


def test_pixels_of_a_cache(tmp_path):
    """Training and held-out pictures are vectors from 0 to 1, with their classes."""
    cache = write_picture_cache(tmp_path, {"ant": 20, "bee": 20})
    manifest = json.loads((cache / "manifest.json").read_text())
    splits = baselines.read_pixels(cache, manifest, 6, limit=10)
    shapes = {"train": (10, 108), "validation": (2, 108), "test": (4, 108)}
    assert {name: pixels.shape for name, (pixels, _) in splits.items()} == shapes
    pixels, labels = splits["test"]
    assert pixels.min() >= 0 and pixels.max() <= 1 and set(labels.tolist()) == {0, 1}
