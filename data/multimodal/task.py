"""Pictures and sounds with texts as a task: what is seen and heard, and a text in the language asked for."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from data import paths
from data.images import crops
from data.images.config import ImageData
from data.images.task import ImageTask, TakesPictures
from data.multimodal.config import MultimodalData
from data.multimodal.decoding import MultimodalDecoding
from data.multimodal.sources import PICTURE
from data.reading.caches import (
    cache_folder,
    check_fields,
    check_vocabularies,
    examples,
    smallest_vocabulary,
)
from data.reading.examples import StoredExamples
from data.speech.task import HearsFrames, SpeechTask
from data.task import DataError, Example, HeldOutExamples, Task
from models.families import ModelConfig


class MultimodalTask(Task[MultimodalData]):
    """Rows of a picture or a sound from a cache (data.multimodal.cache)."""

    # --- reading ---

    @property
    def temperature(self) -> float:
        return self.data.temperature

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        check_fields(self.data, manifest, "targets_length")
        if self.data.seconds and self.data.seconds < manifest["seconds"]:
            raise DataError(
                f"data.seconds={self.data.seconds:g}: cache {self.data.cache!r} has sounds of up to {manifest['seconds']:g} s"
            )
        check_vocabularies(model, manifest)
        self.check_model(model)

    def check_model(self, model: ModelConfig) -> None:
        """Raises DataError for a model that sees other pictures, or hears other frames."""
        ours = (self.data.height, self.data.width, 3)
        if isinstance(model, TakesPictures) and self.data.height and model.picture != ours:
            ours, theirs = (" x ".join(map(str, shape)) for shape in (ours, model.picture))
            raise DataError(f"data.height and data.width make pictures of {ours}; the model sees {theirs}")
        if isinstance(model, HearsFrames) and self.data.seconds and model.frame_width != self.data.mels:
            raise DataError(f"data.mels={self.data.mels}: the model hears frames of {model.frame_width}")

    def synthetic_key(self, model: ModelConfig) -> str:
        return f"{smallest_vocabulary(model)}-{self.data.features()}"

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        """Returns random pixels and frames, or both, with a text of a random length."""
        data, row = self.data, self._empty()
        kinds = [bool(data.height), bool(data.seconds)]
        has = [(True, False), (False, True), (True, True)][rng.integers(0, 3)] if all(kinds) else kinds
        if has[0]:
            row["images"] = rng.standard_normal(row["images"].shape, np.float32)
            row["has_image"][:] = 1
        if has[1]:
            row["frames"] = rng.standard_normal(row["frames"].shape, np.float32)
            row["frames_segments"][:] = 1
        length = int(rng.integers(2, data.targets_length + 1))
        return self._with_text(row, rng.integers(3, smallest_vocabulary(model), length))

    @property
    def augmentation(self) -> str:
        """Random data comes as the model gets it; whatever is stored must be decoded."""
        fields = dataclasses.asdict(self.data)
        names = ("height", "width", "shift", "seconds", "mels", "augment")
        return paths.digest({name: fields[name] for name in names})[:16] if self.data.cache else ""

    def augment(self, row: Example, rng: np.random.Generator, assets: Any) -> Example:
        """Returns what is seen or heard of a row, moved and with parts hidden, and its text."""
        return self.perceived(row, rng)

    def perceived(self, row: Example, rng: np.random.Generator | None = None) -> Example:
        found, content = self._empty(), row["content"].tobytes()
        if row["form"] == PICTURE:
            if self.data.height:
                images = self._pictures.seen(content)["images"]
                found["images"] = crops.shifted(rng, images, self.data.shift) if rng and self.data.shift else images
                found["has_image"][:] = 1
        elif self.data.seconds:
            samples = np.frombuffer(content, "<i2")
            heard = {"ends": np.array([len(samples)]), "samples": samples}
            found |= self._sounds.augment(heard, rng, None) if rng else self._sounds.heard(heard)
        return self._with_text(found, row["targets"][row["targets"] > 0])

    def _empty(self) -> Example:
        return {name: np.zeros(f.shape, f.dtype) for name, f in self.data.features().items()}

    def _with_text(self, row: Example, ids: np.ndarray) -> Example:
        count = len(ids)
        row["targets"][:count] = ids
        row["targets_segments"][:count] = 1
        row["targets_positions"][:count] = np.arange(count)
        return row

    @cached_property
    def _pictures(self) -> ImageTask:
        data = self.data
        return ImageTask(ImageData(batch_size=data.batch_size, height=data.height, width=data.width, eval_crop=0.0))

    @cached_property
    def _sounds(self) -> SpeechTask:
        return SpeechTask(self.data.speech)

    # --- evaluation ---

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's rows, made when they are asked for."""
        size = sum(1 for _ in examples(cache, split, limit))
        return HeldOutExamples(self.things(cache, split, size), size)

    def decoding(self, vocabulary: Path) -> MultimodalDecoding:
        folder = cache_folder(self.data) if self.data.cache else vocabulary
        return MultimodalDecoding(self.data, folder, vocabulary, self.things)

    def things(self, cache: Path, split: str, size: int) -> StoredExamples:
        """Returns the first held-out pictures and sounds of a split as a model gets them."""
        return StoredExamples(cache / f"{split}.array_record", self.data.stored(), self.perceived, size)

    @property
    def directions(self) -> Mapping[str, bool]:
        return {"chrf": False, "exact": False, "wer": True}

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        count = sum(part["rows"] for part in manifest["parts"].values())
        return [
            f"Trained on {count:,} texts of pictures and sounds of `{manifest['cache']}`, {len(manifest['parts'])} sources and "
            f"languages (fingerprint {manifest['fingerprint'][:16]})."
        ]


task = MultimodalTask
