"""A model of pictures and sounds that writes text. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar, Literal

from models.conformer.config import ConformerConfig
from models.m2m100.config import Inputs, check_rows
from models.parts.attention.config import Learned, Sinusoidal
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
        biases where the widths differ, and else nothing (`vision-encoder-decoder` of `transformers`), "none" nothing: the
        decoder's keys and values are made of the tower's own vectors (TrOCR).
    """

    vision: VitConfig | None = None
    audio: ConformerConfig | WhisperConfig | None = None
    seam: Literal["normed", "plain", "none"] = "normed"

    def __post_init__(self) -> None:
        if not (self.vision or self.audio):
            raise ValueError("vision=None: a model needs a tower: an image tower, a Conformer or Whisper's encoder")
        if self.vision and self.vision.head.classes:
            raise ValueError(f"vision.head.classes={self.vision.head.classes}: a tower names no classes; nearest is 0")
        if self.seam == "none" and self.vision and self.audio and self.vision.model_dim != self.audio.model_dim:
            raise ValueError(
                f"seam='none': towers of widths {self.vision.model_dim} and {self.audio.model_dim}; nearest is 'plain'"
            )
        if isinstance(self.audio, ConformerConfig) and self.audio.objective:
            raise ValueError(f"audio.objective={self.audio.objective!r}: a tower has none; nearest is None")

    @property
    def model_dim(self) -> int:
        """Width of a tower's vectors, of the image tower where there are two."""
        tower = self.vision or self.audio
        assert tower is not None
        return tower.model_dim

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
      positions: of the decoder.
      inputs: the way from tokens to the decoder's first layer, as BART has it (TrOCR); None adds a table of positions, no more.
    """

    family: ClassVar[str] = "multimodal"
    vocabularies: ClassVar[dict[str, str]] = {"vocabulary": "vocab"}
    sized_by_data: ClassVar[dict[str, str]] = {"positions": "positions.rows"}
    stacks: ClassVar[int] = 1

    vocab: int
    towers: Towers
    positions: Learned | Sinusoidal = Learned(rows=128)
    norm: NormConfig = NormConfig(kind="layer", bias=True)
    decoder: DecoderConfig = DecoderConfig(start_id=1)
    inputs: Inputs | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inputs is None and (not isinstance(self.positions, Learned) or self.positions.first):
            raise ValueError(f"inputs=None: with positions={self.positions} tokens need inputs; nearest is Inputs(scaled=False)")

    @property
    def source_dim(self) -> int:
        """Width of the vectors that the decoder attends to."""
        return self.towers.model_dim if self.towers.seam == "none" else self.model_dim

    def check_length(self, length: int) -> None:
        """Raises UserError for texts that are longer than a table of positions reaches."""
        check_rows(self.positions, length)

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
        small = {"layers": max(4, 2 * len(self.layer_group)), "vocab": 64, "attention.head_dim": 4}
        if isinstance(self.positions, Learned):
            small["positions.rows"] = 32 + self.positions.first
        return changed(self, self.shrunk() | small | {"towers": self.towers.tiny()})


CONFIG = MultimodalConfig
