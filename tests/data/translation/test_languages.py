"""A language's names in released vocabularies."""

import pytest

from data.translation.languages import named_among, short_codes

NLLB = {"ace_Arab", "ace_Latn", "deu_Latn", "eng_Latn", "por_Latn", "nob_Latn", "tgl_Latn", "zho_Hans", "zho_Hant"}
M2M100 = {"de", "en", "no", "tl", "zh"}


@pytest.mark.parametrize(
    ("language", "nllb", "m2m100"),
    [
        ("de", "deu_Latn", "de"),
        ("deu", "deu_Latn", None),
        ("deu_Latn", "deu_Latn", None),
        ("pt_BR", "por_Latn", None),
        ("zh-Hant", "zho_Hant", "zh"),
        ("zh", "zho_Hans", "zh"),
        ("nb", "nob_Latn", "no"),
        ("fil", "tgl_Latn", "tl"),
        ("ace", None, None),  # in two scripts: which one is not guessed
        ("br", None, None),
    ],
)
def test_a_language_is_found_by_its_short_code(language, nllb, m2m100):
    """The vocabulary's own code, a catalogue's, or the first part of one that has no like."""
    assert (named_among(language, NLLB), named_among(language, M2M100)) == (nllb, m2m100)


def test_short_codes_are_those_of_known_languages():
    assert short_codes({"deu_Latn", "zh"}) == {"de": "deu_Latn", "zh-Hans": "zh", "zh-Hant": "zh"}
