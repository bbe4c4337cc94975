"""GPT's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar

from models.parts.transformer_config import LmConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptConfig(LmConfig):
    """A decoder that predicts the next token. configs/gpt.py has the published rows: GPT-2 and 3, GSPMD's, Megatron's,
    PaLM, MaxText's and LLaMA's shape, all of them settings of the inherited fields.
    """

    family: ClassVar[str] = "gpt"

    def tiny(self) -> "GptConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        return dataclasses.replace(self, **self.shrunk())


CONFIG = GptConfig
