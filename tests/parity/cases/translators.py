"""Translators with vocabularies, and the texts that they translate."""

import dataclasses
from typing import Any

from .encoder_decoders import M2M100


@dataclasses.dataclass(frozen=True)
class Translator:
    """A tokenizer of `transformers` for SentencePiece's pieces, beside a small random model that translates with it.

    Attributes:
      tokenizer: its class.
      directions: languages from which and into which is translated, the tokenizer's names of them.
    """

    tokenizer: str
    settings: dict[str, Any]
    directions: tuple[tuple[str, str], ...]
    version: int = 4


_FLORES = dict(additional_special_tokens=["ace_Arab", "ace_Latn", "deu_Latn", "eng_Latn", "zho_Hans"])
_FROM_AND_TO = (("deu_Latn", "eng_Latn"), ("eng_Latn", "zho_Hans"))
# Version 5 (5.23) keeps a blank at the end of a text for NLLB, which SentencePiece removes.
TRANSLATORS = {
    "translator_nllb": Translator("NllbTokenizerFast", _FLORES, _FROM_AND_TO),
    "translator_nllb_legacy": Translator("NllbTokenizer", _FLORES | dict(legacy_behaviour=True), _FROM_AND_TO),
    "translator_m2m100": Translator("M2M100Tokenizer", {}, (("de", "en"), ("en", "zh")), version=5),
}
ODD_TEXT = "  Naïve ② ﬁne  漢字漢 £ x"
TRANSLATED = (
    "Forgotten your password?",
    "bada felu nomi",
    ODD_TEXT,
    "",
    " a ",
    "ａｂｃ\t1,234.5\n%(name)s",
    "bada felu nomi dagu " * 9,
)
TRANSLATOR_SETTINGS = M2M100 | dict(max_position_embeddings=200)
