"""Pictures or sounds with a text that a language is asked for. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar

from data.features import Feature, Features, positions
from data.speech.config import SpecAugment, SpeechData

_NOTHING = SpecAugment()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultimodalData:
    """Rows of a picture, or a sound, or both, and of one text, whose first token says its language.

    Attributes:
      cache: name of the prepared cache; "" is random pixels, frames and tokens, see TranslationData.
      batch_size: rows of a global batch.
      height, width: pixels of a picture of three channels; 0 has no pictures.
      shift: most pixels by which a training picture is moved each way.
      seconds: of a sound; must be that of the cache. 0 has no sounds.
      mels: bands of a frame, by Whisper's convention.
      augment: what is hidden of sounds in training.
      targets_length: tokens of a text; must be that of the cache.
      vision, audio: the components that read pictures and sounds, whose rules cut them.
      temperature: T: a cache's parts, a language of a source each, are drawn in proportion to n^(1/T).
      seed: seed of the order of rows, and of how they are changed.
    """

    kind: ClassVar[str] = "multimodal"
    benchmark: ClassVar[str] = "throughput"  # the benchmark that measures runs (trainers/measure/mlperf_rules.py)

    cache: str = ""
    batch_size: int
    height: int = 64
    width: int = 64
    shift: int = 0
    seconds: float = 8.0
    mels: int = 80
    augment: SpecAugment = _NOTHING
    targets_length: int = 48
    vision: str = "vision_tower"
    audio: str = "audio_tower"
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if bool(self.height) != bool(self.width):
            raise ValueError(f"width={self.width}: a picture has both sides or none; nearest is {self.height}")
        if not self.height and not self.seconds:
            raise ValueError("seconds=0: a row has a picture or a sound; nearest is 8")
        if self.seconds:
            _ = self.speech  # which checks them

    @property
    def speech(self) -> SpeechData:
        """How sounds become frames."""
        return SpeechData(
            batch_size=self.batch_size, seconds=self.seconds, mels=self.mels, front="whisper", augment=self.augment
        )

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores them: the text, whether what follows is a picture's file (1) or samples
        of 16 bits (2), and that."""
        texts = positions(self.targets_length, "targets")
        return {**texts, "form": Feature((), ()), "content": Feature((-1,), (None,), dtype="uint8")}

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it."""
        found: Features = {}
        if self.height:
            picture = (self.height, self.width, 3)
            found["images"] = Feature(picture, ("height", "width", None), dtype="float32", component=self.vision)
            found["has_image"] = Feature((1,), (None,))
        if self.seconds:
            frames = self.speech.features()
            found["frames"] = dataclasses.replace(frames["frames"], component=self.audio)
            found["frames_segments"] = dataclasses.replace(frames["frames_segments"], component=self.audio)
        return found | positions(self.targets_length, "targets", "targets_segments", "targets_positions")

    def tiny(self) -> "MultimodalData":
        """Returns a configuration of random arrays whose batches run in seconds."""
        return dataclasses.replace(
            self, cache="", batch_size=16, height=16 * bool(self.height), width=16 * bool(self.width),
            seconds=0.64 * bool(self.seconds), mels=16, targets_length=16,
        )  # fmt: skip


CONFIGS = (MultimodalData,)
EVALS = ()  # data.config.Decode writes and scores, data.config.HeldOut gives the loss
