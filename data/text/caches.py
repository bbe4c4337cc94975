"""The settings of prepared caches of plain text, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import CacheConfig
from data.own_cache import OwnCache, TrainedCache
from data.reading import tables
from data.reading.tables import columns_of
from data.text import own, summaries


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextCache(CacheConfig):
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTextCache(TrainedCache):
    """Settings of a cache of a user's own text (data/text/own.py).

    Attributes:
      length: tokens L of a packed row.
      pairs: the most pairs of segments in a row, for next-sentence prediction (`data.text.pairs`); 0 for plain text.
    """

    kind: ClassVar[str] = "text"
    made_of: ClassVar[str] = "files of text, .txt or .md, or a table with a column text"

    length: int = 256
    pairs: int = 0
    test: float = 0.05

    @classmethod
    def is_made_of(cls, source: str, columns: str) -> bool:
        """Returns whether a source holds files of text, or a table with a column of texts."""
        return own.is_text(source, columns_of(columns))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SummaryCache(OwnCache):
    """Settings of a cache of a user's reports and summaries (data/text/summaries.py), as SCROLLS has GovReport.

    Attributes:
      length: tokens L of a row.
    """

    kind: ClassVar[str] = "text"
    made_of: ClassVar[str] = "reports and summaries, a table in the form of SCROLLS"

    length: int = 8192
    test: float = 0.05

    @classmethod
    def is_made_of(cls, source: str, columns: str) -> bool:
        """Returns whether a source is a table of reports and summaries."""
        return {*summaries.COLUMNS} <= {*(tables.first(source, columns_of(columns)) or ())}


CACHES = (TextCache, OwnTextCache, SummaryCache)
ENTRIES = {
    "gpt_small": TextCache(corpus="english_small", tokenizer="bpe_8192", length=256),
    "gpt_english": TextCache(corpus="english_debian", tokenizer="gpt2", length=1024),
    "english_2k": TextCache(corpus="english_debian", tokenizer="bpe_2048", length=256),
    "messages_4k": TextCache(corpus="messages", tokenizer="bpe_4096", length=256),
    "smollm_english": TextCache(corpus="english_debian", tokenizer="smollm2_135m", length=1024),
    "bert_small": TextCache(corpus="english_small", tokenizer="minilm_l6", length=128),
    "bert_small_pairs": TextCache(corpus="english_small", tokenizer="minilm_l6", length=128, pairs=8),
    "t5_small": TextCache(corpus="english_small", tokenizer="bpe_8192", length=70),
    "bert_english": TextCache(corpus="english_debian", tokenizer="minilm_l6", length=512),
    # Public sets, which TFDS must have prepared.
    "c4_1024": TextCache(corpus="c4_en", tokenizer="gpt2", length=1024),
    "c4_2048": TextCache(corpus="c4_en", tokenizer="gpt2", length=2048),
    "c4_t5_568": TextCache(corpus="c4_en", tokenizer="bpe_32000", length=568),
    "mc4_de_1024": TextCache(corpus="mc4_de", tokenizer="bpe_32000", length=1024),
    "wikipedia_512": TextCache(corpus="wikipedia_en", tokenizer="minilm_l6", length=512),
}
