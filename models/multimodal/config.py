"""A model of pictures and sounds that writes text. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar, Literal

from models.conformer.config import ConformerConfig
from models.parts.attention.config import Learned
from models.parts.nested import changed
from models.parts.transformer_config import DecoderConfig, EncoderDecoderConfig, NormConfig
from models.vit.config import VitConfig
from models.whisper.config import WhisperConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Towers:
    """The encoders of pictures and sounds.

    Attributes:
      vision: the image tower, without classes; None sees nothing.
      audio: the audio tower, a Conformer or Whisper's encoder, of which only the encoder is made; None hears nothing.
      seam: what maps a tower's output to the decoder's width: "normed" is a projection and a norm, "plain" a projection with
        biases where the widths differ, and else nothing (`vision-encoder-decoder` of `transformers`).
    """

    vision: VitConfig | None = None
    audio: ConformerConfig | WhisperConfig | None = None
    seam: Literal["normed", "plain"] = "normed"

    def __post_init__(self) -> None:
        if not (self.vision or self.audio):
            raise ValueError("vision=None: a model needs a tower: an image tower, a Conformer or Whisper's encoder")
        if self.vision and self.vision.head.classes:
            raise ValueError(f"vision.head.classes={self.vision.head.classes}: a tower names no classes; nearest is 0")
        if isinstance(self.audio, ConformerConfig) and self.audio.objective:
            raise ValueError(f"audio.objective={self.audio.objective!r}: a tower has none; nearest is None")

    def tiny(self) -> "Towers":
        """Returns small towers of the same kinds."""
        vision = self.vision and changed(self.vision.tiny(), {"head.classes": 0})
        return dataclasses.replace(self, vision=vision, audio=self.audio and self.audio.tiny())


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultimodalConfig(EncoderDecoderConfig):
    """A decoder of text that attends to what an image tower sees and an audio tower hears (GSPMD's blog post of 2021 names such
    models; the composition is ours). The fields of a stack are the decoder's; the target's first token asks for a language.

    Attributes:
      vocab: ids of the one embedding table, whose transpose makes the output logits.
      positions: the decoder's table.
    """

    family: ClassVar[str] = "multimodal"
    vocabularies: ClassVar[dict[str, str]] = {"vocabulary": "vocab"}
    sized_by_data: ClassVar[dict[str, str]] = {"positions": "positions.rows"}
    stacks: ClassVar[int] = 1

    vocab: int
    towers: Towers
    positions: Learned = Learned(rows=128)
    norm: NormConfig = NormConfig(kind="layer", bias=True)
    decoder: DecoderConfig = DecoderConfig(start_id=1)

    @property
    def decoder_groups(self) -> int:
        """The number of layer groups of the decoder."""
        return self.layer_groups

    @property
    def picture(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture; zeros where none is seen."""
        return self.towers.vision.picture if self.towers.vision else (0, 0, 0)

    @property
    def frame_width(self) -> int:
        """The numbers of a frame; 0 where none is heard."""
        return self.towers.audio.frame_width if self.towers.audio else 0

    @property
    def most_frames(self) -> int:
        """The most frames of a sound; 0 bounds nothing."""
        return self.towers.audio.most_frames if self.towers.audio else 0

    def tiny(self) -> "MultimodalConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        small = {"layers": max(4, 2 * len(self.layer_group)), "vocab": 64, "attention.head_dim": 4, "positions.rows": 32}
        return changed(self, self.shrunk() | small | {"towers": self.towers.tiny()})


CONFIG = MultimodalConfig
