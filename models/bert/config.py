"""BERT's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar

from models.parts.heads_config import Head, MaskedLm
from models.parts.transformer_config import Activation, LmConfig, Norm, Order, Positions


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(LmConfig):
    """A bidirectional encoder with one head (BERT, arXiv 1810.04805). The defaults are the paper's.

    Attributes:
      types: token types (sentence A and B); 0 has none, and one is that of all tokens.
      first_position: the row of the table of positions that an example's first token has; RoBERTa leaves out the rows up to the
        id of its padding, 1.
      embedding_norm: norm and dropout on the sum of the embeddings.
      bare_first: the first layer has no norm before attention, whose input embeddings are normed already (ModernBERT, arXiv
        2412.13663, section 2.1.1). It stands before the stack of the others, as the component "first".
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
    first_position: int = 0
    embedding_norm: bool = True
    bare_first: bool = False
    head: Head = MaskedLm()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.first_position <= max(self.max_positions - 1, 0):
            raise ValueError(f"first_position={self.first_position}: must be below max_positions={self.max_positions}")
        if self.bare_first and (self.order != "pre" or self.layers < 2):
            raise ValueError(f"bare_first=True: order={self.order!r}, layers={self.layers}: needs order='pre', 2 layers or more")

    labels_field: ClassVar[str] = "head.labels"

    @property
    def labels(self) -> int:
        """Classes of the head; 0 where it has none of its own."""
        return getattr(self.head, "labels", 0)

    def tiny(self) -> "BertConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        head = dataclasses.replace(self.head, labels=4) if self.labels else self.head
        small = self.shrunk()
        small["max_positions"] += self.first_position
        small["layers"] += self.bare_first
        return dataclasses.replace(self, **small, head=head)


CONFIG = BertConfig
