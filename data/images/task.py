"""Pictures as a task: decoded, cut and changed anew each time, named one of several classes."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from data import paths
from data.features import stacked
from data.images import crops, metrics, mixing, pictures
from data.images.config import ImageData
from data.images.maker import STORED
from data.images.pictures import PictureError
from data.images.randaugment import randaugment
from data.reading.caches import check_labels, class_names, examples, field_of, labels_of
from data.reading.examples import StoredExamples
from data.task import DataError, Example, HeldOutExamples, Sum, Task
from models.families import ModelConfig

_THREADS = 8  # that decode held-out pictures; Pillow leaves the interpreter's lock meanwhile
_CLASSES = 10  # of random data for a model without classes of its own


@runtime_checkable
class TakesPictures(Protocol):
    """The configuration of a model that reads pictures of one shape."""

    @property
    def picture(self) -> tuple[int, int, int]:
        """Returns their height, width and channels."""
        ...


class ImageTask(Task[ImageData]):
    """Pictures from a cache of their files (data.images.maker)."""

    # --- reading ---

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        if manifest["channels"] > self.data.channels:
            raise DataError(
                f"data.channels={self.data.channels}: cache {self.data.cache!r} has pictures of {manifest['channels']} channels"
            )
        check_labels(model, manifest)
        ours = (self.data.height, self.data.width, self.data.channels)
        if isinstance(model, TakesPictures) and model.picture != ours:
            sizes = zip(("height", "width", "channels"), ours, model.picture, strict=True)
            flags = (f"--model.{field_of(model, name)} {size}" for name, size, theirs in sizes if size != theirs)
            ours, theirs = (" x ".join(map(str, shape)) for shape in (ours, model.picture))
            made = f"data.height, data.width and data.channels make pictures of {ours}; the model reads {theirs}"
            raise DataError(f"{made}; take {' '.join(flags)}")

    def decided(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the number of channels; grey pictures are read in colour by whatever reads colours."""
        return {"channels": max(self.data.channels, manifest["channels"])}

    def sizes(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return super().sizes(manifest) | {name: getattr(self.data, name) for name in ("height", "width", "channels")}

    def synthetic_key(self, model: ModelConfig) -> str:
        return f"{labels_of(model)}-{self._shape}"

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        """Returns random pixels and a class as the model gets them, or two classes where pictures are mixed."""
        labels = rng.integers(0, labels_of(model) or _CLASSES, 2, dtype=np.int32)
        share = rng.uniform(0.5, 1) if self.data.augmentation.mixes else 1.0
        pixels = rng.integers(0, 256, self._shape, dtype=np.uint8)
        return self._example(self._normalised(pixels), labels[0], labels[1], share)

    @property
    def augmentation(self) -> str:
        """Random data comes as the model gets it; whatever is stored must be decoded."""
        fields = dataclasses.asdict(self.data)
        return paths.digest({name: fields[name] for name in _PIXELS})[:16] if self.data.cache else ""

    def augment(self, row: Example, rng: np.random.Generator, assets: Any) -> Example:
        """Returns the picture's `pixels` [H, W, C], uint8, and its `label`."""
        how = self.data.augmentation

        def choose(width: int, height: int) -> pictures.Box:
            if how.crop == "resized":
                return crops.resized(rng, width, height, how.area, how.ratio)
            return self._centre(width, height)

        image = self._cut_out(row["picture"].tobytes(), choose)
        if how.flip and rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = self._pixels(randaugment(image, rng, how.layers, how.magnitude))
        if how.crop == "padded":
            pixels = crops.shifted(rng, pixels, how.pad)
        return {"pixels": pixels, "label": row["label"]}

    @property
    def group_size(self) -> int:
        """Pictures are mixed in pairs."""
        return 2 if self.data.augmentation.mixes else 1

    def combine(self, rows: Sequence[Example], rng: np.random.Generator) -> Example:
        """Returns the pictures of a pair mixed, each with the other; or a picture by itself."""
        how = self.data.augmentation
        if not how.mixes:
            return stacked([self._example(self._normalised(row["pixels"]), row["label"]) for row in rows])
        # As (picture, the other): the second is mixed with shares of its own.
        pair = [(rows[0], rows[1]), (rows[1], rows[0])]
        if how.cutmix and (not how.mixup or rng.random() < 0.5):
            mixed = [self._pasted(row, other, mixing.drawn_box(rng, how.cutmix, *self._shape[:2])) for row, other in pair]
        else:
            mixed = [self._blended(row, other, mixing.drawn_blend(rng, how.mixup)) for row, other in pair]
        return stacked(mixed)

    def _pasted(self, row: Example, other: Example, box: mixing.Box) -> Example:
        pixels = row["pixels"].copy()
        pixels[box] = other["pixels"][box]
        share = 1 - mixing.area(box, *self._shape[:2])
        return self._example(self._normalised(pixels), row["label"], other["label"], share)

    def _blended(self, row: Example, other: Example, share: float) -> Example:
        images = self._normalised(row["pixels"], other["pixels"], share)
        return self._example(images, row["label"], other["label"], share)

    def _example(self, images: np.ndarray, label: Any, other: Any = 0, share: float = 1.0) -> Example:
        return {
            "images": images,
            "labels": np.array([label, other], np.int32),
            "label_weights": np.array([share, 1 - share], np.float32),
        }

    # --- pixels ---

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.data.height, self.data.width, self.data.channels

    def _centre(self, width: int, height: int) -> pictures.Box:
        return crops.centred(width, height, self._shape[:2], self.data.eval_crop)

    def _cut_out(self, encoded: bytes, choose: pictures.Choose) -> Image.Image:
        return pictures.cut_out(encoded, self.data.channels, choose, self.data.height, self.data.width)

    def _pixels(self, image: Image.Image) -> np.ndarray:
        return np.asarray(image).reshape(self._shape)

    @cached_property
    def _scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Factors and offsets of a row of pixels [W * C]: long vectors are what NumPy is fast with."""
        mean, std = (np.broadcast_to(value, self.data.channels) for value in (self.data.mean, self.data.std))
        factor, offset = 1 / (255 * std), -mean / std
        return tuple(np.tile(value, self.data.width).astype(np.float32) for value in (factor, offset))  # pyright: ignore[reportReturnType]

    def _scaled(self, pixels_HWC: np.ndarray, share: float) -> np.ndarray:
        """Returns a share of pixels 0 to 255 in standard deviations, [H, W * C], float32; their mean is still in them."""
        return pixels_HWC.reshape(self.data.height, -1) * (self._scales[0] * np.float32(share))

    def _normalised(self, pixels_HWC: np.ndarray, other_HWC: np.ndarray | None = None, share: float = 1.0) -> np.ndarray:
        """Returns pixels 0 to 255, or a blend of two pictures, as float32 with the mean taken off, in standard deviations."""
        images = self._scaled(pixels_HWC, share)
        if other_HWC is not None:
            images += self._scaled(other_HWC, 1 - share)
        images += self._scales[1]
        return images.reshape(self._shape)

    def seen(self, encoded: bytes) -> Example:
        """Returns a picture's file as evaluation sees it, without a class; raises PictureError where it cannot be used."""
        return self._example(self._normalised(self._pixels(self._cut_out(encoded, self._centre))), 0)

    # --- evaluation ---

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's pictures, decoded when they are asked for; `extra` is their classes."""
        numbers = {label: number for number, label in enumerate(class_names(cache))}
        labels = np.array([numbers[example["label"]] for example in examples(cache, split, limit)], np.int64)
        rows = self.pictures(cache / f"{split}.array_record", len(labels))
        return HeldOutExamples(rows, len(rows), labels, needs_outputs=True)

    def pictures(self, file: Path, size: int) -> StoredExamples:
        """Returns the first pictures of a file of records as evaluation sees them, with their classes."""

        def seen(row: Example) -> Example:
            example = self.seen(row["picture"].tobytes())
            example["labels"][0] = row["label"]
            return example

        return StoredExamples(file, STORED, seen, size, _THREADS)

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns the share of pictures whose class has the greatest logit, and one of the five greatest."""
        labels = examples.extra[: len(outputs)]  # there are more outputs than pictures: those of the padding
        return metrics.accuracies(metrics.ranks(np.stack(outputs[: len(labels)]), labels) if len(labels) else labels)

    @property
    def directions(self) -> Mapping[str, bool]:
        return {"accuracy": False, "accuracy_top5": False}

    @property
    def meanings(self) -> Mapping[str, str]:
        return {"accuracy_top5": "the share of pictures whose class is among the five likeliest"}

    @property
    def given(self) -> str:
        return "picture"

    @property
    def shown(self) -> int:
        return 5

    def read_given(self, given: Sequence[Mapping[str, Any]], vocabulary: Path) -> list[Example]:
        """Returns the pictures of files that were given; raises DataError, with its name, for one that cannot be used."""
        return [self._read(Path(example["picture"])) | {"owners": np.array([at])} for at, example in enumerate(given)]

    def _read(self, file: Path) -> Example:
        content = pictures.read(file)
        try:
            return self.seen(content)
        except PictureError as error:
            raise DataError(f"{file}: {error}") from None

    def class_names(self, vocabulary: Path) -> list[str]:
        """Returns the names of the classes from the manifest."""
        return class_names(vocabulary)

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        labels = manifest["labels"]
        names = ", ".join(labels[:20]) + (f" and {len(labels) - 20:,} more" if len(labels) > 20 else "")
        trained, fingerprint = self.rows(manifest), manifest["fingerprint"][:16]
        return [
            f"Trained on {trained:,} pictures of `{manifest['cache']}` (fingerprint {fingerprint}).",
            f"{len(labels):,} classes: {names}.",
        ]


# The fields of the configuration that a row's arrays depend on.
_PIXELS = ("height", "width", "channels", "mean", "std", "eval_crop", "augmentation")
task = ImageTask
