"""BERT's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar

from models.parts.attention.config import Disentangled, Learned, LearnedAndBuckets, RelativeBuckets, Rotary, Sinusoidal
from models.parts.heads_config import Head, MaskedLm
from models.parts.numbers import check_least, nearest_divisor
from models.parts.transformer_config import LmConfig, NormConfig, Output


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertEmbedding:
    """The sum of the embeddings, and ALBERT's two savings of parameters (arXiv 1909.11942, section 3.1): the second is of layers.

    Attributes:
      types: token types (sentence A and B); 0 has none, and one is that of all tokens.
      norm: norm and dropout on the sum.
      size: dimensions of the vectors; 0 means the model's. Of another size than the model's, what is left of them after the norm
        is projected to it (ALBERT; ELECTRA, arXiv 2003.10555).
      distinct: how many layers have parameters of their own; each of these is run layers / distinct times before the next one
        (ALBERT: 1). 0 is all.
    """

    types: int = 2
    norm: bool = True
    size: int = 0
    distinct: int = 0

    def __post_init__(self) -> None:
        check_least(self, 0, "types", "size", "distinct")


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

    positions: Learned | LearnedAndBuckets | Disentangled | Rotary | RelativeBuckets | Sinusoidal | None = Learned(rows=512)
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
        if isinstance(self.head, MaskedLm) and not self.head.transform and self.embedding_dim != self.model_dim:
            raise ValueError(
                f"head.transform=False: logits are of {self.embedding_dim} dimensions, of which nothing makes embedding.size="
                f"{self.embedding.size}; nearest is True"
            )
        distinct = self.embedding.distinct
        if distinct and self.layers % distinct:
            best = nearest_divisor(self.layers, distinct)
            raise ValueError(f"embedding.distinct={distinct}: must divide layers={self.layers}; nearest is {best}")
        if distinct and (self.bare_first or len(self.attention.pattern) > 1):
            raise ValueError(f"embedding.distinct={distinct}: layers that differ share no parameters; nearest is 0")

    sized_by_data: ClassVar[dict[str, str]] = LmConfig.sized_by_data | {"labels": "head.labels"}

    @property
    def embedding_dim(self) -> int:
        """Dimensions of the vectors of tokens, positions and types."""
        return self.embedding.size or self.model_dim

    @property
    def stacked(self) -> int:
        """The number of layers of the stack that have parameters of their own."""
        return self.embedding.distinct or self.layers - self.bare_first

    @property
    def repeats(self) -> int:
        """The number of times that each layer of the stack is run before the next one."""
        return self.layers // self.embedding.distinct if self.embedding.distinct else 1

    @property
    def labels(self) -> int:
        """Classes of the head; 0 where it has none of its own."""
        return getattr(self.head, "labels", 0)

    def tiny(self) -> "BertConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        head = dataclasses.replace(self.head, labels=4) if self.labels else self.head
        small = self.shrunk()
        small["layers"] += self.bare_first
        if isinstance(p := self.positions, Disentangled):
            small["positions"] = dataclasses.replace(p, buckets=min(p.buckets, 6), max_distance=min(p.max_distance, 16))
        e = self.embedding
        small["embedding"] = dataclasses.replace(e, size=min(e.size, 8), distinct=min(e.distinct, 1))
        return dataclasses.replace(self, **small, head=head)


CONFIG = BertConfig
