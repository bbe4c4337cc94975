"""Settings of the heads of models/parts/heads.py. No JAX here: configs are plain data."""

import dataclasses
from typing import Literal

from models.parts.numbers import check_literals


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLm:
    """Predicts masked tokens through the tied embedding (BERT, section 3.1, task 1).

    Attributes:
      transform: a projection, the activation and a norm before the logits, as in BERT's released code; it has biases where
        feed-forward layers and norms do.
      next_sentence: also predicts whether the second sentence follows the first (task 2), from the pooled [CLS].
    """

    transform: bool = True
    next_sentence: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification:
    """One of `labels` classes for each example.

    Attributes:
      labels: the number of classes.
      pooling: "cls" is the vector of [CLS]; "mean" the mean over an example's tokens, as in Sentence-BERT (Reimers and Gurevych
        2019).
      pooler: the activation of BERT's pooler, act(x[CLS] W + b); DistilBERT's is "relu", ELECTRA's "gelu". The mean has none.
      transform: that of `MaskedLm` in the pooler's place (ModernBERT).
    """

    labels: int
    pooling: Literal["cls", "mean"] = "cls"
    pooler: Literal["tanh", "relu", "gelu"] = "tanh"
    transform: bool = False

    @property
    def pooled(self) -> bool:
        """Returns whether there is a pooler."""
        return self.pooling == "cls" and not self.transform


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging:
    """One of `labels` classes for each word, at its first piece.

    Attributes:
      labels: the number of classes.
      transform: that of `MaskedLm` before the classes (ModernBERT).
    """

    labels: int
    transform: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Detection:
    """Tells for each token whether it is another than the text's, put there by a generator (ELECTRA, arXiv 2003.10555, section
    3.1): one logit, of act(x W + b), the transform of `MaskedLm` without its norm."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """Start and end of an answer in the text; [CLS] where there is none (BERT, section 4.2).

    Attributes:
      transform: that of `MaskedLm` before the logits (ModernBERT).
    """

    transform: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceEmbedding:
    """A unit vector for each example, made of its tokens', trained so that pairs are nearer than strangers.

    Attributes:
      vector: what it is made of: the "mean" of the example's tokens, or its "first" ([CLS]) or "last" one.
      temperature: divides cosine similarities in the contrastive loss over the pairs of a batch.
    """

    vector: Literal["mean", "first", "last"] = "mean"
    temperature: float = 0.05

    def __post_init__(self) -> None:
        check_literals(self)


Head = MaskedLm | Classification | Tagging | Detection | Span | SentenceEmbedding
