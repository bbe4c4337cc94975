"""The model's metrics on a held-out split, with thresholds chosen on another split."""

from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from data.task import ChoosesThresholds, DataError, HeldOutExamples
from models.protocol import Model
from models.sharding.params import Params
from trainers.evaluation.held_out import HeldOutEvaluator


class ThresholdedEvaluator(HeldOutEvaluator):
    """The scalars of HeldOutEvaluator for a task that chooses thresholds (data.task.ChoosesThresholds), such as a probability
    from which on an event counts as forecast: on the split `eval.decided_on`, so that they are not fitted to what is scored."""

    def __init__(self, model: Model, e: Experiment, cache: Path, vocabulary: Path):
        super().__init__(model, e, cache, vocabulary)
        config: Any = e.eval
        if not isinstance(self.task, ChoosesThresholds):
            raise DataError(f"data of kind {e.data.kind!r} chooses no thresholds")
        self._thresholded: ChoosesThresholds = self.task
        same = config.decided_on == config.split
        self._others = None if same else self.task.held_out(cache, vocabulary, config.decided_on, config.limit)

    def _read(self, config: Any, cache: Path, vocabulary: Path) -> HeldOutExamples:
        """Returns whole examples alone: the settings of such an evaluation cut no rows."""
        return self.task.held_out(cache, vocabulary, config.split, config.limit)

    def __call__(self, params: Params) -> dict[str, float]:
        totals, _ = self.measure(params, self.examples.rows)
        others = totals if self._others is None else self.measure(params, self._others.rows)[0]
        thresholds = self._thresholded.choose_thresholds(others)
        scores = self._means(totals) | self._thresholded.scores_at(totals, thresholds)
        return {f"eval/{name}": score for name, score in (scores | {"examples": float(self.examples.count)}).items()}


EVALUATOR = ThresholdedEvaluator
