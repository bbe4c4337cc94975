import subprocess
import sys

import pytest

from data.translation import corpus, holdout
from data.translation.catalogues import Catalogue, Pair
from data.translation.holdout import english_key


def test_english_key():
    """Strings that differ in case, numbers, placeholders, tags or marks alone have one key."""
    variants = ["Delete 3 files, %(name)s?", "delete 14 files  <b>", "DELETE %d{n} 7 files!"]
    assert english_key(variants[0]) == "delete 0 files" == english_key(variants[1])
    assert english_key("Delete files") != english_key(variants[0])


def test_near_copies():
    """A near copy of a held-out string is one with at least half of its 4-grams, however long it is itself."""
    held = "a b c d e f g"  # four 4-grams
    assert holdout.near_copies(["x a b c d e y z", "a b c d x", "z a b c d e f g z", "q"], [held]) == {
        "x a b c d e y z",
        "z a b c d e f g z",
    }


def test_cover_prefers_keys_of_many_languages():
    """The greedy cover gives every language what it wants with the fewest keys, here by hand."""
    languages_of = {"all": ["a", "b", "c"], "ab": ["a", "b"], "c": ["c"], "a": ["a"]}
    assert holdout.cover(languages_of, {"a": 1, "b": 1, "c": 1}) == ["all"]
    assert sorted(holdout.cover(languages_of, {"a": 2, "b": 2, "c": 2})) == ["ab", "all", "c"]
    # More than there is ends without it.
    assert sorted(holdout.cover(languages_of, {"c": 9})) == ["all", "c"]


def test_no_held_out_source_is_trained_on():
    """Two English strings have one translation in a language, one is held out: training keeps its pair and the test loses it.

    "open the file ..." and "load the file" share no 4-gram: their English alone does not tell that one gives the other away.
    """
    held, alike, languages = "open the file that you saved yesterday", "load the file", ("de", "fr", "sw")
    texts = [held, alike, "remove all pages of this old section now", *(f"string {letter} of another kind" for letter in "abcde")]
    both = "kufungua faili"
    pairs = [
        Pair("some", language, both if language == "sw" and "the file" in text else f"{language} {text}", text)
        for text in texts
        for language in languages
    ]
    catalogue = Catalogue(sources=(), languages=9, test=1, validation=1, share=0.2)
    splits = corpus.divide_pairs(catalogue, pairs, {"udhr_test": {"sw": [Pair("udhr", "sw", both, "Another text")]}})
    assert Pair("some", "sw", both, alike) in splits["train"]["sw"]
    assert splits["test"] == {language: [Pair("some", language, f"{language} {held}", held)] for language in ("de", "fr")}
    assert set(splits["validation"]) == set(languages) and splits["udhr_test"] == {}


@pytest.mark.integration
def test_the_split_does_not_depend_on_the_process():
    """Another hash seed, and so another order of sets, gives the same split."""
    program = (
        "from data.translation.holdout import hold_out; import random; r = random.Random(0);"
        "keys = [' '.join(r.choices('abcdefghijklmnop', k=6)) for _ in range(200)];"
        "pairs = [(l, k) for k in keys for l in 'abcdefgh' if r.random() < .6];"
        "s = hold_out(pairs, test=5, validation=3, share=.1);"
        "print(sorted(s.test), sorted(s.validation), sorted(s.purged))"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in "123"
    }
    assert len(outputs) == 1 and len(outputs.pop()) > 100
