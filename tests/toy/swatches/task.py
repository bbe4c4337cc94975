"""Colours as a task: the model names them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.reading.caches import class_names, examples
from data.task import Example, HeldOutExamples, Task
from models.families import ModelConfig
from tests.toy.swatches.config import SwatchData


def row_of(colour: Sequence[float], label: int) -> Example:
    images = np.tile(np.array(colour, np.float32) / 255, (8, 8, 1))
    return {"images": images, "labels": np.array([label, 0], np.int32), "label_weights": np.array([1, 0], np.float32)}


class SwatchTask(Task[SwatchData]):
    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        return row_of(rng.uniform(0, 255, 3).tolist(), int(rng.integers(0, 3)))

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        labels = class_names(cache)
        rows = [row_of(example["colour"], labels.index(example["label"])) for example in examples(cache, split, limit)]
        return HeldOutExamples(rows, len(rows))

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        return [f"Trained on {self.rows(manifest)} colours."]


task = SwatchTask
