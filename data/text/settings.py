"""Settings of prepared caches of plain text, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
    """Settings of a cache of plain text.

    Attributes:
      corpus: a key of `data.text.sources.CORPORA`, or of PUBLIC there.
      tokenizer: a released vocabulary, a key of `data.packages.weights.VOCABULARIES`; or "bpe_8192": byte-level BPE of 8192
        ids, trained on the corpus' training split.
      length: tokens L of a packed row.
      pairs: the most pairs of segments in a row, for next-sentence prediction (`data.text.pairs`); 0 for plain text.
    """

    kind: ClassVar[str] = "text"

    corpus: str
    tokenizer: str
    length: int
    pairs: int = 0


ENTRIES = {
    "gpt_small": Text(corpus="english_small", tokenizer="bpe_8192", length=256),
    "gpt_english": Text(corpus="english_debian", tokenizer="gpt2", length=1024),
    "smollm_english": Text(corpus="english_debian", tokenizer="smollm2_135m", length=1024),
    "bert_small": Text(corpus="english_small", tokenizer="minilm_l6", length=128),
    "bert_small_pairs": Text(corpus="english_small", tokenizer="minilm_l6", length=128, pairs=8),
    "t5_small": Text(corpus="english_small", tokenizer="bpe_8192", length=70),
    "bert_english": Text(corpus="english_debian", tokenizer="minilm_l6", length=512),
    # Public sets, which TFDS must have prepared.
    "c4_1024": Text(corpus="c4_en", tokenizer="gpt2", length=1024),
    "c4_2048": Text(corpus="c4_en", tokenizer="gpt2", length=2048),
    "c4_t5_568": Text(corpus="c4_en", tokenizer="bpe_32000", length=568),
    "mc4_de_1024": Text(corpus="mc4_de", tokenizer="bpe_32000", length=1024),
    "wikipedia_512": Text(corpus="wikipedia_en", tokenizer="minilm_l6", length=512),
}
