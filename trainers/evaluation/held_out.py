"""The model's own loss and metrics over held-out examples, and the scores that its task derives from them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.experiment import Experiment
from data.kinds import task_of
from data.task import DataError, Example, HeldOutExamples
from models.parts.losses import Ratio
from models.protocol import Batch, Context, HasOutputs, Model
from models.sharding.layout import Layout, LayoutError
from models.sharding.params import Params
from trainers.inference.runner import Runner


class HeldOutEvaluator:
    """The model's metrics over held-out rows, as means over everything that the loss weighs, and the task's scores."""

    def __init__(self, model: Model, e: Experiment, cache: Path, vocabulary: Path):
        self.task = task_of(e.data)
        config: Any = e.eval
        self.examples = self._read(config, cache, vocabulary)
        rows, with_outputs = config.batch_size, self.examples.needs_outputs
        _check_microbatches(model.scope.layout, rows)  # not the run's own, where a model is placed elsewhere
        assert isinstance(model, HasOutputs) or not with_outputs, type(model)

        def evaluate(model: Any, batch: Batch) -> tuple[dict[str, Ratio], jax.Array | None]:
            metrics = model.loss(batch, Context.evaluation()).metrics
            return metrics, model(batch) if with_outputs else None

        self.runner = Runner(model, self.examples.features or e.data.features(), rows, evaluate)
        shapes, _ = self.runner.shapes()
        self.names = list(self._scores(jax.tree.map(lambda x: np.ones(x.shape), shapes), []))
        self.samples = self.examples.count

    def _read(self, config: Any, cache: Path, vocabulary: Path) -> HeldOutExamples:
        """Returns the examples that are scored; `config` is a data.config.HeldOut or derives from it."""
        examples = self.task.held_out(cache, vocabulary, config.split, config.limit)
        return _first(examples, config.rows) if config.rows else examples

    def __call__(self, params: Params) -> dict[str, float]:
        return self._scores(*self.measure(params, self.examples.rows))

    def measure(self, params: Params, rows: Sequence[Example]) -> tuple[dict[str, Ratio], list[np.ndarray]]:
        """Returns the model's metrics over rows, as sums, and its outputs for them where the task's scores need them.

        Raises:
          DataError: there are no rows.
        """
        if not rows:
            raise DataError("no held-out examples: prepare the data with a larger share of them, or from more documents")
        totals, outputs = [], []
        for metrics, row_outputs in self.runner.batches(params, rows):
            totals.append(metrics)
            outputs.extend([] if row_outputs is None else row_outputs)
        return jax.tree.map(lambda *parts: np.sum(parts, axis=0, dtype=np.float64), *totals), outputs

    def report(self, params: Params, *, details: bool = False) -> tuple[dict[str, Any], str]:
        """Returns the scalars under "all", and a line for each."""
        del details
        scores = {name.removeprefix("eval/"): value for name, value in self(params).items()}
        return {"all": scores}, "\n".join(f"{name:28} {value:14.4f}" for name, value in scores.items())

    def _means(self, totals: dict[str, Ratio]) -> dict[str, float]:
        return {k: float(v.sum) / max(float(v.over), 1.0) for k, v in totals.items() if not v.sum.shape}

    def _scores(self, totals: dict[str, Ratio], outputs: list[np.ndarray]) -> dict[str, float]:
        scores = self._means(totals)
        scores |= self.task.scores(totals, self.examples, outputs) | {"examples": float(self.examples.count)}
        return {f"eval/{name}": score for name, score in scores.items()}


def _first(examples: HeldOutExamples, rows: int) -> HeldOutExamples:
    """Returns the first packed rows, each counted as an example; raises DataError where the task scores whole examples."""
    if examples.needs_outputs or examples.features:
        raise DataError(f"eval.rows={rows}: the scores of this kind of data need whole examples; the nearest is eval.limit")
    kept = examples.rows[:rows]
    return HeldOutExamples(kept, len(kept))


def _check_microbatches(layout: Layout, rows: int) -> None:
    """Raises LayoutError if the held-out rows of a batch cannot be cut into a pipeline's microbatches."""
    for path, settings in layout.pipelines:
        if rows % (m := settings.microbatches):
            raise LayoutError(
                f"eval.batch_size={rows} is not divisible by the {m} microbatches of the pipeline of {path!r}; "
                f"the nearest is {max(1, round(rows / m)) * m}"
            )


EVALUATOR = HeldOutEvaluator
