"""Grids as a task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.reading.caches import check_fields, examples
from data.task import Example, HeldOutExamples, Sum, Task
from models.families import ModelConfig
from tests.toy.grids.config import ToyGrids


def example(rng: np.random.Generator, height: int, width: int, channels: int) -> Example:
    """Returns a grid whose next one is what its first channel is to the left; a tenth of the pixels is not seen."""
    grid = rng.normal(size=(height, width, channels)).astype(np.float32)
    seen = (rng.random((height, width, 1)) > 0.1).astype(np.float32)
    return {"grid": grid, "next": np.roll(grid[..., :1], 1, axis=1), "seen": seen}


class ToyTask(Task[ToyGrids]):
    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        check_fields(self.data, manifest, "height", "width", "channels")

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        return example(rng, self.data.height, self.data.width, self.data.channels)

    @property
    def augmentation(self) -> str:
        return "flip" if self.data.flip else ""

    def augment(self, row: Example, rng: np.random.Generator, assets: Any) -> Example:
        return {name: array[::-1] for name, array in row.items()} if rng.random() < 0.5 else row

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns grids drawn from the seeds that the split lists; `extra` is the mean square of what was seen."""
        shape = (self.data.height, self.data.width, self.data.channels)
        rows = [example(np.random.default_rng(raw["seed"]), *shape) for raw in examples(cache, split, limit)]
        seen = sum(float(row["seen"].sum()) for row in rows)
        return HeldOutExamples(rows, len(rows), sum(float((row["next"] ** 2 * row["seen"]).sum()) for row in rows) / seen)

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns the skill (1 is perfect, 0 no better than always 0) and the worst column's share of the error."""
        error, columns = totals["squared_error"], np.asarray(totals["by_column"].sum)
        return {
            "skill": 1 - float(error.sum) / max(float(error.over), 1.0) / examples.extra,
            "worst_column": float(columns.max() / max(columns.sum(), 1e-9)),
        }

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        return [f"Trained on {self.rows(manifest)} grids."]


task = ToyTask
