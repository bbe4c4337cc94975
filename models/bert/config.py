"""BERT's sizes and heads. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar, Literal

from models.parts.transformer_config import Activation, Norm, Order, Positions, TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLm:
    """Predicts masked tokens through the tied embedding (BERT, section 3.1, task 1).

    Attributes:
      transform: a projection, the activation and a norm before the logits, as in BERT's released code.
      next_sentence: also predicts whether the second sentence follows the first (task 2), from the pooled [CLS].
    """

    transform: bool = True
    next_sentence: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification:
    """One of `labels` classes for each example.

    Attributes:
      pooling: "cls" is BERT's pooler, tanh(x[CLS] W + b); "mean" the mean over an example's tokens, as in
        Sentence-BERT (Reimers and Gurevych 2019), without a pooler.
    """

    labels: int
    pooling: Literal["cls", "mean"] = "cls"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging:
    """One of `labels` classes for each word, at its first piece."""

    labels: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """Start and end of an answer in the text; [CLS] where there is none (BERT, section 4.2)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceEmbedding:
    """A unit vector for each example, the mean of its tokens', trained so that pairs are nearer than strangers.

    Attributes:
      temperature: divides cosine similarities in the contrastive loss over the pairs of a batch.
    """

    temperature: float = 0.05


Head = MaskedLm | Classification | Tagging | Span | SentenceEmbedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(TransformerConfig):
    """A bidirectional encoder with one head (BERT, arXiv 1810.04805). The defaults are the paper's.

    Attributes:
      types: token types (sentence A and B); 0 has none.
      embedding_norm: norm and dropout on the sum of the embeddings.
      head: what the encoder's output is used for; its parameters are the component "head".
    """

    family: ClassVar[str] = "bert"

    positions: Positions = "learned"
    max_positions: int = 512
    norm: Norm = "layer"
    norm_bias: bool = True
    norm_eps: float = 1e-12
    order: Order = "post"
    activation: Activation = "gelu"
    attention_bias: bool = True
    ffn_bias: bool = True
    softmax_bias: bool = True
    dropout: float = 0.1
    types: int = 2
    embedding_norm: bool = True
    head: Head = MaskedLm()

    @property
    def labels(self) -> int:
        """Classes of the head; 0 where it has none of its own."""
        return getattr(self.head, "labels", 0)

    def tiny(self) -> "BertConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        head = dataclasses.replace(self.head, labels=4) if self.labels else self.head
        return dataclasses.replace(self, **self.shrunk(), head=head)


CONFIG = BertConfig
