"""The real permissive catalogues: what they hold, and that their split does not leak."""

from collections import Counter

import pytest

from data.translation import catalogues, corpus, holdout
from data.translation.catalogues import Pair
from data.translation.holdout import english_key, ngrams
from data.translation.sources import CATALOGUES
from tests.helpers.archives import fetched
from tests.helpers.catalogues import PERMISSIVE

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def real_pairs() -> list[Pair]:
    return catalogues.read(PERMISSIVE.sources, fetched(*PERMISSIVE.packages))


def test_the_real_permissive_set(real_pairs):
    """The three real wheels give the languages, pairs and English strings that they were measured to hold."""
    assert len(real_pairs) == 131_960
    assert len({pair.english for pair in real_pairs}) == 3_204
    sizes = Counter(pair.language for pair in real_pairs)
    assert len(sizes) == 96 and sum(size >= 300 for size in sizes.values()) == 87


def test_the_real_split_does_not_leak(real_pairs):
    """No training string is a held-out one or a near copy of one, in any language.

    The target is English in every language, so this is what keeps a held-out target from being trained on through
    another language. Checked here the plain way, without the index that `near_copies` uses.
    """
    splits = corpus.divide_pairs(PERMISSIVE, real_pairs)
    keys = {
        name: {english_key(pair.english) for pairs in languages.values() for pair in pairs} for name, languages in splits.items()
    }
    assert keys["test"] and keys["validation"] and not keys["test"] & keys["validation"]
    held_out = keys["test"] | keys["validation"]
    assert not keys["train"] & held_out
    trained = [(key, ngrams(key)) for key in keys["train"]]
    for held in held_out:
        grams = ngrams(held)
        leaks = [key for key, its_grams in trained if 2 * len(grams & its_grams) >= len(grams)]
        assert not leaks, f"{held!r} is nearly in training: {leaks[0]!r}"
    for test in keys["test"]:
        assert not holdout.near_copies(keys["validation"], [test])
    sources = {name: {(p.language, p.source) for some in of.values() for p in some} for name, of in splits.items()}
    assert not sources["train"] & (sources["test"] | sources["validation"])


def test_the_real_split_covers_the_languages(real_pairs):
    """Nine tenths of the pairs are trained on; a language of 800 pairs is tested with 38 or more, 14 in validation.

    The catalogue asks for 40 and 15; a few are dropped afterwards, because their source string is in training.
    """
    splits = corpus.divide_pairs(PERMISSIVE, real_pairs)
    sizes = Counter(pair.language for pair in real_pairs)
    assert sum(map(len, splits["train"].values())) >= 0.9 * len(real_pairs)
    assert set(splits["train"]) == set(sizes)
    for language in (language for language, size in sizes.items() if size >= 800):
        assert len(splits["test"][language]) >= 38 and len(splits["validation"][language]) >= 14, language


@pytest.mark.slow
def test_the_real_set_of_two_languages():
    """Home Assistant's and OpenStack's catalogues bring most of the English strings; none of the held-out ones is trained on in
    either language, and every held-out one has both."""
    two = CATALOGUES["m4_iberian"]
    splits = corpus.divide(two, fetched(*two.packages))
    english = {name: {pair.english for some in of.values() for pair in some} for name, of in splits.items()}
    assert splits["train"].keys() == splits["test"].keys() == {"es", "pt"}
    assert len(english["train"]) > 27_000 and all(len(some) > 28_000 for some in splits["train"].values())
    assert all(len(some) >= 280 for some in splits["test"].values())
    keys = {name: set(map(english_key, texts)) for name, texts in english.items()}
    assert not keys["train"] & (keys["test"] | keys["validation"]) and not keys["test"] & keys["validation"]
    assert not holdout.near_copies(keys["train"], keys["test"])
