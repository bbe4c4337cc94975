"""GPT's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar

from models.parts.transformer_config import LmConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptConfig(LmConfig):
    """A decoder that predicts the next token. configs/gpt.py has the published rows: GPT-2 and 3, GSPMD's, Megatron's,
    PaLM, MaxText's and LLaMA's shape, all of them settings of the inherited fields.

    Attributes:
      loss_chunks: parts of a row whose logits exist at the same time, each computed again in the backward pass: n parts need an
        n-th of the logits' memory.
    """

    family: ClassVar[str] = "gpt"

    loss_chunks: int = 1

    def tiny(self) -> "GptConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        return dataclasses.replace(self, **self.shrunk())


CONFIG = GptConfig
