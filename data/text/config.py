"""Packed rows of running text. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar, Literal

from data.config import DataConfig
from data.features import Features, positions, sides, slots
from data.text import spans


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextData(DataConfig):
    """Packed rows of running text, for causal language models.

    Attributes:
      length: tokens of a row; must be the cache's.
      temperature: sources of text are drawn in proportion to n^(1/T), n being a source's examples; 1 is in proportion to n.
    """

    kind: ClassVar[str] = "text"
    benchmark: ClassVar[str] = "gpt3"

    length: int
    temperature: float = 1.0

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores them, in that order."""
        return positions(self.length, "tokens", "segments", "positions")

    def tiny(self) -> "TextData":
        """Returns a configuration of random tokens whose batches run in seconds."""
        return dataclasses.replace(self, cache="", batch_size=16, length=16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightedTextData(TextData):
    """The same rows with a loss weight for each token: 0 for what is given, such as a prompt."""

    benchmark: ClassVar[str] = "throughput"

    def stored(self) -> Features:
        return super().stored() | positions(self.length, "loss_weights")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedTextData(TextData):
    """The same rows with tokens masked anew every time they come (RoBERTa's dynamic masking; BERT, section 3.1).

    Attributes:
      rate: share of tokens to predict; 80 % of them are masked, 10 % replaced at random, 10 % left.
      whole_word: masks all pieces of a word or none.
      pairs: the most sentence pairs of a row in a cache for next-sentence prediction; 0 for plain text.
    """

    benchmark: ClassVar[str] = "bert"

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanTextData(TextData):
    """The same rows as inputs and targets of an encoder-decoder, made anew every time they come (data/text/spans.py).

    Attributes:
      objective: "spans" is span corruption (T5, arXiv 1910.10683, section 3.1.4), "prefix" continues a beginning of random length
        (section 3.2.3), to which T5 is adapted before it is prompted.
      rate: share of tokens in the spans that are taken out.
      mean_span: their mean length.
      sentinels: how many ids after the cache's vocabulary stand for spans; the model's vocabulary has at least so many more.
      multiple: lengths of inputs and targets are rounded up to a multiple of this, with padding.
    """

    benchmark: ClassVar[str] = "throughput"

    objective: Literal["spans", "prefix"] = "spans"
    rate: float = 0.15
    mean_span: float = 3.0
    sentinels: int = 100
    multiple: int = 1

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ValueError(f"length={self.length}: must be 2 or more")
        if not 0 < self.rate < 1:
            raise ValueError(f"rate={self.rate}: must be between 0 and 1; T5's is 0.15")
        if self.mean_span < 1:
            raise ValueError(f"mean_span={self.mean_span}: must be 1 or more; T5's is 3")

    @property
    def lengths(self) -> dict[str, int]:
        """The positions of a row of inputs and of targets."""
        both = spans.lengths(self.length, self.rate, self.mean_span)
        both = both if self.objective == "spans" else (self.length, self.length)
        return {name: -(-n // self.multiple) * self.multiple for name, n in zip(("inputs", "targets"), both, strict=True)}

    def features(self) -> Features:
        return sides(**self.lengths)

    def tiny(self) -> "SpanTextData":
        return dataclasses.replace(self, cache="", batch_size=16, length=16, sentinels=8, multiple=16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SummaryData(WeightedTextData):
    """Full rows of reports, each with its summary behind it (data/text/summaries.py): all of it is learned, and held-out ones are
    scored by their summaries alone."""


CONFIGS = (TextData, MaskedTextData, SpanTextData, SummaryData)
EVALS = ()
