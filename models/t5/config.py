"""T5's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import Any, ClassVar

from models.parts.attention.config import RelativeBuckets
from models.parts.nested import changed
from models.parts.transformer_config import EncoderDecoderConfig, WithoutTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Config(EncoderDecoderConfig):
    """Text-to-text encoder-decoder: T5 (arXiv 1910.10683), T5 1.1, mT5 (arXiv 2010.11934), ByT5 (arXiv 2105.13626), UL2 (arXiv
    2205.05131), and with a mixture of experts Switch Transformer (arXiv 2101.03961). configs/t5.py and configs/switch.py have
    published rows.

    Attributes:
      vocab: ids of the one embedding table, and classes of the output logits.
      tied: output logits are products with the embedding table (T5 1.0); otherwise with a matrix of their own (T5 1.1, mT5).
      scale_logits: scales the decoder's output by 1 / sqrt(M) before, as T5 1.0 does.
    """

    family: ClassVar[str] = "t5"
    vocabularies: ClassVar[dict[str, str]] = dict.fromkeys(("vocabulary", "source_vocabulary", "target_vocabulary"), "vocab")

    vocab: int = 32_128
    positions: WithoutTable = RelativeBuckets(shared=True)
    tied: bool = True
    scale_logits: bool = True

    def tiny(self) -> "T5Config":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        small: dict[str, Any] = {"vocab": 64, "feed_forward.dropout": 0.1, "decoder.source_dropout": 0.1}
        if isinstance(self.positions, RelativeBuckets):
            small |= {"positions.buckets": 8, "positions.max_distance": 16}
        return changed(self, self.shrunk() | small)


CONFIG = T5Config
