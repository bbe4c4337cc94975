"""GShard M4's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar

from models.parts.moe.config import MoeConfig
from models.parts.transformer_config import check_dropout


@dataclasses.dataclass(frozen=True, kw_only=True)
class GShardM4Config:
    """Mixture-of-experts encoder-decoder for translation (GShard, arXiv 2006.16668, section 3 and appendix A.2).

    The defaults are what all models of the paper's Table 1 share. Where the paper is silent, the source is named.

    Attributes:
      moe: the mixture of experts of every second layer; None makes the model dense.
      layers: encoder plus decoder layers, half each (the L of MoE(2048E, 36L)); every second feed-forward layer is an MoE layer.
      label_smoothing: Lingvo's 0.1; not in the paper.
      dropout: on embeddings, sub-layer outputs and attention probabilities (A.2); inside experts none (Lingvo).
    """

    family: ClassVar[str] = "gshard_m4"
    vocabularies: ClassVar[dict[str, str]] = {"source_vocabulary": "source_vocab", "target_vocabulary": "target_vocab"}

    moe: MoeConfig | None = None
    source_vocab: int = 64_000
    target_vocab: int = 32_000
    layers: int = 12
    model_dim: int = 1024
    hidden_dim: int = 8192
    heads: int = 16
    head_dim: int = 128
    label_smoothing: float = 0.1
    dropout: float = 0.1

    def __post_init__(self) -> None:
        per_block = 4 if self.moe else 2
        if self.layers % per_block:
            below, above = self.layers // per_block * per_block, -(-self.layers // per_block) * per_block
            raise ValueError(
                f"layers={self.layers}: must be a multiple of {per_block} (half encoder, half decoder"
                f"{', every second an MoE layer' if self.moe else ''}); nearest are {below} and {above}"
            )
        check_dropout(self.dropout)

    @property
    def blocks(self) -> int:
        """Repeated units of the encoder, and as many of the decoder: a dense and an MoE layer, or one dense layer."""
        return self.layers // (4 if self.moe else 2)

    def tiny(self) -> "GShardM4Config":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        return dataclasses.replace(
            self,
            source_vocab=64,
            target_vocab=64,
            layers=4,
            model_dim=16,
            hidden_dim=32,
            heads=4,
            head_dim=8,
            moe=self.moe and dataclasses.replace(self.moe, experts=8, group_size=32),
            dropout=0.1,
        )


CONFIG = GShardM4Config
