"""BERT's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar

from models.parts.attention.config import Learned, RelativeBuckets, Rotary, Sinusoidal
from models.parts.heads_config import Head, MaskedLm
from models.parts.transformer_config import LmConfig, NormConfig, Output


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertEmbedding:
    """The sum of the embeddings.

    Attributes:
      types: token types (sentence A and B); 0 has none, and one is that of all tokens.
      norm: norm and dropout on the sum.
    """

    types: int = 2
    norm: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(LmConfig):
    """A bidirectional encoder with one head (BERT, arXiv 1810.04805). The defaults are the paper's.

    Attributes:
      embedding: of tokens, beside their table.
      bare_first: the first layer has no norm before attention, whose input embeddings are normed already (ModernBERT, arXiv
        2412.13663, section 2.1.1). It stands before the stack of the others, as the component "first".
      head: what the encoder's output is used for; its parameters are the component "head".
    """

    family: ClassVar[str] = "bert"

    positions: Learned | Rotary | RelativeBuckets | Sinusoidal | None = Learned(rows=512)
    norm: NormConfig = NormConfig(kind="layer", bias=True, eps=1e-12, order="post")
    output: Output = Output(bias=True)
    dropout: float = 0.1
    embedding: BertEmbedding = BertEmbedding()
    bare_first: bool = False
    head: Head = MaskedLm()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output.mtp:
            raise ValueError(f"output.mtp={self.output.mtp}: an encoder has no second prediction head; the nearest is 0")
        if self.output.divisor != 1:
            raise ValueError(f"output.divisor={self.output.divisor}: an encoder's logits are not divided; the nearest is 1")
        if self.bare_first and (self.norm.order != "pre" or self.layers < 2):
            raise ValueError(
                f"bare_first=True: norm.order={self.norm.order!r}, layers={self.layers}: needs order 'pre', 2 layers or more"
            )

    sized_by_data: ClassVar[dict[str, str]] = LmConfig.sized_by_data | {"labels": "head.labels"}

    @property
    def labels(self) -> int:
        """Classes of the head; 0 where it has none of its own."""
        return getattr(self.head, "labels", 0)

    def tiny(self) -> "BertConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        head = dataclasses.replace(self.head, labels=4) if self.labels else self.head
        small = self.shrunk()
        small["layers"] += self.bare_first
        return dataclasses.replace(self, **small, head=head)


CONFIG = BertConfig
