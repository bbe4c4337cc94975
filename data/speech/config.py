"""Utterances with their texts, and how they are augmented. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar, Literal

from data.config import DataConfig
from data.features import Feature, Features, positions

RATE = 16_000  # samples a second
_HOPS = {"whisper": 160, "kaldi": 160, "kaldi_normed": 160, "waveform": 1, "samples": 1}
ALIGN = 8  # frames: an utterance of a row begins at a multiple, and has as many of padding before the next


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecAugment:
    """Bands and stretches of an utterance that are hidden each time it comes (arXiv 1904.08779; data/speech/masks.py).

    Attributes:
      bands: how many bands of frequency.
      band_width: most mel bands of each.
      stretches: how many stretches of time.
      stretch_share: the longest stretch as a share of the utterance.
    """

    bands: int = 0
    band_width: int = 27
    stretches: int = 0
    stretch_share: float = 0.05

    def __post_init__(self) -> None:
        for name in ("bands", "band_width", "stretches"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be 0 or more")
        if not 0 <= self.stretch_share <= 1:
            raise ValueError(f"stretch_share={self.stretch_share:g}: must be from 0 to 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanMasks:
    """Spans of positions that pre-training hides and predicts (wav2vec 2.0, arXiv 2006.11477, section 3.1).

    Attributes:
      probability: share of positions at which a span begins; 0 hides none.
      span: positions of a span.
      stride: frames (samples, of waveforms) of one of the model's positions.
    """

    probability: float = 0.0
    span: int = 10
    stride: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability={self.probability:g}: must be from 0 to 1")
        for name in ("span", "stride"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be 1 or more")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeechData(DataConfig):
    """Utterances, one or several in a row, and their texts.

    Attributes:
      seconds: of a row; must be that of the cache, unless utterances are alone in their rows.
      slots: the most utterances of a row, which do not see each other; must be that of the cache.
      front: what a model reads: log-mel frames by "whisper" or "kaldi"'s convention, "kaldi_normed" with each band of mean 0 and
        variance 1 over an utterance; or the "waveform", of mean 0 and variance 1, or its "samples" as they are.
      mels: bands of a frame.
      padding: what follows an utterance that is alone in its row: "masked" is nothing, "silence" is sound that the model
        hears, as Whisper was trained.
      targets_length: tokens of a row's texts; must be that of the cache. 0 reads no texts.
      augment: what is hidden of utterances.
      masks: the positions that pre-training predicts.
      temperature: T: a cache's parts (transcripts, translations) are drawn in proportion to n^(1/T).
    """

    kind: ClassVar[str] = "speech"

    seconds: float = 16.0
    slots: int = 1
    front: Literal["whisper", "kaldi", "kaldi_normed", "waveform", "samples"] = "whisper"
    mels: int = 80
    padding: Literal["masked", "silence"] = "masked"
    targets_length: int = 0
    augment: SpecAugment = SpecAugment()
    masks: SpanMasks = SpanMasks()
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"slots={self.slots}: must be 1 or more")
        if self.slots > 1 and self.padding == "silence":
            raise ValueError("padding='silence': only of utterances that are alone, slots=1; nearest is 'masked'")
        step = ALIGN * _HOPS["whisper"]
        if self.samples % step or not self.samples:
            fit = max(round(self.seconds * RATE / step), 1) * step / RATE
            raise ValueError(f"seconds={self.seconds:g}: must be a multiple of {step / RATE:g}; nearest is {fit:g}")
        if self.hears_samples and (self.augment.bands or self.augment.stretches):
            raise ValueError("augment: a waveform has no frames to hide; nearest is bands=0 and stretches=0")
        if self.masks.probability and self.frames % self.masks.stride:
            raise ValueError(f"masks.stride={self.masks.stride}: must divide the {self.frames} frames of a row")

    @property
    def hears_samples(self) -> bool:
        """Whether the model reads samples, not frames."""
        return self.hop == 1

    @property
    def samples(self) -> int:
        """Samples of a row."""
        return round(self.seconds * RATE)

    @property
    def hop(self) -> int:
        """Samples of a frame; where samples are read, which are frames then, 1."""
        return _HOPS[self.front]

    @property
    def frames(self) -> int:
        """Frames of a row, T."""
        return self.samples // self.hop

    def stored(self) -> Features:
        """Returns the arrays of a row as the cache stores them: where each utterance ends, the texts, and the samples one
        utterance after the other."""
        texts = positions(self.targets_length, "targets", "targets_segments", "targets_positions")
        texts = texts if self.targets_length else {}
        ends = Feature((self.slots,), (None,))
        return {"ends": ends, **texts, "samples": Feature((-1,), (None,), dtype="int16")}

    def features(self) -> Features:
        """Returns the arrays of a row as the model gets it: frames [T, F], the number of each one's utterance, from 1 (0 is
        padding), tokens of the texts in the same order, and of pre-training which positions are hidden."""
        width = 1 if self.hears_samples else self.mels
        features = {
            "frames": Feature((self.frames, width), ("length", None), dtype="float32"),
            **positions(self.frames, "frames_segments"),
        }
        if self.targets_length:
            features |= positions(self.targets_length, "targets", "targets_segments", "targets_positions")
        if self.masks.probability:
            features |= positions(self.frames // self.masks.stride, "masked")
        return features

    def tiny(self) -> "SpeechData":
        """Returns a configuration of random frames whose batches run in seconds."""
        # The shortest rows whose positions every mesh of eight devices divides.
        seconds = 1.28 if self.hears_samples else 0.64
        length = min(self.targets_length, 16)
        return dataclasses.replace(
            self, cache="", batch_size=16, seconds=seconds, slots=1, mels=min(self.mels, 16), targets_length=length
        )


CONFIGS = (SpeechData,)
EVALS = ()  # data.config.Decode transcribes and scores, data.config.HeldOut gives the loss
