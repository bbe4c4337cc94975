"""Whisper's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar

from models.parts.attention.config import Learned
from models.parts.nested import changed
from models.parts.transformer_config import DecoderConfig, EncoderDecoderConfig, NormConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhisperConfig(EncoderDecoderConfig):
    """Speech into text (Whisper, arXiv 2212.04356): an encoder of log-mel frames, and a decoder. configs/whisper.py has the rows.

    Attributes:
      vocab: ids of the one embedding table, whose transpose makes the output logits.
      mels: bands of a frame.
      source_positions: rows of the encoder's table of positions, sinusoids at first; a position is two frames.
      positions: the decoder's table.
    """

    family: ClassVar[str] = "whisper"
    vocabularies: ClassVar[dict[str, str]] = {"vocabulary": "vocab"}

    vocab: int
    mels: int = 80
    source_positions: int = 1500
    positions: Learned = Learned(rows=448)
    norm: NormConfig = NormConfig(kind="layer", bias=True, eps=1e-5)
    decoder: DecoderConfig = DecoderConfig(start_id=50_258)

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
        small = {"vocab": 64, "attention.head_dim": 4, "mels": min(self.mels, 16), "source_positions": 64}
        return changed(self, self.shrunk() | small | {"positions.rows": 32, "decoder.start_id": 1})


CONFIG = WhisperConfig
