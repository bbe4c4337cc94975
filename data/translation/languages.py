"""Normalises language codes: catalogues' spellings of a language become one code, and scripts are kept apart."""

import re

_ALIASES = {
    "iw": "he",
    "in": "id",
    "no": "nb",
    "tl": "fil",
    "mo": "ro",
    "jp": "ja",
    "cmn": "zh",
    "zhs": "zh",
    "be-tarask": "be",
    "be-x-old": "be",
    "zh-classical": "lzh",
    "zh-min-nan": "nan",
    "zh-yue": "yue",
}
_SCRIPTS = {
    "latn": "Latn",
    "latin": "Latn",
    "ijekavianlatin": "Latn",
    "cyrl": "Cyrl",
    "cyrillic": "Cyrl",
    "arab": "Arab",
    "deva": "Deva",
    "hira": "Hira",
}
# The usual script of a language, which its code omits.
_USUAL_SCRIPT = {"sr": "Cyrl", "hi": "Deva", "mr": "Deva", "ne": "Deva"}
_TRADITIONAL = {"tw", "hk", "mo", "hant"}


def normalise(code: str) -> str:
    """Returns one code for a language as a catalogue names it, e.g. `pt_BR` is `pt`, `sr@latin` is `sr-Latn`.

    Regions are merged into the language; Chinese is always `zh-Hans` or `zh-Hant`. Varieties of English in other
    scripts (Shavian) keep the script, so that only `en` is English.
    """
    code = re.sub(r"\.utf-?8$", "", code.lower()).replace("_", "-").replace("@", "-")
    code = _ALIASES.get(code, code)
    base, *subtags = code.split("-")
    base = _ALIASES.get(base, base)
    if base == "zh":
        return "zh-Hant" if _TRADITIONAL & set(subtags) else "zh-Hans"
    if base == "en":
        return "en-x" if {"shaw", "dsrt"} & set(subtags) else "en"
    script = next((_SCRIPTS[part] for part in subtags if part in _SCRIPTS), None)
    return base if script in (None, _USUAL_SCRIPT.get(base)) else f"{base}-{script}"
