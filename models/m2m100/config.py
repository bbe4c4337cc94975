"""M2M-100's and NLLB's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar

from models.parts.transformer_config import EncoderDecoderConfig, Norm, Positions


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
    positions: Positions = "sinusoidal"
    norm: Norm = "layer"
    norm_bias: bool = True
    norm_eps: float = 1e-5
    attention_bias: bool = True
    ffn_bias: bool = True
    dropout: float = 0.1
    label_smoothing: float = 0.1
    sparse_every: int = 4
    start_id: int = 2

    def tiny(self) -> "M2M100Config":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        return dataclasses.replace(self, **self.shrunk() | dict(vocab=64, head_dim=4))


CONFIG = M2M100Config
