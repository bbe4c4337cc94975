"""Pictures or sounds with texts that a language is asked for. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import DataConfig
from data.features import Feature, Features, positions, slots
from data.speech.config import SpecAugment, SpeechData

_NOTHING = SpecAugment()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """How many texts, pictures and sounds share a row; by default one.

    A row is a pack: texts side by side, and slots for the pictures and sounds that they are of, each with its text's number. A
    tower computes every slot, so that as many as are used are best: of texts that are mostly of pictures, sixteen share two slots
    for sounds. Each text goes to the row of its pool that has the fewest tokens, of those with room for all of it; one that fits
    nowhere is left out.

    Attributes:
      texts: texts that are read for a row, on average over its pool.
      pool: rows that are packed together.
      row_length: tokens of a row; 0 has room for every text, however long.
      pictures, sounds: slots of a row.
    """

    texts: int = 1
    pool: int = 1
    row_length: int = 0
    pictures: int = 1
    sounds: int = 1

    def __post_init__(self) -> None:
        for name in ("texts", "pool", "pictures", "sounds"):
            if (count := getattr(self, name)) < 1:
                raise ValueError(f"{name}={count}: must be 1 or more; data.height=0 has no pictures, data.seconds=0 no sounds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultimodalData(DataConfig):
    """Rows of texts, each of a picture, or a sound, or both; its first token says its language.

    Attributes:
      batch_size: rows of a global batch.
      packing: how many texts a row has.
      height, width: pixels of a picture of three channels; 0 has no pictures.
      shift: most pixels by which a training picture is moved each way.
      seconds: of a sound; must be that of the cache. 0 has no sounds.
      mels: bands of a frame, by Whisper's convention.
      augment: what is hidden of sounds in training.
      targets_length: tokens of a text; must be that of the cache.
      vision, audio: the components that read pictures and sounds, whose rules cut them.
      temperature: T: a cache's sources are drawn in proportion to n^(1/T), the languages of one in proportion to their texts.
    """

    kind: ClassVar[str] = "multimodal"

    packing: Packing = Packing()
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

    def __post_init__(self) -> None:
        if bool(self.height) != bool(self.width):
            raise ValueError(f"width={self.width}: a picture has both sides or none; nearest is {self.height}")
        if not self.height and not self.seconds:
            raise ValueError("seconds=0: a row has a picture or a sound; nearest is 8")
        if (length := self.packing.row_length) and length < self.targets_length:
            raise ValueError(f"packing.row_length={length}: a text may have {self.targets_length} tokens; nearest is that")
        if self.seconds:
            _ = self.speech  # which checks them

    @property
    def alone(self) -> "MultimodalData":
        """The same data with one text a row, as held-out examples are read."""
        return dataclasses.replace(self, packing=Packing())

    @property
    def speech(self) -> SpeechData:
        """The configuration that makes frames of sounds."""
        return SpeechData(batch_size=self.batch_size, seconds=self.seconds, mels=self.mels, front="whisper", augment=self.augment)

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores them: the text, whether what follows is a picture's file (1) or samples
        of 16 bits (2), and that."""
        texts = positions(self.targets_length, "targets")
        return {**texts, "form": Feature((), ()), "content": Feature((-1,), (None,), dtype="uint8")}

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it: slots of pictures and of sounds' frames, with segments, which are the
        numbers of their texts, from 1 (0 is an empty slot, or what is behind a sound); and the texts' tokens."""
        arrays: Features = {}
        if self.height:
            shape, axes = (self.packing.pictures, self.height, self.width, 3), (None, "height", "width", None)
            arrays["images"] = Feature(shape, axes, dtype="float32", component=self.vision)
            arrays["images_segments"] = slots(self.packing.pictures)
        if self.seconds:
            for name in ("frames", "frames_segments"):
                frames = self.speech.features()[name]
                shape, axes = (self.packing.sounds, *frames.shape), (None, *frames.axes)
                arrays[name] = dataclasses.replace(frames, shape=shape, axes=axes, component=self.audio)
        length = self.packing.row_length or self.packing.texts * self.targets_length
        return arrays | positions(length, "targets", "targets_segments", "targets_positions")

    def tiny(self) -> "MultimodalData":
        """Returns a configuration of random arrays whose batches run in seconds: packs of two texts with one slot for sounds."""
        return dataclasses.replace(
            self,
            cache="",
            batch_size=16,
            packing=Packing(texts=2, pictures=2),
            height=16 * bool(self.height),
            width=16 * bool(self.width),
            seconds=0.64 * bool(self.seconds),
            mels=16,
            targets_length=8,
        )


CONFIGS = (MultimodalData,)
EVALS = ()  # data.config.Decode writes and scores, data.config.HeldOut gives the loss
