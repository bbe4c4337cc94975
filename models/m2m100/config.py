"""Sizes of M2M-100, NLLB and BART, and of their kin. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import Any, ClassVar, Literal

from models.errors import UserError
from models.parts.attention.config import Learned, Sinusoidal
from models.parts.nested import changed
from models.parts.numbers import check_literals
from models.parts.transformer_config import DecoderConfig, EncoderDecoderConfig, NormConfig, TokenLoss, WithoutTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """The way from a stack's tokens to its first layer's input.

    Attributes:
      scaled: tokens' vectors are multiplied by sqrt(M).
      sinusoids: whose sinusoidal positions are added, where there is no table of them: "fairseq" counts from 2, after the
        padding's id, with rates from 1 to 1e-4; "paper" counts from 0, with the rates of Vaswani et al. 2017, section 3.5
        (Marian, Pegasus).
      norm: of the sum, one for each stack (BART).
    """

    scaled: bool = True
    sinusoids: Literal["fairseq", "paper"] = "fairseq"
    norm: bool = False

    def __post_init__(self) -> None:
        check_literals(self)


def check_rows(positions: Any, length: int) -> None:
    """Raises UserError for rows of more tokens than a learned table of positions has."""
    if isinstance(positions, Learned) and length > (most := positions.rows - positions.first):
        raise UserError(f"a row of {length} tokens: the table of positions (positions.rows={positions.rows}) has {most}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class M2M100Config(EncoderDecoderConfig):
    """An encoder-decoder over one table of tokens. The defaults are those of many-to-many translation: M2M-100 (arXiv
    2010.11125), NLLB-200 (arXiv 2207.04672), and with a mixture of experts in every fourth layer NLLB-MoE. configs/m2m100.py and
    configs/nllb.py have the released rows. Fields make it BART (arXiv 1910.13461), mBART (arXiv 2001.08210), Marian (arXiv
    1804.00344) or Pegasus (arXiv 1912.08777).

    Attributes:
      vocab: ids of the one embedding table, whose transpose makes the output logits.
      positions: a learned table is one for each stack.
      inputs: the way from each stack's tokens to its first layer's input.
      logits_bias: adds a bias of each token to the output logits.
    """

    family: ClassVar[str] = "m2m100"
    vocabularies: ClassVar[dict[str, str]] = dict.fromkeys(("vocabulary", "source_vocabulary", "target_vocabulary"), "vocab")

    vocab: int
    positions: Learned | WithoutTable = Sinusoidal()
    norm: NormConfig = NormConfig(kind="layer", bias=True, eps=1e-5)
    decoder: DecoderConfig = DecoderConfig(start_id=2)
    loss: TokenLoss = TokenLoss(label_smoothing=0.1)
    dropout: float = 0.1
    inputs: Inputs = Inputs()
    logits_bias: bool = False

    def check_length(self, length: int) -> None:
        """Raises UserError for rows that are longer than a learned table of positions reaches."""
        check_rows(self.positions, length)

    def tiny(self) -> "M2M100Config":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        small = self.shrunk() | {"vocab": 64, "attention.head_dim": 4}
        if isinstance(self.positions, Learned):
            small["positions.rows"] = min(self.positions.rows, 64) + self.positions.first
        return changed(self, small)


CONFIG = M2M100Config
