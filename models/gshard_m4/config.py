"""GShard M4's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar

from models.parts.attention.config import GroupedQuery, Sinusoidal
from models.parts.transformer_config import Dense, EncoderDecoderConfig, TokenLoss, WithoutTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class GShardM4Config(EncoderDecoderConfig):
    """Mixture-of-experts encoder-decoder for translation (GShard, arXiv 2006.16668, section 3 and appendix A.2).

    The defaults are what all models of the paper's Table 1 share. Where the paper is silent, the source is named.

    Attributes:
      source_vocab, target_vocab: ids of the two sides' token embeddings; the second also classes of the output logits.
      layers: encoder plus decoder layers, half each (the L of MoE(2048E, 36L)).
      loss: Lingvo's label smoothing of 0.1 is not in the paper.
      dropout: on embeddings, sub-layer outputs and attention probabilities (A.2); inside experts none (Lingvo).
    """

    family: ClassVar[str] = "gshard_m4"
    vocabularies: ClassVar[dict[str, str]] = {"source_vocabulary": "source_vocab", "target_vocabulary": "target_vocab"}

    source_vocab: int = 64_000
    target_vocab: int = 32_000
    layers: int = 12
    model_dim: int = 1024
    attention: GroupedQuery = GroupedQuery(heads=16, head_dim=128)
    feed_forward: Dense = Dense(hidden_dim=8192)
    positions: WithoutTable = Sinusoidal()
    loss: TokenLoss = TokenLoss(label_smoothing=0.1)
    dropout: float = 0.1

    def tiny(self) -> "GShardM4Config":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        return dataclasses.replace(self, **self.shrunk() | dict(source_vocab=64, target_vocab=64))


CONFIG = GShardM4Config
