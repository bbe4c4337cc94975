"""Whisper's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar

from models.parts.transformer_config import Activation, EncoderDecoderConfig, Norm, Positions


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhisperConfig(EncoderDecoderConfig):
    """Speech into text (Whisper, arXiv 2212.04356): an encoder of log-mel frames, and a decoder. configs/whisper.py has the rows.

    Attributes:
      vocab: ids of the one embedding table, whose transpose makes the output logits.
      mels: bands of a frame.
      source_positions: rows of the encoder's table of positions, sinusoids at first; a position is two frames.
      max_positions: rows of the decoder's learned table.
    """

    family: ClassVar[str] = "whisper"
    vocabularies: ClassVar[dict[str, str]] = {"vocabulary": "vocab"}

    vocab: int
    mels: int = 80
    source_positions: int = 1500
    max_positions: int = 448
    positions: Positions = "none"  # inside layers; the tables are the model's
    norm: Norm = "layer"
    norm_bias: bool = True
    norm_eps: float = 1e-5
    activation: Activation = "gelu"
    attention_bias: bool = True
    key_bias: bool = False
    ffn_bias: bool = True
    start_id: int = 50_258

    @property
    def frame_width(self) -> int:
        """The numbers of a frame."""
        return self.mels

    @property
    def most_frames(self) -> int:
        """The most frames of an utterance."""
        return 2 * self.source_positions

    def tiny(self) -> "WhisperConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        small = dict(vocab=64, head_dim=4, mels=min(self.mels, 16), source_positions=64, max_positions=32, start_id=1)
        return dataclasses.replace(self, **self.shrunk() | small)


CONFIG = WhisperConfig
