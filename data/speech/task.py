"""Speech as a task: frames of utterances with hidden parts anew each time, texts to write."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from data import paths
from data.reading.caches import cache_folder, check_fields, check_vocabularies, examples, smallest_vocabulary
from data.reading.examples import StoredExamples
from data.speech import masks, metrics, sound, spectra
from data.speech.config import ALIGN, SpeechData
from data.speech.decoding import SpeechDecoding
from data.task import DataError, Example, HeldOutExamples, Task
from models.families import ModelConfig


@runtime_checkable
class HearsFrames(Protocol):
    """The configuration of a model that reads frames of one width, up to a number of them."""

    @property
    def frame_width(self) -> int:
        """Returns the numbers of a frame."""
        ...

    @property
    def most_frames(self) -> int:
        """Returns the most frames of an utterance; 0 bounds nothing."""
        ...


@runtime_checkable
class TellsUtterances(Protocol):
    """The configuration of a model that has to know how many utterances share a row."""

    @property
    def most_utterances(self) -> int:
        """Returns the most utterances of a row."""
        ...


class SpeechTask(Task[SpeechData]):
    """Rows of utterances from a cache of samples (data.speech.maker)."""

    packed_with = ("slots", "targets_length")

    # --- reading ---

    @property
    def temperature(self) -> float:
        return self.data.temperature

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        check_fields(self.data, manifest, *self.packed_with)
        packed = manifest["seconds"]
        if self.data.seconds < packed or (self.data.slots > 1 and self.data.seconds != packed):
            raise DataError(f"data.seconds={self.data.seconds:g}: cache {self.data.cache!r} has rows of {packed:g} s")
        if self.data.targets_length:
            check_vocabularies(model, manifest)
        if isinstance(model, TellsUtterances) and model.most_utterances < self.data.slots:
            raise DataError(f"data.slots={self.data.slots}: the model tells {model.most_utterances} in a row apart")
        if isinstance(model, HearsFrames):
            width = self.data.features()["frames"].shape[1]
            if model.frame_width != width:
                raise DataError(f"data.mels={width}: the model reads frames of {model.frame_width}")
            if model.most_frames and self.data.frames > model.most_frames:
                most = model.most_frames * self.data.hop / sound.RATE
                raise DataError(f"data.seconds={self.data.seconds:g}: the model hears at most {most:g} s")

    def decided(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields that a cache decides; rows of utterances that are alone may be longer than its own."""
        decided = super().decided(manifest)
        alone = decided["slots"] == 1 and self.data.seconds >= manifest["seconds"]
        return decided if alone else decided | {"seconds": manifest["seconds"]}

    def sizes(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return super().sizes(manifest) | {"utterances": self.data.slots}

    def synthetic_key(self, model: ModelConfig) -> str:
        vocabulary = smallest_vocabulary(model) if self.data.targets_length else 0
        return f"{vocabulary}-{self.data.features()}"

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        """Returns random frames and tokens in full rows, as the model gets them; the text is no longer than a tenth of them."""
        data = self.data
        row = {
            "frames": rng.standard_normal(data.features()["frames"].shape, np.float32),
            "frames_segments": np.ones(data.frames, np.int32),
        }
        if length := data.targets_length:
            # As long as a text that is said in this time may be, so that every alignment is possible.
            used = min(length, max(1, round(data.samples / spectra.HOP) // 16))
            row["targets"] = np.zeros(length, np.int32)
            row["targets"][:used] = rng.integers(3, smallest_vocabulary(model), used)
            row["targets_segments"] = (np.arange(length) < used).astype(np.int32)
            row["targets_positions"] = np.arange(length, dtype=np.int32) * row["targets_segments"]
        if data.masks.probability:
            row["masked"] = masks.spans(data.frames // data.masks.stride, data.masks, rng).astype(np.int32)
        return row

    @property
    def augmentation(self) -> str:
        """Random data comes as the model gets it; samples must become frames."""
        fields = dataclasses.asdict(self.data)
        return paths.digest({name: fields[name] for name in _FEATURES})[:16] if self.data.cache else ""

    def augment(self, row: Example, rng: np.random.Generator, assets: Any) -> Example:
        """Returns the row's utterances as frames, with parts hidden, each at a multiple of ALIGN frames; and its texts."""
        return self.as_features(row, rng)

    def as_features(self, row: Example, rng: np.random.Generator | None = None) -> Example:
        """Returns a stored row as the model gets it; nothing is hidden without a generator but what it has to predict."""
        data, hidden = self.data, rng or np.random.default_rng(0)
        frames = np.zeros(data.features()["frames"].shape, np.float32)
        segments, masked, at = np.zeros(data.frames, np.int32), np.zeros(data.frames // data.masks.stride, np.int32), 0
        align = ALIGN * spectra.HOP // data.hop
        ends = row["ends"][row["ends"] > 0]
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True), 1):
            part = self.frames(sound.from_pcm(row["samples"][start:end]))
            if rng is not None:
                part = masks.spec_augment(part, data.augment, rng)
            place = slice(at, at + len(part))
            frames[place], segments[place] = part, number
            if data.masks.probability:
                first, count = at // data.masks.stride, len(part) // data.masks.stride
                masked[first : first + count] = masks.spans(count, data.masks, hidden)
            at += (-(-len(part) // align) + 1) * align
        arrays = {"frames": frames, "frames_segments": segments}
        arrays |= {name: row[name] for name in ("targets", "targets_segments", "targets_positions") if name in row}
        return arrays | ({"masked": masked} if data.masks.probability else {})

    def frames(self, samples: np.ndarray) -> np.ndarray:
        """Returns what the model reads of an utterance's samples [N]: frames [T, F], T at most those of a row."""
        data = self.data
        if data.front == "samples":
            return samples[:, None].astype(np.float32)
        if data.front == "waveform":
            spread = np.sqrt(samples.var() + 1e-7)
            return ((samples - samples.mean()) / spread)[:, None].astype(np.float32)
        if data.padding == "silence":
            samples = np.pad(samples, (0, data.samples - len(samples)))
        return spectra.frames(samples, data.mels, data.front)

    # --- evaluation ---

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's utterances, an utterance a row, made when they are asked for."""
        size = sum(1 for _ in examples(cache, split, limit))
        return HeldOutExamples(self.utterances(cache, split, size), size)

    def decoding(self, vocabulary: Path) -> SpeechDecoding:
        folder = cache_folder(self.data) if self.data.cache else vocabulary
        return SpeechDecoding(self.data, folder, vocabulary, self.utterances)

    def utterances(self, cache: Path, split: str, size: int) -> StoredExamples:
        """Returns the first held-out utterances of a split as a model gets them, one a row."""
        stored = dataclasses.replace(self.data, slots=1).stored()
        return StoredExamples(cache / f"{split}.array_record", stored, self.as_features, size)

    @property
    def directions(self) -> Mapping[str, bool]:
        return {"wer": True, "cer": True, "chrf": False, "bleu": False, "impossible": True}

    @property
    def meanings(self) -> Mapping[str, str]:
        return metrics.MEANINGS

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        hours = {task: part["seconds"] / 3600 for task, part in manifest["parts"].items()}
        tasks = ", ".join(f"{hours[task]:.2f} h to {task}" for task in hours)
        return [f"Trained on `{manifest['cache']}` (fingerprint {manifest['fingerprint'][:16]}): {tasks}."]


# The fields of the configuration that a row's arrays depend on.
_FEATURES = ("seconds", "front", "mels", "padding", "augment", "masks")
task = SpeechTask
