"""Language codes: catalogues' spellings of a language become one code, which has other names in NLLB and M2M-100."""

import functools
import re
from collections.abc import Iterable, Mapping

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


# FLORES-200's codes, which NLLB uses (arXiv 2207.04672, Table 1), of languages whose own code is no part of them.
# fmt: off
_FLORES = {
    "af": "afr_Latn", "ak": "aka_Latn", "am": "amh_Ethi", "ar": "arb_Arab", "as": "asm_Beng", "ay": "ayr_Latn",
    "az": "azj_Latn", "ba": "bak_Cyrl", "be": "bel_Cyrl", "bg": "bul_Cyrl", "bm": "bam_Latn", "bn": "ben_Beng",
    "bo": "bod_Tibt", "bs": "bos_Latn", "ca": "cat_Latn", "cs": "ces_Latn", "cy": "cym_Latn", "da": "dan_Latn",
    "de": "deu_Latn", "dz": "dzo_Tibt", "ee": "ewe_Latn", "el": "ell_Grek", "en": "eng_Latn", "eo": "epo_Latn",
    "es": "spa_Latn", "et": "est_Latn", "eu": "eus_Latn", "fa": "pes_Arab", "ff": "fuv_Latn", "fi": "fin_Latn",
    "fil": "tgl_Latn", "fj": "fij_Latn", "fo": "fao_Latn", "fr": "fra_Latn", "ga": "gle_Latn", "gd": "gla_Latn",
    "gl": "glg_Latn", "gn": "grn_Latn", "gu": "guj_Gujr", "ha": "hau_Latn", "he": "heb_Hebr", "hi": "hin_Deva",
    "hr": "hrv_Latn", "ht": "hat_Latn", "hu": "hun_Latn", "hy": "hye_Armn", "id": "ind_Latn", "ig": "ibo_Latn",
    "is": "isl_Latn", "it": "ita_Latn", "ja": "jpn_Jpan", "jv": "jav_Latn", "ka": "kat_Geor", "kg": "kon_Latn",
    "ki": "kik_Latn", "kk": "kaz_Cyrl", "km": "khm_Khmr", "kn": "kan_Knda", "ko": "kor_Hang", "ku": "kmr_Latn",
    "ky": "kir_Cyrl", "lb": "ltz_Latn", "lg": "lug_Latn", "li": "lim_Latn", "ln": "lin_Latn", "lo": "lao_Laoo",
    "lt": "lit_Latn", "lv": "lvs_Latn", "mg": "plt_Latn", "mi": "mri_Latn", "mk": "mkd_Cyrl", "ml": "mal_Mlym",
    "mn": "khk_Cyrl", "mr": "mar_Deva", "ms": "zsm_Latn", "mt": "mlt_Latn", "my": "mya_Mymr", "nb": "nob_Latn",
    "ne": "npi_Deva", "nl": "nld_Latn", "nn": "nno_Latn", "ny": "nya_Latn", "oc": "oci_Latn", "om": "gaz_Latn",
    "or": "ory_Orya", "pa": "pan_Guru", "pl": "pol_Latn", "ps": "pbt_Arab", "pt": "por_Latn", "qu": "quy_Latn",
    "rn": "run_Latn", "ro": "ron_Latn", "ru": "rus_Cyrl", "rw": "kin_Latn", "sa": "san_Deva", "sc": "srd_Latn",
    "sd": "snd_Arab", "sg": "sag_Latn", "si": "sin_Sinh", "sk": "slk_Latn", "sl": "slv_Latn", "sm": "smo_Latn",
    "sn": "sna_Latn", "so": "som_Latn", "sq": "als_Latn", "sr": "srp_Cyrl", "ss": "ssw_Latn", "st": "sot_Latn",
    "su": "sun_Latn", "sv": "swe_Latn", "sw": "swh_Latn", "ta": "tam_Taml", "te": "tel_Telu", "tg": "tgk_Cyrl",
    "th": "tha_Thai", "ti": "tir_Ethi", "tk": "tuk_Latn", "tn": "tsn_Latn", "tr": "tur_Latn", "ts": "tso_Latn",
    "tt": "tat_Cyrl", "tw": "twi_Latn", "ug": "uig_Arab", "uk": "ukr_Cyrl", "ur": "urd_Arab", "uz": "uzn_Latn",
    "vi": "vie_Latn", "wo": "wol_Latn", "xh": "xho_Latn", "yi": "ydd_Hebr", "yo": "yor_Latn", "zh-Hans": "zho_Hans",
    "zh-Hant": "zho_Hant", "zu": "zul_Latn",
}
# fmt: on
_M2M100 = {"zh-Hans": "zh", "zh-Hant": "zh", "nb": "no", "fil": "tl"}  # where M2M-100's code is not ours


@functools.cache
def code_of(name: str) -> str:
    """Returns one code for a language however it is named, as `normalise` does, and "de" of FLORES-200's "deu_Latn"."""
    return next((ours for ours, flores in _FLORES.items() if flores == name), None) or normalise(name)


def is_code(name: str) -> bool:
    """Returns whether a name is a language's code here, in FLORES-200 or in M2M-100, or one with a region: "de", "pt_BR"."""
    known = {*_FLORES, *_M2M100.values()}
    return name in _FLORES.values() or (bool(re.fullmatch(r"[A-Za-z]{2,3}([-_@]\w+)?", name)) and normalise(name) in known)


def named_among(language: str, known: Iterable[str]) -> str | None:
    """Returns the name that a released vocabulary has for a language, as `deu_Latn` for `de`; None if it has none.

    Args:
      language: one of the known codes, a catalogue's code, or an ISO 639-3 code that one known code begins with.
      known: the vocabulary's codes: those of FLORES-200 or of M2M-100.
    """
    known, ours = set(known), normalise(language)
    for name in (language, _FLORES.get(ours), _M2M100.get(ours), ours):
        if name in known:
            return name
    same = [name for name in known if name.partition("_")[0] == language]
    return same[0] if len(same) == 1 else None


def short_codes(known: Iterable[str]) -> Mapping[str, str]:
    """Returns the catalogue's code of each known language that has another one there, as {"de": "deu_Latn"}."""
    known = set(known)
    return {ours: name for table in (_FLORES, _M2M100) for ours, name in table.items() if name in known}
