"""Packed rows of running text. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar

from data.features import Features, positions, slots


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextData:
    """Packed rows of running text, for causal language models.

    Attributes:
      cache: name of the prepared cache; "" is random tokens, see TranslationData.
      batch_size: rows of a global batch.
      length: tokens of a row; must be the cache's.
      temperature: sources of text are drawn in proportion to n^(1/T), n being a source's examples; 1 is in proportion to n.
      seed: seed of the order of rows.
    """

    kind: ClassVar[str] = "text"
    benchmark: ClassVar[str] = "gpt3"  # the benchmark that measures runs (trainers/measure/mlperf_rules.py)

    cache: str = ""
    batch_size: int
    length: int
    temperature: float = 1.0
    seed: int = 0

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores them, in that order."""
        return positions(self.length, "tokens", "segments", "positions")

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it."""
        return self.stored()

    def tiny(self) -> "TextData":
        """Returns a configuration of random tokens whose batches run in seconds."""
        return dataclasses.replace(self, cache="", batch_size=16, length=16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedTextData(TextData):
    """The same rows with tokens masked anew every time they come (RoBERTa's dynamic masking; BERT, section 3.1).

    Attributes:
      rate: share of tokens to predict; 80 % of them are masked, 10 % replaced at random, 10 % left.
      whole_word: masks all pieces of a word or none.
      pairs: the most sentence pairs of a row in a cache for next-sentence prediction; 0 for plain text.
    """

    benchmark: ClassVar[str] = "bert"  # the benchmark that measures runs (trainers/measure/mlperf_rules.py)

    rate: float = 0.15
    whole_word: bool = False
    pairs: int = 0

    @property
    def predictions(self) -> int:
        """Returns the most tokens to predict in a row."""
        return max(1, int(self.rate * self.length))

    def stored(self) -> Features:
        if not self.pairs:
            return super().stored()
        pairs = {"pair_slots": slots(self.pairs), "pair_targets": slots(self.pairs, fill=-1)}
        return super().stored() | positions(self.length, "types") | pairs

    def features(self) -> Features:
        return self.stored() | {"slots": slots(self.predictions), "targets": slots(self.predictions, fill=-1)}

    def tiny(self) -> "MaskedTextData":
        return dataclasses.replace(self, cache="", batch_size=16, length=16, pairs=min(self.pairs, 2))


CONFIGS = (TextData, MaskedTextData)
EVALS = ()
