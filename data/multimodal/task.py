"""Pictures and sounds with texts as a task: what is seen and sound_row, and a text in the language asked for."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from data import paths
from data.features import Features, stacked
from data.images import crops
from data.images.config import ImageData
from data.images.task import ImageTask, TakesPictures
from data.multimodal.config import MultimodalData
from data.multimodal.decoding import MEANINGS, MultimodalDecoding
from data.multimodal.sources import PICTURE
from data.reading.caches import cache_folder, check_fields, check_vocabularies, examples, smallest_vocabulary
from data.reading.examples import StoredExamples
from data.reading.packing import lay_out
from data.speech.task import HearsFrames, SpeechTask
from data.task import DataError, Example, HeldOutExamples, Task
from models.families import ModelConfig


class MultimodalTask(Task[MultimodalData]):
    """Packs of pictures or sounds with texts from a cache (data.multimodal.maker)."""

    packed_with = ("targets_length",)

    # --- reading ---

    @property
    def temperature(self) -> float:
        return self.data.temperature

    def weights(self, sizes: Mapping[str, int]) -> list[float]:
        """Returns how often each part is drawn: a source in proportion to n^(1/T), its languages in proportion to their texts.

        Pictures with names in 28 languages would else be 28 sources, and sounds with texts in two at most 1 text in 15.
        """
        sources = [name.partition("-")[0] for name in sizes]
        totals = Counter[str]()
        for source, n in zip(sources, sizes.values(), strict=True):
            totals[source] += n
        return [n * totals[s] ** (1 / self.temperature - 1) for s, n in zip(sources, sizes.values(), strict=True)]

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        check_fields(self.data, manifest, *self.packed_with)
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

    def decided(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        seconds = self.data.seconds and max(self.data.seconds, manifest["seconds"])
        return super().decided(manifest) | {"seconds": seconds}

    def sizes(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return super().sizes(manifest) | {"positions": self.data.targets_length}

    def synthetic_key(self, model: ModelConfig) -> str:
        return f"{smallest_vocabulary(model)}-{self.data.features()}"

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        """Returns a pack of texts of random lengths, each of random pixels or frames, or both, as far as there are slots."""
        data, packing, rows = self.data, self.data.packing, []
        longest = min(data.targets_length, max(2, data.features()["targets"].shape[0] // packing.texts))
        sees, hears = (
            rng.permutation(packing.texts) < slots * bool(size)
            for slots, size in ((packing.pictures, data.height), (packing.sounds, data.seconds))
        )
        for can in zip(sees, hears, strict=True):
            has = [(True, False), (False, True), (True, True)][rng.integers(0, 3)] if all(can) else can
            row = _empty(self._row)
            if has[0]:
                row["images"] = rng.standard_normal(row["images"].shape, np.float32)
                row["images_segments"][:] = 1
            if has[1]:
                row["frames"] = rng.standard_normal(row["frames"].shape, np.float32)
                row["frames_segments"][:] = 1
            if any(has):
                length = int(rng.integers(2, longest + 1))
                ids = rng.integers(3, smallest_vocabulary(model), length)
                rows.append(row | _of_texts([ids], data.targets_length))
        return _packed(data.features(), rows, 1)[0]

    @property
    def augmentation(self) -> str:
        """Random data comes as the model gets it; whatever is stored must be decoded."""
        fields = dataclasses.asdict(self.data)
        content = {name: fields[name] for name in ("height", "width", "shift", "seconds", "mels", "augment")}
        return paths.digest(content | fields["packing"])[:16] if self.data.cache else ""

    def augment(self, row: Example, rng: np.random.Generator, assets: Any) -> Example:
        """Returns a row of one text and what is seen or heard of it, moved and with parts hidden."""
        return self.as_features(row, rng)

    @property
    def group_size(self) -> int:
        """The texts of a pool."""
        return self.data.packing.texts * self.data.packing.pool

    @property
    def rows_per_group(self) -> int:
        """The rows of a pool."""
        return self.data.packing.pool

    def combine(self, rows: Sequence[Example], rng: np.random.Generator) -> Example:
        """Returns rows of one text each as packs: see data.multimodal.config.Packing."""
        del rng
        return stacked(_packed(self.data.features(), rows, self.data.packing.pool))

    def as_features(self, row: Example, rng: np.random.Generator | None = None) -> Example:
        """Returns a row of one text, nothing moved or hidden without a generator."""
        arrays, content = _empty(self._row), row["content"].tobytes()
        if row["form"] == PICTURE:
            if self.data.height:
                images = self._pictures.seen(content)["images"]
                arrays["images"][0] = crops.shifted(rng, images, self.data.shift) if rng and self.data.shift else images
                arrays["images_segments"][:] = 1
        elif self.data.seconds:
            samples = np.frombuffer(content, "<i2")
            sound_row = {"ends": np.array([len(samples)]), "samples": samples}
            sound_row = self._sounds.augment(sound_row, rng, None) if rng else self._sounds.as_features(sound_row)
            arrays |= {name: array[None] for name, array in sound_row.items()}
        return arrays | _of_texts([row["targets"][row["targets"] > 0]], len(arrays["targets"]))

    @cached_property
    def _row(self) -> Features:
        """The arrays of a row of one text."""
        return self.data.alone.features()

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
        return HeldOutExamples(self.stored_rows(cache, split, size), size, features=self._row)

    def decoding(self, vocabulary: Path) -> MultimodalDecoding:
        folder = cache_folder(self.data) if self.data.cache else vocabulary
        return MultimodalDecoding(self.data, folder, vocabulary, self.stored_rows)

    def stored_rows(self, cache: Path, split: str, size: int) -> StoredExamples:
        """Returns the first held-out pictures and sounds of a split as a model gets them."""
        return StoredExamples(cache / f"{split}.array_record", self.data.stored(), self.as_features, size)

    @property
    def directions(self) -> Mapping[str, bool]:
        return {"chrf": False, "exact": False, "wer": True}

    @property
    def meanings(self) -> Mapping[str, str]:
        return MEANINGS

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        count = sum(part["rows"] for part in manifest["parts"].values())
        return [
            f"Trained on {count:,} texts of pictures and sounds of `{manifest['cache']}`, {len(manifest['parts'])} sources and "
            f"languages (fingerprint {manifest['fingerprint'][:16]})."
        ]


class _Pack:
    """A row that rows of one text each are added to.

    Attributes:
      tokens: of its texts so far.
    """

    def __init__(self, features: Features):
        self._row, self._texts, self.tokens = _empty(features), list[np.ndarray](), 0
        self._used = {name: 0 for name in ("images", "frames") if name in features}

    def has_room(self, row: Example) -> bool:
        """Returns whether the pack has room for the text and its image and audio slots."""
        fits = self.tokens + np.count_nonzero(row["targets_segments"]) <= len(self._row["targets"])
        return bool(fits) and all(self._used[name] < len(self._row[name]) for name in self._has(row))

    def add(self, row: Example) -> None:
        """Adds a text that there is room for, and what is seen and heard of it."""
        self._texts.append(row["targets"][row["targets_segments"] > 0])
        self.tokens += len(self._texts[-1])
        for name in self._has(row):
            at = self._used[name]
            self._row[name][at] = row[name][0]
            self._row[f"{name}_segments"][at] = row[f"{name}_segments"][0] * len(self._texts)
            self._used[name] += 1

    def _has(self, row: Example) -> list[str]:
        return [name for name in self._used if row[f"{name}_segments"].any()]

    def row(self) -> Example:
        """Returns the row as a model gets it."""
        return self._row | _of_texts(self._texts, len(self._row["targets"]))


def _packed(features: Features, rows: Iterable[Example], count: int) -> list[Example]:
    """Returns rows of one text each in so many packs."""
    packs = [_Pack(features) for _ in range(count)]
    for row in rows:
        if fitting := [pack for pack in packs if pack.has_room(row)]:
            min(fitting, key=lambda pack: pack.tokens).add(row)
    return [pack.row() for pack in packs]


def _empty(features: Features) -> Example:
    return {name: np.zeros(f.shape, f.dtype) for name, f in features.items()}


def _of_texts(texts: Sequence[np.ndarray], length: int) -> Example:
    """Returns the arrays of texts side by side in a row of this length."""
    names = ("targets", "targets_segments", "targets_positions")
    return dict(zip(names, lay_out(texts, length), strict=True))


task = MultimodalTask
