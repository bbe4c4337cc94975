"""Colours as a task: the model names them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.reading.caches import check_labels, class_names, examples, labels_of
from data.task import Example, HeldOutExamples, Task
from models.families import ModelConfig

from .config import SkeletonData


def row_of(colour: Sequence[float], label: int, side: int) -> Example:
    """Returns a row as it is stored: `SkeletonData.stored` describes its arrays."""
    images = np.tile(np.array(colour, np.float32) / 255, (side, side, 1))
    return {"images": images, "labels": np.array([label, 0], np.int32), "label_weights": np.array([1, 0], np.float32)}


class SkeletonTask(Task[SkeletonData]):
    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        check_labels(model, manifest)

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        return row_of(rng.uniform(0, 255, 3).tolist(), int(rng.integers(0, labels_of(model))), self.data.side)

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        labels = class_names(cache)
        stored = examples(cache, split, limit)
        rows = [row_of(example["colour"], labels.index(example["label"]), self.data.side) for example in stored]
        return HeldOutExamples(rows, len(rows))

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        return [f"Trained on {self.rows(manifest)} colours."]


task = SkeletonTask
