"""A model of pictures and sounds that writes text. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar, Literal

from models.conformer.config import ConformerConfig
from models.parts.transformer_config import EncoderDecoderConfig, Norm, Positions
from models.vit.config import VitConfig
from models.whisper.config import WhisperConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultimodalConfig(EncoderDecoderConfig):
    """A decoder of text that attends to what an image tower sees and an audio tower hears (GSPMD's blog post of 2021 names such
    models; the composition is ours). The fields of a stack are the decoder's; the target's first token asks for a language.

    Attributes:
      vocab: ids of the one embedding table, whose transpose makes the output logits.
      max_positions: rows of the decoder's learned table of positions.
      vision: the image tower, without classes; None sees nothing.
      conformer: the audio tower, or
      whisper: Whisper's encoder as the audio tower, of which only the encoder is made; both None hears nothing.
      seam: what maps a tower's output to the decoder's width: "normed" is a projection and a norm, "plain" a projection with
        biases where the widths differ, and else nothing (`vision-encoder-decoder` of `transformers`).
    """

    family: ClassVar[str] = "multimodal"
    vocabularies: ClassVar[dict[str, str]] = {"vocabulary": "vocab"}
    stacks: ClassVar[int] = 1

    vocab: int
    max_positions: int = 128
    vision: VitConfig | None = None
    conformer: ConformerConfig | None = None
    whisper: WhisperConfig | None = None
    seam: Literal["normed", "plain"] = "normed"
    positions: Positions = "none"  # inside layers; the table is the model's
    norm: Norm = "layer"
    norm_bias: bool = True
    attention_bias: bool = True
    ffn_bias: bool = True
    start_id: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conformer and self.whisper:
            raise ValueError("whisper: there is a Conformer already, and one audio tower; nearest is None")
        if not (self.vision or self.conformer or self.whisper):
            raise ValueError("vision=None: a model needs a tower: an image tower, a Conformer or Whisper's encoder")
        if self.vision and self.vision.classes:
            raise ValueError(f"vision.classes={self.vision.classes}: a tower names no classes; nearest is 0")
        if self.conformer and self.conformer.objective:
            raise ValueError(f"conformer.objective={self.conformer.objective!r}: a tower has none; nearest is None")

    @property
    def decoder_groups(self) -> int:
        """Repeated units of the decoder."""
        return self.layer_groups

    @property
    def picture(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture; zeros where none is seen."""
        v = self.vision
        return (v.height, v.width, v.channels) if v else (0, 0, 0)

    @property
    def frame_width(self) -> int:
        """The numbers of a frame; 0 where none is heard."""
        audio = self.conformer or self.whisper
        return audio.frame_width if audio else 0

    @property
    def most_frames(self) -> int:
        """The most frames of a sound; 0 bounds nothing."""
        return self.whisper.most_frames if self.whisper else 0

    def tiny(self) -> "MultimodalConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        small = self.shrunk() | dict(layers=max(4, 2 * len(self.layer_group)), vocab=64, head_dim=4, max_positions=32)
        towers = {name: tower.tiny() for name in ("conformer", "whisper") if (tower := getattr(self, name))}
        if self.vision:
            towers["vision"] = dataclasses.replace(self.vision.tiny(), classes=0)
        return dataclasses.replace(self, **small | towers)


CONFIG = MultimodalConfig
