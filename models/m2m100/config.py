"""M2M-100's and NLLB's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar

from models.parts.attention.config import Sinusoidal
from models.parts.nested import changed
from models.parts.transformer_config import DecoderConfig, EncoderDecoderConfig, NormConfig, TokenLoss, WithoutTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class M2M100Config(EncoderDecoderConfig):
    """Many-to-many translation: M2M-100 (arXiv 2010.11125), NLLB-200 (arXiv 2207.04672), and with a mixture of experts in every
    fourth layer NLLB-MoE. configs/m2m100.py and configs/nllb.py have the released rows.

    Attributes:
      vocab: ids of the one embedding table, whose transpose makes the output logits.
    """

    family: ClassVar[str] = "m2m100"
    vocabularies: ClassVar[dict[str, str]] = dict.fromkeys(("source_vocabulary", "target_vocabulary"), "vocab")

    vocab: int
    positions: WithoutTable = Sinusoidal()
    norm: NormConfig = NormConfig(kind="layer", bias=True, eps=1e-5)
    decoder: DecoderConfig = DecoderConfig(start_id=2)
    loss: TokenLoss = TokenLoss(label_smoothing=0.1)
    dropout: float = 0.1

    def tiny(self) -> "M2M100Config":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        return changed(self, self.shrunk() | {"vocab": 64, "attention.head_dim": 4})


CONFIG = M2M100Config
